"""The smallest arena of a file as part of a page and of JSON."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from ckplan.meter import Bisection, Prediction, Smallest
from ckplan.meter.bisect import Try
from ckplan.report import json as as_json
from ckplan.report.documents.measurements import measurement
from tests.report import examples
from tests.report.examples import KIB, printed

FOUND = Bisection(
    path="step.onnx",
    device="cpu",
    peak_activations=30 * KIB,
    prediction=Prediction(30 * KIB, 40 * KIB),
    plain=Smallest(36 * KIB, 35 * KIB, 32 * KIB, 37 * KIB, 32 * KIB, (Try(37 * KIB, True), Try(35 * KIB, False))),
    default=Smallest(44 * KIB, 43 * KIB, 40 * KIB, 44 * KIB, 41 * KIB, (Try(44 * KIB, True),)),
    without_block=True,
    options={"max_mem": 44 * KIB, "initial_chunk_size_bytes": 44 * KIB},
)


def page(found: Bisection) -> list[str]:
    shown = printed(measurement(examples.measurement("step.onnx", 32), found))
    return [" ".join(line.split()) for line in shown.splitlines()]


def test_the_page_has_smallest_expected_and_in_use() -> None:
    lines = page(FOUND)
    assert "Smallest arena in which it runs" in lines
    assert "default options 44.0 KiB 44.0 KiB 40.0 KiB 10.0 %" in lines
    assert "memory patterns off 36.0 KiB 37.0 KiB 32.0 KiB 12.5 %" in lines
    assert "3 limits tried; a limit smaller by 0.4 % is too small" in lines
    assert "set by OrtArenaCfg: max_mem=45056, initial_chunk_size_bytes=45056" in lines


def test_a_smaller_limit_that_does_without_the_block_is_told() -> None:
    assert any("within 36.0 KiB it runs with default options, too" in line for line in page(FOUND))
    told = " ".join(page(replace(FOUND, without_block=False)))
    assert "runs with default options, too" not in told


def test_on_a_gpu_it_is_the_limit_of_the_provider() -> None:
    lines = page(replace(FOUND, device="cuda", options={"gpu_mem_limit": "45056"}))
    assert "Smallest gpu_mem_limit in which it runs" in lines
    assert "set by provider options: gpu_mem_limit=45056" in lines


def test_json_has_everything_or_null() -> None:
    data = json.loads(json.dumps(as_json.measurement(examples.measurement("step.onnx", 32), FOUND)))["bisection"]
    assert data["default"]["limit"] == 44 * KIB
    assert data["default"]["fragmentation"] == pytest.approx(0.1)
    assert data["plain"]["tries"][1] == {"limit": 35 * KIB, "ran": False}
    assert data["options"]["max_mem"] == 44 * KIB
    assert as_json.measurement(examples.measurement("step.onnx", 32))["bisection"] is None

"""One measured file as a page and as JSON."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ckplan.meter import Gpu, Inside, LiveTensor, Measurement, NonFinite, Prediction, Recomputation
from ckplan.report import json as as_json
from ckplan.report.documents.measurements import measurement, summary
from tests.report import examples
from tests.report.examples import KIB, printed, timeline


def example(expected: tuple[int, ...] = (1, 24), **changes: Any) -> Measurement:
    alive = (
        LiveTensor("/layer[0]/act", 20 * KIB, "/layer[0]/act", "Tanh", False, False, False),
        LiveTensor("b" * 90, 8 * KIB, "c" * 90, "Mul", True, False, True),
        LiveTensor("again", 4 * KIB, "act/recompute1", "Tanh", False, True, False),
    )
    inside = Inside(timeline(*expected), alive, (0, 512))
    found = {"inside": inside, "prediction": Prediction(30 * KIB, 40 * KIB)} | changes
    return examples.measurement("models/step.onnx", 32, **found)


def squeezed(report: str) -> list[str]:
    return [" ".join(line.split()) for line in report.splitlines()]


def test_threads_that_nobody_chose_are_told_apart_from_those_that_are_expected() -> None:
    looked = Inside(timeline(1, 24), (), (0, 512), threads=2)
    title = measurement(example(inside=looked)).sections[0].title
    assert title.endswith("onnxruntime's choice of threads (expected: the workspaces of 2 threads)")


def test_the_page_holds_what_was_measured_beside_what_was_expected() -> None:
    page = squeezed(printed(measurement(example())))
    for line in (
        "step.onnx: activations 32.0 KiB, total 42.0 KiB, 1.0 ms a run",
        "Measured in onnxruntime 1.31.1 on cpu, onnxruntime's choice of threads",
        "measured expected promised by the file",
        "activations, peak 32.0 KiB 24.0 KiB 30.0 KiB",
        "heap (second meter) 32.1 KiB",
        "all live memory, peak 42.0 KiB 34.0 KiB 40.0 KiB",
        "steady state, in use 32.0 KiB",
        "steady state, arena held 64.0 KiB",
        "resident (misleads) 300.0 KiB",
        "time of a run 1.0 ms",
        "Alive at the peak, in 'op1' (3)",
        "20.0 KiB 62.5 % Tanh forward /layer[0]/act",
        f"8.0 KiB 25.0 % Mul unused, held …{'b' * 30}",
        "4.0 KiB 12.5 % Tanh recomputed again",
        "32.0 KiB of tensors and 512 B of workspace; 32.0 KiB were measured",
        "Slowest nodes (2, 2.0 ms for all)",
        "1.0 ms 50.0 % Tanh op0",
    ):
        assert line in page, line
    assert "widest gap: 8.0 KiB more than expected (╌), at step 2, 'op1'" in page
    assert "Problems" not in page


def test_equal_timelines_are_said_to_be_equal() -> None:
    page = printed(measurement(example((1, 32))))
    assert "as expected at every step" in page
    assert "╌" not in page


@pytest.mark.parametrize("width", [80, 200])
def test_the_page_fits_with_nothing_but_the_least(width: int) -> None:
    nothing = example(
        inside=None, counters=None, priority=None, readings={}, steady_without_pattern=None,
        prediction=Prediction(None, None),
    )  # fmt: skip
    page = printed(measurement(nothing), width)
    assert "time of a run" in page
    assert "expected" not in page
    assert summary(nothing) == "step.onnx: 1.0 ms a run"


def test_without_the_executed_graph_there_is_a_timeline_and_no_list() -> None:
    page = printed(measurement(example(inside=None)))
    assert "Activations over the run" in page
    assert "Alive at the peak" not in page


def test_names_take_one_line_and_what_is_tiny_is_left_out() -> None:
    name = "x" * 90
    alive = (
        LiveTensor(name, 31 * KIB, name, "SkipLayerNormalization", False, False, True),
        LiveTensor("y", 8, "y", "Exp", *[False] * 3),
    )
    page = squeezed(printed(measurement(example(inside=Inside(timeline(1, 32), alive, (0, 0))))))
    assert "Alive at the peak, in 'op1' (the largest 1 of 2)" in page
    assert f"31.0 KiB 96.9 % SkipLayerNormalization unused, held …{'x' * 15}" in page


def test_a_gpu_has_its_own_row() -> None:
    gpu = Gpu("NVIDIA H200", "570.1", True, KIB, 2 * KIB, 3 * KIB)
    assert "GPU, by its driver 3.0 KiB" in squeezed(printed(measurement(example(gpu=gpu, device="cuda"))))
    shared = Gpu("NVIDIA H200", "570.1", False, KIB, 2 * KIB, 3 * KIB)
    assert "GPU, all processes 3.0 KiB" in squeezed(printed(measurement(example(gpu=shared, device="cuda"))))


def test_problems_are_shown() -> None:
    found = example(recomputation=Recomputation(3, 0), nonfinite=(NonFinite("loss", 1, 0),))
    page = " ".join(printed(measurement(found)).split())
    assert "the plan was undone" in page
    assert "output `loss` holds 1 NaN and 0 infinities" in page


def test_json_holds_all_of_it() -> None:
    data = json.loads(json.dumps(as_json.measurement(example())))
    assert data["schema"] == 1
    assert data["command"] == "measure"
    assert data["peak_activations"] == 32 * KIB
    assert data["widest_gap"] == {"step": 1, "bytes": 8 * KIB}
    assert data["inside"]["alive"][1]["held"] is True
    assert data["inside"]["expected"]["activations"] == [KIB, 24 * KIB]
    assert data["gpu"] is None

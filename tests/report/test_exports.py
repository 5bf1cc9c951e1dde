"""Measurements for other programs."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest

from ckplan.errors import EnvironmentUnavailableError
from ckplan.meter import Counters, Inside, Measurement, Prediction
from ckplan.planner import Moment, Timeline
from ckplan.report import exports
from tests.report import examples
from tests.report.examples import KIB, timeline

STEPS = (
    Moment('a "quoted", name', 12 * KIB, 2 * KIB),
    Moment("<script>", 14 * KIB, 4 * KIB, recomputed=True),
    Moment("grad", 13 * KIB, 3 * KIB, backward=True),
)


def example(**changes: Any) -> Measurement:
    counters = Counters("default", Timeline(STEPS), ("Conv", "Tanh", "Mul"), (1e-3, 2.5e-7, 2e-3), 0, (), None)
    found = {"counters": counters, "prediction": Prediction(5, None)} | changes
    return examples.measurement("m.onnx", 4, **found)


def expected() -> Inside:
    return Inside(timeline(1, 5, 3), (), (0, 0, 0))


def test_a_trace_has_a_slice_for_each_node_end_to_end() -> None:
    data = json.loads(exports.trace(example()))
    slices = [event for event in data["traceEvents"] if event["ph"] == "X"]
    assert [event["name"] for event in slices] == ["Conv", "Tanh", "Mul"]
    assert [event["args"]["node"] for event in slices] == [step.op for step in STEPS]
    assert [event["cat"] for event in slices] == ["forward", "recomputed", "backward"]
    assert [event["ts"] for event in slices] == [0, 1000, 1000.25]
    assert [event["dur"] for event in slices] == [1000, 0.25, 2000]
    assert data["otherData"]["promised_peak_activations"] == 5
    assert data["otherData"]["peak_activations"] == 4 * KIB
    # What the format asks of every event.
    for event in data["traceEvents"]:
        assert {"ph", "pid", "name"} <= set(event)
        assert event["ph"] == "M" or "ts" in event


def test_a_trace_has_counters_of_measured_and_expected_bytes() -> None:
    def tracks(found: Measurement) -> dict[str, list[int]]:
        series: dict[str, list[int]] = {}
        for event in json.loads(exports.trace(found))["traceEvents"]:
            if event["ph"] == "C":
                series.setdefault(event["name"], []).append(event["args"]["bytes"])
        return series

    measured = {
        "activations, measured": [2 * KIB, 4 * KIB, 3 * KIB],
        "total, measured": [12 * KIB, 14 * KIB, 13 * KIB],
    }
    assert tracks(example()) == measured
    assert tracks(example(inside=expected())) == measured | {
        "activations, expected": [KIB, 5 * KIB, 3 * KIB],
        "total, expected": [11 * KIB, 15 * KIB, 13 * KIB],
    }


def test_a_table_has_a_row_for_each_step() -> None:
    rows = list(csv.DictReader(io.StringIO(exports.table(example(inside=expected())))))
    assert [row["node"] for row in rows] == [step.op for step in STEPS]
    assert rows[1] == {
        "step": "1",
        "node": "<script>",
        "op": "Tanh",
        "phase": "forward",
        "recomputed": "1",
        "live_bytes": str(14 * KIB),
        "activation_bytes": str(4 * KIB),
        "seconds": "2.5e-07",
        "expected_live_bytes": str(15 * KIB),
        "expected_activation_bytes": str(5 * KIB),
    }
    assert [row["phase"] for row in rows] == ["forward", "forward", "backward"]
    assert next(csv.DictReader(io.StringIO(exports.table(example()))))["expected_activation_bytes"] == ""


@pytest.mark.parametrize("export", [exports.trace, exports.table])
def test_without_counters_there_is_nothing_to_export(export: Any) -> None:
    with pytest.raises(EnvironmentUnavailableError, match=r"nothing to export; install onnxruntime 1\.31"):
        export(example(counters=None))

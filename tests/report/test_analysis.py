from __future__ import annotations

import json
from pathlib import Path

import pytest

from ckplan.planner import Timeline
from ckplan.report import json as as_json
from ckplan.report.document import saving
from ckplan.report.documents import plans
from ckplan.report.writers.terminal import ending
from ckplan.runtime.pools.footprint import Footprint
from tests.report.examples import KIB, analysis, printed, timeline

MODEL = Path("model.onnx")


def lines(report: str) -> list[str]:
    return [" ".join(line.split()) for line in report.splitlines()]


def test_the_page_says_it_all() -> None:
    page = lines(printed(plans.analysis(str(MODEL), analysis())))
    for line in (
        "model.onnx",
        "nodes 7: 3 forward, 4 backward",
        "trained 2 parameters, 4,096 values",
        "loss cross-entropy of 'fc' against input 'labels'",
        "parameters 16.0 KiB with constants",
        "activations 16.0 KiB at the peak, in op2",
        "copies 8.0 KiB of what is fed, in the file",
        "arena, upkeep 1.0 KiB what onnxruntime keeps beyond, after a few runs",
        "total 43.0 KiB",
        "▲ peak at step 3 of 4",
        "Alive at the peak (2)",
        "8.0 KiB 50.0 % 8x256 Tanh /layer[0]/act",
        "Bottlenecks, through which all paths to the loss pass (1)",
        "memory:min_bytes=1 8.0 KiB 50.0 % 0.0 %",
        "list: no tensors were named",
    ):
        assert line in page, line


@pytest.mark.parametrize("width", [60, 80, 200])
def test_it_fits_the_terminal(width: int) -> None:
    printed(plans.analysis(str(MODEL), analysis()), width)


def test_nodes_that_order_others_are_told_apart() -> None:
    longer = timeline(*[16] * 9)
    page = lines(printed(plans.analysis(str(MODEL), analysis(base=longer))))
    assert "nodes 7: 3 forward, 4 backward; 9 run, with those that order them" in page


def test_only_the_largest_tensors_are_shown() -> None:
    tensors = analysis().at_peak[:1] * 25
    page = printed(plans.analysis(str(MODEL), analysis(at_peak=tensors)))
    assert "Alive at the peak (25)" in page
    assert "and 15 more" in page
    assert page.count("/layer[0]/act") == 10 + 1  # and once as a bottleneck


def test_a_graph_without_activations_is_no_special_case() -> None:
    found = analysis(base=Timeline(()), at_peak=(), bottlenecks=(), footprint=Footprint(*[0] * 7))
    page = lines(printed(plans.analysis(str(MODEL), found)))
    assert any(line.startswith("activations 0 B") for line in page)
    assert "none" in page
    json.dumps(as_json.analysis(MODEL, found, []))


def test_json_has_exact_bytes() -> None:
    data = json.loads(json.dumps(as_json.analysis(MODEL, analysis(), ["a note"])))
    assert data["schema"] == 1
    assert data["command"] == "analyze"
    assert data["notes"] == ["a note"]
    assert data["bytes"] == {"parameter": 16 * KIB, "input": 4, "output": 16 * KIB, "activation": 99}
    assert data["base"]["peak_activations"] == 16 * KIB
    assert Timeline.from_json(data["base"]["timeline"]) == analysis().base
    assert data["at_peak"][0] == {
        "name": "/layer[0]/act",
        "shape": [8, 256],
        "bytes": 8 * KIB,
        "producer": "/layer[0]/act",
        "op_type": "Tanh",
        "backward": False,
    }
    assert len(data["at_peak"][1]["name"]) == 120
    assert data["strategies"][0]["peak_activations"] == 8 * KIB
    assert data["strategies"][1] == {"strategy": "list", "reason": "no tensors were named"}


def test_a_total_is_what_a_process_holds() -> None:
    assert printed(plans.analysis(str(MODEL), analysis())).count("total") == 1


def test_a_rewrite_is_one_line_however_narrow_the_terminal() -> None:
    plan = analysis().offers[0].plan
    assert plan is not None
    report = plans.rewritten(Path("out.onnx"), plan, timeline(64), timeline(16))
    saved = "64.0 KiB -> 16.0 KiB (-75.0 %: order -75 %, recompute +0 %)"
    assert report.title == f"out.onnx: predicted activations {saved}, compute +0.0 %"


def test_a_rewrite_begins_with_what_the_budget_is_of() -> None:
    """Activations may grow where the arena holds less: that alone told of a failure."""
    plan = analysis().offers[0].plan
    assert plan is not None
    report = plans.rewritten(Path("out.onnx"), plan, timeline(64), timeline(65), held=("a process", 2**20, 2**19))
    assert report.title.startswith("out.onnx: a process 1.0 MiB -> 512.0 KiB (-50.0 %), predicted activations 64.0 KiB")


def test_nothing_is_divided_by_nothing() -> None:
    assert saving(0, 0) == "0 B -> 0 B"


@pytest.mark.parametrize(
    ("name", "shown"), [("short", "short"), ("a" * 34, "a" * 34), ("x" * 10 + "a" * 33, "…" + "a" * 33)]
)
def test_long_names_keep_their_end(name: str, shown: str) -> None:
    assert ending(name) == shown

"""The search for the first NaN goes through a graph in pieces."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ckplan.isolation.arrays import save_arrays
from ckplan.meter.measurement import request_for
from ckplan.meter.numbers.nonfinite import _in_execution_order, _pieces, _sizes
from ckplan.meter.running.process import run_job
from tests.meter.models import floats, save

ROW = 16 * 4


def line(path: Path, kinds: list[str]) -> Path:
    """A line of one-input operators with known shapes."""
    nodes = [helper.make_node(kind, [f"v{i}"], [f"v{i + 1}"], name=f"n{i}") for i, kind in enumerate(kinds)]
    save(path, nodes, [floats("v0", 16)], [floats(f"v{len(kinds)}", 16)])
    model = onnx.load(str(path))
    model.graph.value_info.extend(floats(f"v{i}", 16) for i in range(1, len(kinds)))
    onnx.save(model, str(path))
    return path


@pytest.mark.parametrize("limit", [1, 2 * ROW, 10**9])
def test_the_limit_does_not_change_what_is_found(tmp_path: Path, limit: int) -> None:
    # The logarithm of a negative number is NaN.
    path = line(tmp_path / "m.onnx", ["Abs", "Neg", "Exp", "Neg", "Log", "Neg", "Abs"])
    save_arrays(tmp_path / "inputs", {"v0": np.ones(16, np.float32)})
    request = request_for(path, tmp_path / "inputs", "cpu", 1)
    found = run_job(
        "ckplan.meter.numbers.nonfinite",
        {**request, "kind": "nan", "order": [f"n{i}" for i in range(7)], "limit": limit},
    )
    assert found == {"kind": "nan", "node": "n4", "op_type": "Log", "value": "v5", "count": 16, "element": [0]}


def test_nothing_is_found_where_nothing_is_wrong(tmp_path: Path) -> None:
    path = line(tmp_path / "m.onnx", ["Abs", "Exp"])
    save_arrays(tmp_path / "inputs", {"v0": np.ones(16, np.float32)})
    request = request_for(path, tmp_path / "inputs", "cpu", 1)
    assert (
        run_job("ckplan.meter.numbers.nonfinite", {**request, "kind": "nan", "order": ["n0", "n1"], "limit": 10**9})
        is None
    )


def test_a_bad_initializer_is_named(tmp_path: Path) -> None:
    weight = numpy_helper.from_array(np.array([1, np.nan], np.float32), "W")
    node = helper.make_node("Mul", ["x", "W"], ["y"], name="mul")
    path = save(tmp_path / "m.onnx", [node], [floats("x", 2)], [floats("y", 2)], [weight])
    save_arrays(tmp_path / "inputs", {"x": np.ones(2, np.float32)})
    request = request_for(path, tmp_path / "inputs", "cpu", 1)
    found = run_job("ckplan.meter.numbers.nonfinite", {**request, "kind": "nan", "order": ["mul"], "limit": 10**9})
    assert (found["op_type"], found["value"], found["element"]) == ("initializer", "W", [1])


def test_pieces_keep_to_the_limit(tmp_path: Path) -> None:
    graph = onnx.load(str(line(tmp_path / "m.onnx", ["Abs"] * 7))).graph
    pieces = list(_pieces(graph.node, _sizes(graph), 3 * ROW))
    assert [len(piece) for piece in pieces] == [3, 3, 1]
    assert [len(piece) for piece in _pieces(graph.node, _sizes(graph), 1)] == [1] * 7


def test_fused_nodes_stand_before_their_readers(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("Abs", ["x"], ["late"], name="late"),
        helper.make_node("Neg", ["x"], ["gone"], name="gone"),
        helper.make_node("Exp", ["gone"], ["early"], name="early"),
        helper.make_node("Add", ["late", "early"], ["y"], name="end"),
    ]
    graph = helper.make_graph(nodes, "g", [floats("x", 2)], [floats("y", 2)])
    order = _in_execution_order(graph, ["early", "late", "end"])
    assert [node.name for node in order] == ["gone", "early", "late", "end"]

"""A sequence that grows is numbered on, and means what it would mean numbered anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckplan.pipeline import open_step
from ckplan.planner.peak import live_bytes
from ckplan.runtime.executing.execution_order import predecessors
from ckplan.runtime.problem_of import Numbering, problem_of_nodes
from ckplan.writer.control_edges import ControlEdges, read_instead
from ckplan.writer.ordering import place_control_nodes

MODELS = Path(__file__).resolve().parents[2] / "sample_models"


@pytest.mark.parametrize("name", ["gpt_tiny.onnx", "mobilenet_tiny.onnx"])
def test_a_sequence_with_more_nodes_is_numbered_on(name: str) -> None:
    graph = open_step(MODELS / name).model.graph
    nodes, edges, known = list(graph), ControlEdges(graph), Numbering()
    problem_of_nodes(nodes, graph.inputs, graph.outputs, known=known)
    for node in nodes[5::7]:
        read = next((value for value in node.inputs if value is not None and value.producer() is not None), None)
        if read is not None and read.shape and read.dtype is not None and read.dtype.is_floating_point():
            read_instead(node, read, edges.alias(read, read))
    assert edges.count > 10
    placed = place_control_nodes(nodes)
    on, anew = (problem_of_nodes(placed, graph.inputs, graph.outputs, known=k) for k in (known, None))
    assert [op.name for op in on.ops] == [op.name for op in anew.ops]
    assert on.predecessors == anew.predecessors == tuple(map(tuple, predecessors(placed)))
    assert on.resident == anew.resident
    schedule = range(len(placed))
    assert live_bytes(on, schedule).tolist() == live_bytes(anew, schedule).tolist()

"""What a control edge is made of, and that onnxruntime neither folds it nor sees through it."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import ckplan.model
from ckplan.autodiff import build_training_graph
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime import problem_of
from ckplan.runtime.executing.executed import executed_model
from ckplan.writer import emit
from ckplan.writer.control_edges import ControlEdges, assemble, is_control, read_instead
from ckplan.writer.ordering import place_control_nodes

SAMPLES = Path(__file__).parents[2] / "sample_models"


def graph(declared: str) -> tuple[ir.Model, list[ir.Node], ControlEdges]:
    """Two nodes of which the second is to wait for the first, whose output has a declared shape."""
    model = ir.from_proto(
        onnx.parser.parse_model(
            '<ir_version: 10, opset_import: ["": 21]> g (float[N,8] x, float[4,8] z) => (float[N,8] y, float[4,8] w) '
            f"<{declared} first> {{ first = Exp(x) y = Neg(first) w = Abs(z) }}"
        )
    )
    nodes = list(model.graph)
    for value in (value for node in nodes for value in node.outputs):
        value.type = ir.TensorType(ir.DataType.FLOAT)
    nodes[1].outputs[0].shape = ir.Shape([4, 8])
    return model, nodes, ControlEdges(model.graph)


def with_edge(declared: str) -> tuple[ir.Model, ControlEdges]:
    model, nodes, edges = graph(declared)
    first, late = nodes[0].outputs[0], nodes[2]
    source = late.inputs[0]
    assert source is not None
    read_instead(late, source, edges.alias(source, first))
    assemble(model, place_control_nodes(nodes), edges)
    return model, edges


def controls(model: ir.Model) -> list[str]:
    return [node.op_type for node in model.graph if is_control(node)]


def test_an_edge_is_two_nodes_that_onnxruntime_keeps() -> None:
    model, edges = with_edge('float["4@buffer1", "8@buffer1"]')
    assert controls(model) == ["Shape", "Unsqueeze"]
    executed = executed_model(model)
    assert edges.restore(executed) == 0
    assert {"Shape", "Unsqueeze"} <= {node.op_type for node in executed.graph}


def test_an_edge_that_was_folded_gets_its_other_form() -> None:
    model, edges = with_edge('float["4@buffer1", "8@buffer1"]')
    first = next(node for node in model.graph if node.op_type == "Exp").outputs[0]
    first.shape = ir.Shape([4, 8])
    assert edges.restore(executed_model(model)) == 1
    nodes = place_control_nodes([node for node in model.graph if not is_control(node)])
    assemble(model, nodes, edges)
    assert controls(model) == ["Size", "Expand", "Unsqueeze"]
    executed = executed_model(model)
    assert edges.restore(executed) == 0
    assert {"Size", "Expand", "Unsqueeze"} <= {node.op_type for node in executed.graph}


@pytest.mark.parametrize("name", ["gpt_tiny", "mobilenet_tiny"])
def test_no_edge_of_a_planned_file_is_folded(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each one that is costs a session more, so that what onnxruntime may know has to be told beforehand."""
    lost: list[int] = []
    restore = ControlEdges.restore
    monkeypatch.setattr(
        ControlEdges, "restore", lambda self, executed: lost.append(restore(self, executed)) or lost[-1]
    )
    forward = ckplan.model.load(SAMPLES / f"{name}.onnx", dims={"batch": 4})
    model = build_training_graph(forward.model).model
    planned = emit(model, parse_strategy("memory").solve(problem_of(model)))
    assert lost
    assert not any(lost)
    assert not {"OptionalHasElement", "Where"} & set(controls(planned))

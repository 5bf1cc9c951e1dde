"""Control edges against orders that cost memory."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ckplan.runtime import problem_of
from ckplan.writer.control_edges import ControlEdges
from ckplan.writer.ordering import exceeds, keep_order, repair
from ckplan.writer.repeats import in_order


def test_an_output_that_is_copied_does_not_let_a_node_out_of_its_place() -> None:
    """The copy of an output is a view, which cannot wait; what stands behind it can."""
    text = """<ir_version: 10, opset_import: ["": 21]>
        g (float[1024,64] x) => (float[1] once, float[1] twice, float[1024,1] z) <float[1] w = {1}> {
            once = Neg(w)
            wide = Exp(x)
            small = ReduceMean<keepdims = 1>(wide)
            twice = Identity(once)
            other = Tanh(x)
            narrow = ReduceMax<keepdims = 1>(other)
            z = Add(small, narrow)
        }"""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text)))
    nodes, problem, edges = list(model.graph), problem_of(model), ControlEdges(model.graph)
    order = [0, 1, 3, 4, 5, 2, 6]
    assert exceeds(problem, order)
    assert repair(nodes, problem, order, edges)
    made = {value.name for value in nodes[4].inputs if value is not None}
    assert made != {"x"}


_DIAMOND = """<ir_version: 10, opset_import: ["": 21]>
    g (float[64] x) => (float[64] z) {
        left = Exp(x)
        right = Tanh(x)
        wide = Neg(right)
        z = Add(left, wide)
    }"""


def test_nodes_stand_in_the_order_in_which_their_tensors_are_to_be_made() -> None:
    """One that is not named comes right before what reads it, and none before what it reads."""
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(_DIAMOND)))

    def ordered(*names: str) -> list[str | None]:
        return [node.outputs[0].name for node in in_order(list(model.graph), names)]

    assert ordered("right", "wide", "left", "z") == ["right", "wide", "left", "z"]
    assert ordered("left", "wide", "z") == ["left", "right", "wide", "z"]
    assert ordered("wide", "left", "z") == ["right", "wide", "left", "z"]


def test_each_node_waits_for_the_one_before_it_where_it_would_run_first() -> None:
    model = ir.from_proto(onnx.shape_inference.infer_shapes(onnx.parser.parse_model(_DIAMOND)))
    nodes, edges = list(model.graph), ControlEdges(model.graph)
    assert keep_order(nodes, [0, 1, 2, 3], edges) == 0
    assert edges.count == 0
    assert keep_order(nodes, [1, 0, 2, 3], edges) == 1
    alias = nodes[1].inputs[0]
    assert alias is not None
    assert alias.producer() is not None
    assert keep_order(nodes, [1, 0, 2, 3], edges) == 0  # it waits already

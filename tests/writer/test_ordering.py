"""Control edges against orders that cost memory."""

from __future__ import annotations

import onnx
import onnx_ir as ir

from ckplan.runtime import problem_of
from ckplan.writer.control_edges import ControlEdges
from ckplan.writer.ordering import exceeds, repair


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

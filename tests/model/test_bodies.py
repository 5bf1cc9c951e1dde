"""What is inside control flow comes into normal form, too."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.parser
import onnx_ir as ir
import pytest

from ckplan.model import is_constant, node_cost, normalise
from ckplan.model.inference.infer import static_shape

SCAN = """g (float[steps,2,3] x) => (float[2,4] last, float[N,2,8] ys) {
    last, ys = Scan <num_scan_inputs = 1, body = b (float[A,B] h, float[A,C] r) => (float[A,B] n, float[D,E] y) {
        m = MatMul(r, W)
        s = Add(m, h)
        n = Tanh(s)
        size = Shape(n)
        width = Gather(size, one)
        row = Constant<value_ints = [-1]>()
        wide = Concat<axis = 0>(row, width)
        flat = Reshape(n, wide)
        y = Concat<axis = 1>(flat, n)
    }> (h0, x)
}"""


def read(text: str, opset: int = 21, **initializers: np.ndarray) -> ir.Model:
    proto = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": {opset}]> {text}')
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(a, n) for n, a in initializers.items())
    return ir.from_proto(proto)


def weights(*shape: int) -> np.ndarray:
    return np.ones(shape, dtype=np.float32)


def scan(**options) -> ir.Model:
    return normalise(read(SCAN, W=weights(3, 4), h0=weights(2, 4), one=np.array([1])), **options).model


def body_of(model: ir.Model) -> ir.Graph:
    return model.graph[0].attributes["body"].as_graph()


def test_shapes_inside_follow_those_outside():
    model = scan(dims={"steps": 5})
    body = body_of(model)
    assert [static_shape(value) for value in body.inputs] == [(2, 4), (2, 3)]
    assert [static_shape(value) for value in body.outputs] == [(2, 4), (2, 8)]
    assert [static_shape(value) for value in model.graph.outputs] == [(2, 4), (5, 2, 8)]


def test_shape_arithmetic_inside_is_folded():
    model = scan(dims={"steps": 5})
    kinds = [node.op_type for node in body_of(model)]
    assert kinds == ["MatMul", "Add", "Tanh", "Reshape", "Concat"]
    assert not body_of(model).initializers
    assert all(is_constant(v) for name, v in model.graph.initializers.items() if "wide" in name)


def test_axes_and_directions():
    text = """g (float[2,7,3] x) => (float[2] last, float[2,7,1] ys) {
        last, ys = Scan <num_scan_inputs = 1, scan_input_axes = [-2], scan_output_axes = [1],
            body = b (float[A] h, float[A,C] r) => (float[A] n, float[A,D] y) {
                t = ReduceSum<keepdims = 0>(r, one)
                n = Add(t, h)
                y = Unsqueeze(n, one)
            }> (h0, x)
    }"""
    model = normalise(read(text, h0=weights(2), one=np.array([1]))).model
    assert [static_shape(value) for value in body_of(model).inputs] == [(2,), (2, 3)]
    assert static_shape(model.graph.outputs[1]) == (2, 7, 1)


LOOP = """g (float[3] x) => (float[K] last) {{
    last = Loop <body = b (int64 i, bool c, float[N] h) => (bool goes, float[M] n) {{
        goes = Identity(c)
        size = Shape(h)
        n = {step}
    }}> (trips, , x)
}}"""


def test_states_that_keep_their_shape_are_static():
    model = normalise(read(LOOP.format(step="Expand(h, size)"), trips=np.array(4))).model
    body = body_of(model)
    assert static_shape(body.inputs[2]) == (3,)
    assert [node.op_type for node in body] == ["Identity", "Expand"]


def test_the_shape_of_a_growing_state_is_no_constant():
    """Its Shape must not be folded to that of the first step."""
    model = normalise(read(LOOP.format(step="Concat<axis = 0>(h, x)"), trips=np.array(4))).model
    body = body_of(model)
    assert static_shape(body.inputs[2]) is None
    assert static_shape(model.graph.outputs[0]) == (15,)

    model = normalise(read(LOOP.format(step="Pad(h, ones)"), trips=np.array(4), ones=np.array([1, 1]))).model
    assert static_shape(model.graph.outputs[0]) == (11,)


def test_a_branch_that_hands_on_a_weight_gets_a_copy():
    text = """g (float[3] x, bool flag) => (float[3] y) {
        y = If (flag) <
            then_branch = a () => (float[3] w) <float[3] w = {1.0, 2.0, 3.0}> { },
            else_branch = b () => (float[3] c) { c = Constant<value = float[3] {4.0, 5.0, 6.0}>() }
        >
    }"""
    model = normalise(read(text)).model
    choice = model.graph[0]
    for branch in ("then_branch", "else_branch"):
        graph = choice.attributes[branch].as_graph()
        assert [node.op_type for node in graph] == ["Identity"]
        assert not graph.initializers
    arrays = [value.const_value.numpy().tolist() for value in model.graph.initializers.values()]
    assert sorted(arrays) == [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]


def test_a_loop_costs_its_body_as_often_as_it_runs():
    one, many = (node_cost(scan(dims={"steps": steps}).graph[0]) for steps in (1, 50))
    assert many.flops == 50 * one.flops
    loop = normalise(read(LOOP.format(step="Exp(h)"), trips=np.array(4))).model.graph[0]
    inner = sum(node_cost(node).flops for node in loop.attributes["body"].as_graph())
    assert node_cost(loop).flops == 4 * inner


@pytest.mark.parametrize("branch", [True, False])
def test_a_condition_inside_a_loop_that_is_known_is_taken(branch):
    text = """g (float[3] x) => (float[3] last) {
        last = Loop <body = b (int64 i, bool c, float[3] h) => (bool goes, float[3] n) {
            goes = Identity(c)
            n = If (flag) <
                then_branch = t () => (float[3] p) { p = Exp(h) },
                else_branch = e () => (float[3] q) { q = Tanh(h) }
            >
        }> (trips, , x)
    }"""
    model = normalise(read(text, trips=np.array(4), flag=np.array(branch))).model
    kinds = {node.op_type for node in body_of(model)}
    assert kinds - {"Identity"} == {"Exp" if branch else "Tanh"}

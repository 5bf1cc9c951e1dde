"""Sequences whose make-up the file tells are resolved when it is loaded, and gradients flow through what is left."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import UnsupportedOperatorsError
from ckplan.model.loading import normalise
from tests.autodiff.control_flow.models import check
from tests.autodiff.gradcheck import check_training_graph

SEQUENCES = {
    "ConcatFromSequence",
    "SequenceAt",
    "SequenceConstruct",
    "SequenceEmpty",
    "SequenceErase",
    "SequenceInsert",
}
SEQUENCES |= {"SequenceLength", "SequenceMap", "SplitToSequence", "Optional", "OptionalGetElement"}

GRAPHS = {
    "construct and take": "s = SequenceConstruct(a, b, a) i = Constant<value_int = -2>() y = SequenceAt(s, i)",
    "insert": """
        s = SequenceEmpty<dtype = 11>() one = SequenceInsert(s, a) k = Constant<value_int = 0>()
        two = SequenceInsert(one, b, k) y = ConcatFromSequence<axis = 1>(two)""",
    "insert before the last": """
        s = SequenceConstruct(a, a) m = Constant<value_int = -1>()
        three = SequenceInsert(s, b, m) y = ConcatFromSequence<axis = -1, new_axis = 1>(three)""",
    "erase": """
        s = SequenceConstruct(a, b, a) k = Constant<value_int = 0>() t = SequenceErase(s, k)
        u = SequenceErase(t) y = ConcatFromSequence<axis = 0, new_axis = 1>(u)""",
    "split into rows": """
        s = SplitToSequence<axis = 0, keepdims = 0>(a) i = Constant<value_int = 2>() r = SequenceAt(s, i)
        y = Mul(r, r)""",
    "split by a size": """
        n = Constant<value_int = 3>() s = SplitToSequence<axis = 1>(a, n) i = Constant<value_int = 1>()
        y = SequenceAt(s, i)""",
    "split by sizes": """
        n = Constant<value_ints = [1, 3]>() s = SplitToSequence<axis = -1>(a, n) i = Constant<value_int = 1>()
        y = SequenceAt(s, i)""",
    "length": """
        s = SequenceConstruct(a, b) n = SequenceLength(s) f = Cast<to = 11>(n) y = Mul(a, f)""",
    "map": """
        s = SequenceConstruct(a, b) t = SequenceMap(s, c) <body = g (double[3, 4] e, double[4] v) => (double[3, 4] w)
            { q = Mul(e, v) w = Mul(q, e) }>
        i = Constant<value_int = 0>() j = Constant<value_int = 1>() p = SequenceAt(t, i) q = SequenceAt(t, j)
        y = Sub(p, q)""",
    "map over two sequences": """
        s = SequenceConstruct(a, b) r = SequenceConstruct(b, b) t = SequenceMap(s, r) <body = g (double[3, 4] e,
            double[3, 4] v) => (double[3, 4] w) { w = Mul(e, v) }> y = ConcatFromSequence<axis = 0>(t)""",
    "map by a branch": """
        s = SequenceConstruct(a, b) t = SequenceMap(s) <body = g (double[3, 4] e) => (double[3, 4] w) {
            h = Shape(e) n = Size(h) one = Constant<value_int = 1>() k = LessOrEqual(n, one)
            w = If(k) <then_branch = t () => (double[3, 4] few) { few = Neg(e) },
                else_branch = e () => (double[3, 4] many) { many = Exp(e) }> }> y = ConcatFromSequence<axis = 0>(t)""",
    "optional": """
        o = Optional(a) v = OptionalGetElement(o) y = Mul(v, v)""",
    "optional sequence": """
        s = SequenceConstruct(a, b) o = Optional(s) t = OptionalGetElement(o) i = Constant<value_int = 1>()
        y = SequenceAt(t, i)""",
    "identity": "s = SequenceConstruct(a, b) t = Identity(s) i = Constant<value_int = 1>() y = SequenceAt(t, i)",
    "get of a tensor": "v = OptionalGetElement(a) y = Mul(v, b)",
}

IN_LOOPS = {
    "an element a step": """
        s = SequenceConstruct(a, b, a) n = SequenceLength(s) t = Constant<value = bool {1}>() y = Loop(n, t, a)
        <body = g (int64 i, bool go, double[3, 4] h) => (bool on, double[3, 4] k) {
            on = Identity(go) e = SequenceAt(s, i) p = Mul(e, h) k = Tanh(p) }>""",
    "a fixed element in a loop": """
        s = SequenceConstruct(a, b) n = Constant<value_int = 2>() t = Constant<value = bool {1}>()
        o = Constant<value_int = -1>() y = Loop(n, t, a) <body = g (int64 i, bool go, double[3, 4] h)
            => (bool on, double[3, 4] k) { on = Identity(go) e = SequenceAt(s, o) p = Mul(e, h) k = Tanh(p) }>""",
    "an element a step in a branch": """
        s = SequenceConstruct(a, b) n = SequenceLength(s) t = Constant<value = bool {1}>() d = Constant<value_int = 1>()
        y = Loop(n, t, a) <body = g (int64 i, bool go, double[3, 4] h) => (bool on, double[3, 4] k) {
            on = Identity(go) r = Sub(d, i) odd = Cast<to = 9>(i) v = If(odd) <
                then_branch = t () => (double[3, 4] few) { few = SequenceAt(s, i) },
                else_branch = e () => (double[3, 4] many) { f = SequenceAt(s, r) many = Exp(f) }>
            p = Mul(v, h) k = Tanh(p) }>""",
}


def model_of(body: str) -> onnx.ModelProto:
    text = f"""<ir_version: 10, opset_import: ["": 21]> g (double[3, 4] x) => (double loss) {{
        a = Add(x, wa) b = Mul(x, wb) c = Identity(wc) {body} z = Mul(y, y) loss = ReduceSum<keepdims = 0>(z) }}"""
    model = onnx.parser.parse_model(text)
    rng = np.random.default_rng(0)
    for name, shape in (("wa", (3, 4)), ("wb", (3, 4)), ("wc", (4,))):
        model.graph.initializer.append(onnx.numpy_helper.from_array(rng.normal(size=shape), name))
    return model


def run(model: onnx.ModelProto, x: np.ndarray) -> np.ndarray:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return session.run(["loss"], {"x": x})[0]


def resolved(body: str) -> tuple[ir.Model, np.ndarray]:
    """The model without sequences, which makes what the file makes of an x, and that x."""
    loaded = normalise(ir.from_proto(model_of(body))).model
    assert not SEQUENCES & {node.op_type for node in loaded.graph.all_nodes()}
    x = np.random.default_rng(1).normal(size=(3, 4))
    np.testing.assert_array_equal(run(ir.to_proto(loaded), x), run(model_of(body), x))
    return loaded, x


@pytest.mark.parametrize("body", GRAPHS.values(), ids=GRAPHS)
def test_resolved(body):
    loaded, x = resolved(body)
    training = build_training_graph(loaded, loss="loss")
    assert training.gradients
    check_training_graph(training, {"x": x})


@pytest.mark.parametrize("body", IN_LOOPS.values(), ids=IN_LOOPS)
def test_elements_of_one_shape_are_gathered_in_a_loop(body):
    """As a scripted module of torch's goes through what `chunk` returns."""
    _, x = resolved(body)
    training, _ = check(model_of(body), {"x": x}, loss="loss")
    assert {"wa", "wb"} <= set(training.gradients)


def test_a_sequence_that_is_an_output_stays():
    model = model_of("s = SequenceConstruct(a, b) i = Constant<value_int = 1>() y = SequenceAt(s, i)")
    model.graph.output.append(onnx.helper.make_tensor_sequence_value_info("s", onnx.TensorProto.DOUBLE, [3, 4]))
    loaded = normalise(ir.from_proto(model)).model
    assert [node.op_type for node in loaded.graph].count("SequenceConstruct") == 1
    assert "SequenceAt" not in {node.op_type for node in loaded.graph}
    check_training_graph(build_training_graph(loaded, loss="loss"), {"x": np.ones((3, 4))})


def test_an_element_that_is_an_output_keeps_its_name():
    model = model_of("s = SequenceConstruct(a, b) i = Constant<value_int = 1>() y = SequenceAt(s, i)")
    model.graph.output.append(onnx.helper.make_tensor_value_info("y", onnx.TensorProto.DOUBLE, [3, 4]))
    loaded = normalise(ir.from_proto(model)).model
    assert [value.name for value in loaded.graph.outputs] == ["loss", "y"]


def test_a_position_computed_at_run_time_is_refused():
    model = model_of("s = SequenceConstruct(a, b) t = Identity(i) y = SequenceAt(s, t)")
    model.graph.input.append(onnx.helper.make_tensor_value_info("i", onnx.TensorProto.INT64, []))
    loaded = normalise(ir.from_proto(model)).model
    with pytest.raises(UnsupportedOperatorsError, match=r"SequenceAt.*at run time"):
        build_training_graph(loaded, loss="loss")


def test_elements_of_several_shapes_are_refused_in_a_loop():
    model = model_of("""
        m = Constant<value_ints = [1, 3]>() s = SplitToSequence<axis = 1>(a, m) n = SequenceLength(s)
        t = Constant<value = bool {1}>() y = Loop(n, t, a) <body = g (int64 i, bool go, double[3, 4] h)
            => (bool on, double[3, 4] k) { on = Identity(go) e = SequenceAt(s, i) p = ReduceSum(e) k = Mul(p, h) }>""")
    loaded = normalise(ir.from_proto(model)).model
    with pytest.raises(
        UnsupportedOperatorsError,
        match=r"SplitToSequence.*only known at run time.*'e' in its body is not the same in every run",
    ):
        build_training_graph(loaded, loss="loss")

"""What `load` does to a graph, on small models."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import helper, numpy_helper

from ckplan import keys
from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError
from ckplan.model import is_constant, load
from tests.model.models import assert_normal, loaded, normal, operators, parse, run, write


def test_initializers_that_are_inputs(tmp_path: Path) -> None:
    text = '<ir_version: 3, opset_import: ["" : 9]> g (float[2, 3] x) => (float[2, 4] y) { y = MatMul(x, w) }'
    model = parse(text, {"w": normal(0, 3, 4)}, as_inputs=True)
    forward = load(write(model, tmp_path))
    assert_normal(forward.model)
    assert [value.name for value in forward.model.graph.inputs] == ["x"]


def test_weights_in_constant_nodes_are_parameters_and_literals_are_not(tmp_path: Path) -> None:
    model = parse("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float["?", 3] x) => (float[] y) {
        half = Constant <value_float = 0.5> ()
        a = MatMul(x, w)
        y = Mul(a, half)
    }""")
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(normal(0, 3, 4)))
    model.graph.node.insert(0, constant)
    forward = load(write(model, tmp_path), shapes={"x": (5, 3)})
    assert_normal(forward.model)
    assert operators(forward.model) == ["MatMul", "Mul"]
    initializers = forward.model.graph.initializers
    assert not is_constant(initializers["w"])
    assert is_constant(initializers["half"])


@pytest.mark.parametrize("of", ["Constant node", "shape of an input", "branch"])
def test_constants_that_are_outputs_are_constants_for_what_reads_them(tmp_path: Path, of: str) -> None:
    """As in a file of which someone asked for all that it computes."""
    made = {
        "Constant node": "axes = Constant <value_ints = [1]> ()",
        "shape of an input": "two = Shape <start = 0, end = 1> (x) axes = Sub(two, one)",
        "branch": """axes = If (yes) <then_branch = t () => (int64[1] a) { a = Constant <value_ints = [1]> () },
                                      else_branch = e () => (int64[1] b) { b = Constant <value_ints = [0]> () }>""",
    }[of]
    text = f"""<ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2] y, int64[1] axes) <bool yes = {{1}}, int64[1] one = {{1}}> {{
        {made}
        a = MatMul(x, w)
        y = ReduceSum <keepdims = 0> (a, axes)
    }}"""
    forward = loaded(tmp_path, text, {"w": normal(0, 3, 4)})
    assert [value.name for value in forward.model.graph.outputs] == ["y", "axes"]
    x = normal(1, 2, 3)
    y, axes = run(forward.model, {"x": x})
    np.testing.assert_allclose(y, (x @ normal(0, 3, 4)).sum(1), rtol=1e-5)
    assert axes.tolist() == [1]
    training = build_training_graph(forward.model, loss="sum-of-squares", wrt=["w"])
    assert list(training.gradients) == ["w"]


def test_weights_in_constant_nodes_that_are_outputs(tmp_path: Path) -> None:
    model = parse('<ir_version: 8, opset_import: ["" : 17]> g (float[2, 3] x) => (float[2, 4] y) { y = MatMul(x, w) }')
    constant = helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(normal(0, 3, 4)))
    model.graph.node.insert(0, constant)
    model.graph.output.append(helper.make_tensor_value_info("w", onnx.TensorProto.FLOAT, [3, 4]))
    forward = load(write(model, tmp_path))
    assert_normal(forward.model)
    training = build_training_graph(forward.model, loss="sum-of-squares")
    assert list(training.gradients) == ["w"]


def test_functions_are_inlined(tmp_path: Path) -> None:
    forward = loaded(
        tmp_path,
        """
        <ir_version: 8, opset_import: ["" : 17, "local" : 1]>
        g (float[2, 3] x) => (float[2, 3] y) { y = local.twice(x) }
        <domain: "local", opset_import: ["" : 17]>
        twice (a) => (b) { two = Constant <value_float = 2.0> ()  b = Mul(a, two) }
        """,
    )
    assert operators(forward.model) == ["Mul"]
    np.testing.assert_array_equal(run(forward.model, {"x": np.ones((2, 3), np.float32)})[0], 2)


def test_a_function_may_have_an_operator_that_onnxruntime_knows_in_the_opset_of_the_model(tmp_path: Path) -> None:
    """It runs functions in the opset of their model; LayerNormalization it knows in any."""
    text = """
        <ir_version: 8, opset_import: ["" : 15, "local" : 1]>
        g (float[2, 4] x) => (float[2, 4] y) { y = local.norm(x) }
        <domain: "local", opset_import: ["" : 17]>
        norm (a) => (b) { scale = Constant <value_floats = [1.0, 2.0, 3.0, 4.0]> ()  b = LayerNormalization(a, scale) }
    """
    x = np.random.default_rng(0).normal(size=(2, 4)).astype(np.float32)
    (found,) = run(loaded(tmp_path, text).model, {"x": x})
    np.testing.assert_allclose(found, run(onnx.parser.parse_model(text), {"x": x})[0], rtol=1e-6)


def test_what_calls_of_functions_leave_out_has_the_default_of_the_function(tmp_path: Path) -> None:
    """Not that of the operator; also where the call is one of a function's or of a branch's."""
    forward = loaded(
        tmp_path,
        """
        <ir_version: 9, opset_import: ["" : 17, "local" : 1]>
        g (float[2, 3] x, bool first) => (float[2, 3] y, float[2, 3] z, float[2, 3] b) {
            y = local.slope(x)
            z = local.outer(x)
            b = If (first) <
                then_branch = one () => (float[2, 3] p) { p = local.slope(x) },
                else_branch = two () => (float[2, 3] q) { q = local.slope <alpha = 0.75> (x) }
            >
        }
        <domain: "local", opset_import: ["" : 17]>
        slope <alpha: float = 0.25> (a) => (c) { c = LeakyRelu <alpha: float = @alpha> (a) }
        <domain: "local", opset_import: ["" : 17, "local" : 1]>
        outer (a) => (c) { c = local.slope(a) }
        """,
    )
    x = np.full((2, 3), -1, np.float32)
    for first, branch in ((True, -0.25), (False, -0.75)):
        found = run(forward.model, {"x": x, "first": np.array(first)})
        for array, expected in zip(found, (-0.25, -0.25, branch), strict=True):
            np.testing.assert_array_equal(array, expected)


SHAPE_ARITHMETIC = """
<ir_version: 8, opset_import: ["" : 17]>
g (float["n", 6] x) => (float[] y) {
    zero = Constant <value_int = 0> ()
    rest = Constant <value_ints = [2, 3]> ()
    axis = Constant <value_ints = [0]> ()
    shape = Shape(x)
    n = Gather(shape, zero)
    one = Unsqueeze(n, axis)
    target = Concat <axis = 0> (one, rest)
    y = Reshape(x, target)
}"""


def test_shape_arithmetic_is_folded(tmp_path: Path) -> None:
    forward = loaded(tmp_path, SHAPE_ARITHMETIC, dims={"n": 5})
    assert operators(forward.model) == ["Reshape"]
    assert forward.model.graph.outputs[0].shape == (5, 2, 3)


def test_what_a_weight_goes_through_is_not_folded(tmp_path: Path) -> None:
    forward = loaded(
        tmp_path,
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[] y, int64[] s) {
            t = Transpose <perm = [1, 0]> (w)
            e = Exp(scale)
            a = MatMul(x, t)
            y = Mul(a, e)
            s = Shape(w)
        }""",
        {"w": normal(0, 4, 3), "scale": np.array(0.1, np.float32)},
    )
    assert sorted(operators(forward.model)) == ["Exp", "Identity", "MatMul", "Mul", "Transpose"]
    assert {"w", "scale"} <= set(forward.model.graph.initializers)
    assert run(forward.model, {"x": normal(0, 2, 3)})[1].tolist() == [4, 3]


@pytest.mark.parametrize("element", ["float", "double", "float16", "int64"])
def test_numbers_in_the_type_of_something_else_are_folded(tmp_path: Path, element: str) -> None:
    """As torch's exporter leaves them where it is told not to optimise."""
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (TYPE[2, 3] x) => (TYPE[] y, float[] z) {
        three = Constant <value_int = 3> ()
        factor = CastLike(three, x)
        y = Mul(x, factor)
        z = CastLike(x, w)
    }""".replace("TYPE", element)
    forward = loaded(tmp_path, text, {"w": normal(0, 3)})
    assert sorted(operators(forward.model)) == ["CastLike", "Mul"]  # x is no number of the program
    factor = next(node for node in forward.model.graph if node.op_type == "Mul").inputs[1]
    assert is_constant(factor)
    x = np.arange(6).reshape(2, 3).astype(factor.dtype.numpy())
    np.testing.assert_array_equal(run(forward.model, {"x": x})[0], 3 * x)


def test_folding_does_not_blow_up_the_file(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float["n", "n"] x) => (float[] y) {
        shape = Shape(x)
        full = Expand(one, shape)
        y = Add(x, full)
    }"""
    small = loaded(tmp_path, text, {"one": np.ones((1, 1), np.int64).astype(np.float32)}, dims={"n": 4})
    assert "Expand" in operators(small.model)  # `one` may be a weight
    text = text.replace("full = Expand(one, shape)", "full = ConstantOfShape(shape)")
    assert operators(loaded(tmp_path, text, dims={"n": 4}).model) == ["Add"]
    large = loaded(tmp_path, text, dims={"n": 1024})
    assert operators(large.model) == ["ConstantOfShape", "Add"]


def test_dropout_in_inference_form_goes(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[2, 3] y) {
        a = Relu(x)
        y = Dropout(a, ratio, training)
    }"""
    ratio = {"ratio": np.array(0.5, np.float32)}
    forward = loaded(tmp_path, text, {**ratio, "training": np.array(False)})
    assert operators(forward.model) == ["Relu"]
    assert [value.name for value in forward.model.graph.outputs] == ["y"]
    assert any("Dropout" in note for note in forward.notes)
    kept = loaded(tmp_path, text, {**ratio, "training": np.array(True)})
    assert operators(kept.model) == ["Relu", "Dropout"]


def test_identities_and_dead_nodes_go(tmp_path: Path) -> None:
    forward = loaded(
        tmp_path,
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[2, 3] y, float[2, 3] same) {
            a = Identity(x)
            b = Cast <to = 1> (a)
            c = Exp(b)
            y = Relu(b)
            same = Identity(x)
        }""",
        {"unused": normal(0, 9)},
    )
    assert sorted(operators(forward.model)) == ["Identity", "Relu"]
    assert [value.name for value in forward.model.graph.outputs] == ["y", "same"]
    assert not forward.model.graph.initializers


def test_a_pad_that_pads_nothing_goes(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 21]>
    g (float[2, 3] x) => (float[2, 3] y, float[2, 4] z)
    <int64[4] none = {0, 0, 0, 0}, int64[4] one = {0, 0, 0, 1}> {
        a = Pad (x, none)
        y = Relu (a)
        z = Pad (a, one)
    }"""
    forward = loaded(tmp_path, text)
    assert sorted(operators(forward.model)) == ["Pad", "Relu"]
    feeds = {"x": normal(1, 2, 3)}
    for got, expected in zip(run(forward.model, feeds), run(parse(text, {}), feeds), strict=True):
        np.testing.assert_array_equal(got, expected)


def test_constant_output_keeps_a_producer(tmp_path: Path) -> None:
    forward = loaded(
        tmp_path,
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[2, 3] x) => (float[2, 3] y, int64[1] c) {
            y = Relu(x)
            c = Constant <value_ints = [7]> ()
        }""",
    )
    assert run(forward.model, {"x": normal(0, 2, 3)})[1].tolist() == [7]


FORWARD, REVERSED = np.array([1, 2, 3], np.float32), np.array([3, 2, 1], np.float32)
IF = """
<ir_version: 8, opset_import: ["" : 17]>
g (float[2, 3] x, bool flag) => (float[] y) {
    y = If (COND) <
        then_branch = t () => (float[] a) { c = Constant <value_floats = [1.0, 2.0, 3.0]> ()  a = Mul(x, c) },
        else_branch = e () => (float[] b) { c = Constant <value_floats = [3.0, 2.0, 1.0]> ()  b = Add(x, c) }
    >
}"""


def test_weights_in_branches_are_lifted_apart(tmp_path: Path) -> None:
    forward = loaded(tmp_path, IF.replace("COND", "flag"))
    assert operators(forward.model) == ["If"]
    assert sorted(forward.model.graph.initializers) == ["c", "c_1"]
    x = normal(0, 2, 3)
    for flag, expected in ((True, x * FORWARD), (False, x + REVERSED)):
        np.testing.assert_allclose(run(forward.model, {"x": x, "flag": np.array(flag)})[0], expected, rtol=1e-6)


@pytest.mark.parametrize("taken", [True, False])
def test_a_decided_branch_is_taken(tmp_path: Path, taken: bool) -> None:
    text = IF.replace("COND", "known").replace(", bool flag", "")
    forward = loaded(tmp_path, text, {"known": np.array(taken)})
    assert operators(forward.model) == ["Mul" if taken else "Add"]
    assert [value.name for value in forward.model.graph.outputs] == ["y"]
    x = normal(0, 2, 3)
    expected = x * FORWARD if taken else x + REVERSED
    np.testing.assert_allclose(run(forward.model, {"x": x})[0], expected, rtol=1e-6)


def test_initializers_of_bodies_are_lifted(tmp_path: Path) -> None:
    model = parse(IF.replace("COND", "flag"))
    for attribute in model.graph.node[0].attribute:
        body = attribute.g
        array = numpy_helper.to_array(helper.make_tensor("c", 1, [3], body.node[0].attribute[0].floats))
        del body.node[0]
        body.initializer.append(numpy_helper.from_array(array, "c"))
    forward = load(write(model, tmp_path))
    assert_normal(forward.model)
    assert sorted(forward.model.graph.initializers) == ["c", "c_1"]
    x = normal(0, 2, 3)
    np.testing.assert_allclose(run(forward.model, {"x": x, "flag": np.array(False)})[0], x + REVERSED, rtol=1e-6)


def test_data_dependent_shapes_are_learnt(tmp_path: Path) -> None:
    forward = loaded(
        tmp_path,
        """
        <ir_version: 8, opset_import: ["" : 17]>
        g (float[4, 5] x, int64[3] pick) => (float[] y) {
            i = NonZero(x)
            j = Transpose <perm = [1, 0]> (i)
            y = GatherND(x, j)
        }""",
    )
    assert any("run in onnxruntime" in note for note in forward.notes)
    assert any("the data decide how many results 1 node(s) have (NonZero '" in note for note in forward.notes)
    assert forward.model.graph.outputs[0].shape == (20,)


def test_a_model_that_only_some_data_fit_is_to_be_exported_in_another_form(tmp_path: Path) -> None:
    """As a mixture of experts by torch's old exporter, which writes how many tokens each expert got when it traced."""
    model = parse("""<ir_version: 10, opset_import: ["": 21]>
        g (float[2,3] x) => (float[2,k] y) <int64[2] sizes = {1, 1}> {
            n = NonZero(x)
            i, j = Split<axis = 1>(n, sizes)
            y = Cast<to = 1>(i)
        }""")
    with pytest.raises(
        ModelError, match=r"on random numbers, which decide sizes here \(.*in which data decide no sizes"
    ):
        load(write(model, tmp_path))


def test_a_sequence_as_input_is_named(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (seq(float[2, 3]) parts) => (float[] y) {
        x = ConcatFromSequence <axis = 0> (parts)
        y = Tanh(x)
    }"""
    with pytest.raises(ModelError, match=r"input 'parts' is not a tensor .* with tensors as inputs"):
        loaded(tmp_path, text)


def test_unnamed_and_equal_names_become_unique(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { a = Relu(x) b = Exp(a) y = Tanh(b) }'
    )
    model = parse(text)
    model.graph.node[0].name = model.graph.node[2].name = "same"
    forward = load(write(model, tmp_path))
    assert_normal(forward.model)
    assert next(iter(forward.model.graph)).name == "same"


def test_unsorted_graph_is_sorted(tmp_path: Path) -> None:
    model = parse('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[2] y) { a = Relu(x) y = Exp(a) }')
    first, second = model.graph.node[0], model.graph.node[1]
    reverse = [onnx.NodeProto.FromString(node.SerializeToString()) for node in (second, first)]
    del model.graph.node[:]
    model.graph.node.extend(reverse)
    assert operators(load(write(model, tmp_path)).model) == ["Relu", "Exp"]


def test_shapes_noted_wrongly_in_the_file_are_ignored(tmp_path: Path) -> None:
    model = parse('<ir_version: 8, opset_import: ["" : 17]> g (float[2] x) => (float[9] y) { a = Relu(x) y = Exp(a) }')
    model.graph.value_info.append(helper.make_tensor_value_info("a", 1, [9]))
    forward = load(write(model, tmp_path))
    assert_normal(forward.model)
    assert forward.model.graph.outputs[0].shape == (2,)


def test_shapes_that_do_not_fit_are_an_error(tmp_path: Path) -> None:
    text = (
        '<ir_version: 8, opset_import: ["" : 17]> g (float["n", "m"] x) => (float[] y) { a = Relu(x) y = MatMul(a, w) }'
    )
    with pytest.raises(ModelError, match="MatMul"):
        loaded(tmp_path, text, {"w": normal(0, 3, 4)}, dims={"n": 2, "m": 7})


def test_external_weights_are_lifted_without_being_read(tmp_path: Path) -> None:
    text = (
        '<ir_version: 6, opset_import: ["" : 11]> g (float[2, 3] x) => (float[] y) { a = MatMul(x, w) y = Softmax(a) }'
    )
    path = tmp_path / "model.onnx"
    model = parse(text, {"w": normal(0, 3, 500)})
    onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
    forward = load(path)
    assert_normal(forward.model)
    tensor = forward.model.graph.initializers["w"].const_value
    assert type(tensor).__name__ == "ExternalTensor"
    assert tensor is not None
    np.testing.assert_array_equal(tensor.numpy(), normal(0, 3, 500))


def test_two_outputs_of_one_value_keep_their_names(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2] x) => (float[2] y, float[2] z) { y = Relu(x)  z = Identity(y) }"""
    forward = loaded(tmp_path, text)
    assert [value.name for value in forward.model.graph.outputs] == ["y", "z"]
    assert operators(forward.model) == ["Relu", "Identity"]


def test_identities_in_loop_bodies_stay(tmp_path: Path) -> None:
    # onnxruntime returns wrong sums when a body lists one value as two outputs.
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2] start, float[3, 2] x) => (float[2] last, float[3, 2] sums) {
        last, sums = Scan <num_scan_inputs = 1, body = b (float[2] before, float[2] item)
            => (float[2] after, float[2] sum) { after = Add(before, item)  sum = Identity(after) }> (start, x)
    }"""
    forward = loaded(tmp_path, text)
    x = normal(0, 3, 2)
    last, sums = run(forward.model, {"start": np.zeros(2, np.float32), "x": x})
    np.testing.assert_allclose(sums, np.cumsum(x, axis=0), rtol=1e-5)
    np.testing.assert_allclose(last, x.sum(axis=0), rtol=1e-5)


def test_settings_are_constants_and_decide_shapes(tmp_path: Path) -> None:
    text = """
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[1, 2, 4, 4] x) => (float[] y) {
        a = Resize <mode = "nearest"> (x, "", scales)
        b = Clip(a, low)
        y = Mul(b, w)
    }"""
    weights = {"scales": np.array([1, 1, 2, 2], np.float32), "low": np.array(0, np.float32), "w": normal(0, 8)}
    forward = loaded(tmp_path, text, weights)
    assert forward.model.graph.outputs[0].shape == (1, 2, 8, 8)
    assert not any("onnxruntime" in note for note in forward.notes)
    assert {name: is_constant(value) for name, value in forward.model.graph.initializers.items()} == {
        "scales": True,
        "low": True,
        "w": False,
    }


def test_what_an_operator_is_given_beside_its_input_is_not_trained_by_default(tmp_path: Path) -> None:
    text = """
    <ir_version: 10, opset_import: ["" : 23, "com.microsoft" : 1]>
    g (float[1, 64, 1] x, float[1, 6, 16] q, int64[1, 6] at, int64[3] ids) => (float[] y, float[] z, float[] o) {
        s = STFT(x, step, win)
        y = Mul(s, w)
        r = RotaryEmbedding <num_heads = 1> (q, cosines, sines, at)
        z = com.microsoft.RotaryEmbedding(r, at, other_cosines, other_sines)
        o = OneHot(ids, depth, off_on)
    }"""
    weights = {"step": np.array(8), "win": normal(0, 16), "w": normal(1, 2), "depth": np.array(4)}
    weights |= {"cosines": normal(2, 9, 8), "sines": normal(3, 9, 8), "off_on": np.array([0, 1], np.float32)}
    weights |= {"other_cosines": normal(4, 9, 8), "other_sines": normal(5, 9, 8)}
    forward = loaded(tmp_path, text, weights)
    kept = forward.model.graph.initializers
    frozen = {name for name in weights if name in kept and keys.FROZEN in kept[name].metadata_props}
    assert frozen == set(weights) - {"step", "depth", "w"}
    assert not any(is_constant(kept[name]) for name in frozen)  # --wrt can ask for them


@pytest.mark.parametrize("producer", ["pytorch", "paddle"])
def test_what_a_constant_node_means_depends_on_the_exporter(tmp_path: Path, producer: str) -> None:
    model = parse("""
    <ir_version: 8, opset_import: ["" : 17]>
    g (float[2, 3] x) => (float[] y) {
        c = Constant <value_floats = [1.0, 2.0, 3.0]> ()
        d = Exp(c)
        y = Mul(x, d)
    }""")
    model.producer_name = producer
    forward = load(write(model, tmp_path))
    assert operators(forward.model) == (["Mul"] if producer == "pytorch" else ["Exp", "Mul"])


def test_a_normalisation_has_the_shape_of_its_input_without_a_run(tmp_path: Path) -> None:
    """Its schema does not say so, and onnxruntime has no kernels in float64 for much that may stand before it."""
    body = "t = GroupNormalization <num_groups = 2> (x, s, s) y = Tanh(t)"
    header = '<ir_version: 10, opset_import: ["" : 21]>'
    forward = loaded(tmp_path, f"{header} g (double[2,4,3] x, double[4] s) => (double[2,4,3] y) {{ {body} }}")
    assert not forward.notes
    assert [tuple(node.outputs[0].shape or ()) for node in forward.model.graph] == [(2, 4, 3), (2, 4, 3)]


def test_a_range_of_numbers_that_are_fed_is_refused(tmp_path: Path) -> None:
    """A run with random numbers would size it, and the file would fail with others. What shapes say is known."""
    text = """<ir_version: 10, opset_import: ["" : 21]>
    g (float a, float d) => (float[n] y) { s = Abs(d) y = Range(a, b, s) }"""
    with pytest.raises(ModelError, match="has a length that depends on 'a' and 'd'"):
        loaded(tmp_path, text, {"b": np.float32(3)})
    text = """<ir_version: 10, opset_import: ["" : 21]> g (float[4, 2] x) => (float[4, 2] y) {
        s = Shape<start=0, end=1>(x)
        n = Squeeze(s)
        r = Range(zero, n, one)
        f = Cast<to=1>(r)
        c = Unsqueeze(f, axis)
        y = Mul(x, c)
    }"""
    scalars = {"zero": np.int64(0), "one": np.int64(1), "axis": np.asarray([1])}
    assert operators(loaded(tmp_path, text, scalars).model) == ["Mul"]

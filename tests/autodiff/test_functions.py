"""Operators without a rule that ONNX defines as functions of others."""

from __future__ import annotations

import numpy as np
import onnx
import onnx.reference
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.inline import inline_functions
from ckplan.autodiff.registry import lookup
from ckplan.errors import ModelError
from ckplan.model.loading import normalise
from tests.autodiff.control_flow.models import Scan
from tests.autodiff.gradcheck import (
    check_finite_differences,
    check_gradient,
    infer,
    node_model,
    onnxruntime_run,
    parse,
    reference,
    slope,
    to_overridable,
    values,
)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"scale": 0.3}])
def test_attention(attributes):
    assert lookup("Attention", 23) is None
    inputs = [values(1, 2, 3, 4, seed=seed) for seed in range(3)]
    check_gradient(node_model("Attention", *inputs, opset=23, **attributes), torch=False)


@pytest.mark.parametrize("kind", [bool, np.float64])
def test_attention_over_a_row_that_is_masked_as_a_whole(kind):
    """Nothing comes back to such a row; its softmax is not a number."""
    inputs = [values(1, 2, 3, 4, seed=seed) for seed in range(3)]
    seen = np.asarray([[True, True, False], [False, False, False], [True, False, True]])
    mask = seen if kind is bool else np.where(seen, 0.0, -np.inf)
    with np.errstate(invalid="ignore"):  # the forward pass divides zero by zero
        model = node_model("Attention", *inputs, mask, opset=23)
        gradients = check_gradient(model, torch=False, wrt=["p0", "p1", "p2"], idle=["p3"])
    np.testing.assert_array_equal(gradients["p0"][:, :, 1], 0)


@pytest.mark.parametrize("interleaved", [0, 1])
def test_rotary_embedding(interleaved):
    angles = values(5, 2, seed=1)
    model = node_model(
        "RotaryEmbedding",
        values(1, 2, 3, 4).astype(np.float32),
        np.cos(angles).astype(np.float32),
        np.sin(angles).astype(np.float32),
        np.asarray([[0, 2, 4]]),
        opset=23,
        interleaved=interleaved,
    )
    training = build_training_graph(infer(model), wrt=["p*"])
    # ONNX defines it for float32 and less, but it is linear in each input: long steps are exact.
    gradients = check_finite_differences(to_overridable(model), training, step=1.0, rtol=1e-5)
    assert sorted(gradients) == ["p0", "p1", "p2"]


@pytest.mark.parametrize("size", [[3, 2], [3, 6], [6, 8]])
def test_center_crop_pad(size):
    check_gradient(node_model("CenterCropPad", values(5, 4), np.asarray(size)), torch=False)


@pytest.mark.parametrize("size", [[2, 3, 4, 5], [2, 3, 2, 3, 4], [1, 3, 4, 5], [1, 1, 4, 3, 2]])
@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(size, align):
    """Also for a single image, which ONNX's body takes for none."""
    axes = len(size) - 2
    theta = values(size[0], axes, axes + 1).astype(np.float32)
    model = node_model("AffineGrid", theta, np.asarray(size), align_corners=align)
    training = build_training_graph(infer(model), wrt=["p*"])
    found = onnxruntime_run(training.model)
    assert float((found["p0_grad"] * theta).sum()) == pytest.approx(float(found["loss"]), rel=1e-5)
    # The operator gives float32, but the grid is linear in theta: long steps are exact.
    check_finite_differences(to_overridable(model), training, step=1.0, rtol=1e-5)


@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid_of_one_row(align):
    """Aligned with both ends at once, onnxruntime aligns it with the last one, and onnx's evaluator divides by zero."""
    attributes = f"AffineGrid<align_corners={align}>"
    text = f"g () => (float loss) {{ y = {attributes}(theta, size) z = Mul(y, w) loss = ReduceSum<keepdims=0>(z) }}"
    theta, weight = values(1, 2, 3).astype(np.float32), values(1, 1, 4, 2).astype(np.float32)
    model = parse(text, theta=theta, size=np.asarray([1, 3, 1, 4]), w=weight)
    found = onnxruntime_run(build_training_graph(model, wrt=["theta"]).model)
    assert float((found["theta_grad"] * theta).sum()) == pytest.approx(float(found["loss"]), rel=1e-5)
    assert bool(found["theta_grad"][0, 0, 1]) == bool(align)


def in_double(graph: onnx.GraphProto) -> None:
    """Turn float into double in a graph and those within."""
    for info in (*graph.input, *graph.output, *graph.value_info):
        if info.type.tensor_type.elem_type == onnx.TensorProto.FLOAT:
            info.type.tensor_type.elem_type = onnx.TensorProto.DOUBLE
    tensors = list(graph.initializer)
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == onnx.AttributeProto.GRAPH:
                in_double(attribute.g)
            elif attribute.type == onnx.AttributeProto.TENSOR:
                tensors.append(attribute.t)
            elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == onnx.TensorProto.FLOAT:
                attribute.i = onnx.TensorProto.DOUBLE
    for tensor in tensors:
        if tensor.data_type == onnx.TensorProto.FLOAT:
            array = onnx.numpy_helper.to_array(tensor).astype(np.float64)
            tensor.CopyFrom(onnx.numpy_helper.from_array(array, tensor.name))


def check_body(op_type: str, opset: int, *inputs: np.ndarray | None, outputs: int = 1, **attributes: object) -> None:
    """Check an operator that ONNX has for no double: its body has the same value, and in double the right slope."""
    singles = [x.astype(np.float32) if x is not None and x.dtype.kind == "f" else x for x in inputs]
    model = node_model(op_type, *singles, outputs=outputs, opset=opset, **attributes)
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    assert op_type not in {node.op_type for node in training.model.graph}
    assert len(training.gradients) == sum(x is not None and x.dtype.kind == "f" for x in inputs)
    proto = ir.to_proto(training.model)
    in_double(proto.graph)
    session = onnx.reference.ReferenceEvaluator(proto, new_ops=[Scan])
    names = [output.name for output in proto.graph.output]
    found = dict(zip(names, session.run(names, {}), strict=True))
    np.testing.assert_allclose(found["loss"], reference(model)["loss"], rtol=1e-5)
    rng = np.random.default_rng(0)
    for name, gradient in training.gradients.items():
        start = onnx.numpy_helper.to_array(next(t for t in proto.graph.initializer if t.name == name))
        direction = rng.normal(size=start.shape)
        expected = slope(lambda t, at=(name, start, direction): session.run(["loss"], {at[0]: at[1] + t * at[2]})[0])
        along = found[gradient] * direction
        np.testing.assert_allclose(along.sum(), expected, rtol=0, atol=1e-7 * (1 + np.abs(along).sum()), err_msg=name)


@pytest.mark.parametrize("alpha", [1.0, 1.7])
def test_swiglu(alpha):
    check_body("SwiGLU", 28, values(2, 3), values(2, 3, seed=1), alpha=alpha)


@pytest.mark.parametrize("activation", ["none", "silu"])
@pytest.mark.parametrize(("bias", "past"), [(False, False), (True, False), (False, True), (True, True)])
def test_causal_conv_with_state(activation, bias, past):
    inputs = [values(2, 3, 5), values(3, 1, 3, seed=1), values(3, seed=2) if bias else None]
    inputs += [values(2, 3, 2, seed=3)] if past else []
    check_body("CausalConvWithState", 27, *inputs, outputs=2, activation=activation)


@pytest.mark.parametrize("update_rule", ["linear", "gated", "delta", "gated_delta"])
@pytest.mark.parametrize(("heads", "past"), [(2, True), (4, False)])
def test_linear_attention(update_rule, heads, past):
    decay = values(2, 3, 4, seed=4, low=-1.0, high=0.0) if "gated" in update_rule else None
    beta = values(2, 3, 2, seed=5, low=0.0, high=1.0) if "delta" in update_rule else None
    state = values(2, 2, 2, 3, seed=3) if past else None
    inputs = [values(2, 3, 2 * heads), values(2, 3, 4, seed=1), values(2, 3, 6, seed=2), state, decay, beta]
    while inputs[-1] is None:
        inputs.pop()
    attributes = {"q_num_heads": heads, "kv_num_heads": 2, "update_rule": update_rule, "scale": 0.7}
    check_body("LinearAttention", 27, *inputs, outputs=2, **attributes)


@pytest.mark.parametrize(
    ("inputs", "outputs", "attributes"),
    [
        pytest.param([values(3, 4, seed=9)], 1, {}, id="mask"),
        pytest.param([np.tri(3, 4, dtype=bool)], 1, {}, id="boolean-mask"),
        pytest.param([None, values(1, 2, 2, 4, seed=5), values(1, 2, 2, 4, seed=6)], 3, {"is_causal": 1}, id="past"),
        pytest.param([None], 4, {"qk_matmul_output_mode": 1, "softcap": 2.0}, id="scores"),
    ],
)
def test_attention_with_more(inputs, outputs, attributes):
    query = [values(1, 2, 3, 4), values(1, 2, 4, 4, seed=1), values(1, 2, 4, 4, seed=2)]
    while inputs and inputs[-1] is None:
        inputs = inputs[:-1]
    check_gradient(node_model("Attention", *query, *inputs, outputs=outputs, opset=24, **attributes), torch=False)


@pytest.mark.parametrize("heads", [(2, 2), (4, 2)])
def test_attention_of_packed_and_grouped_heads(heads):
    mine, shared = heads
    inputs = [values(2, 3, 3 * mine), values(2, 4, 3 * shared, seed=1), values(2, 4, 2 * shared, seed=2)]
    check_gradient(node_model("Attention", *inputs, opset=24, q_num_heads=mine, kv_num_heads=shared), torch=False)


def test_a_body_computed_from_shapes_is_folded():
    training = build_training_graph(infer(node_model("Attention", *[values(1, 2, 3, 4)] * 3, opset=23)), wrt=["p*"])
    kinds = {node.op_type for node in training.model.graph}
    assert "Attention" not in kinds
    assert not {"Shape", "Constant"} & kinds
    sizes = [node for node in training.model.graph if node.op_type == "Size"]
    assert [node.inputs[0].name for node in sizes] == [training.loss]  # the gradient's seed waits for it
    assert all(node.metadata_props["pkg.ckplan.phase"] for node in training.model.graph)


def test_functions_off_the_path_stay():
    query = values(1, 2, 3, 4)
    model = node_model("Mul", query, values(1, 2, 3, 4, seed=1), opset=23)
    model.graph.node[0].input[0] = "mixed"
    model.graph.node.insert(0, onnx.helper.make_node("Attention", ["p0", "p0", "p0"], ["mixed"]))
    training = build_training_graph(infer(model), wrt=["p1"])
    assert "Attention" in {node.op_type for node in training.model.graph}
    weight = onnx.numpy_helper.to_array(next(t for t in model.graph.initializer if t.name == "weight_y0"))
    scores = query @ query.swapaxes(-1, -2) / 2
    share = np.exp(scores) / np.exp(scores).sum(-1, keepdims=True)
    np.testing.assert_allclose(reference(training.model)["p1_grad"], weight * (share @ query), rtol=1e-6)


@pytest.mark.parametrize(
    ("op_type", "inputs", "attributes"),
    [
        ("LinearAttention", [(1, 3, 8)] * 3, {"q_num_heads": 2, "kv_num_heads": 2, "update_rule": "linear"}),
        ("CausalConvWithState", [(1, 2, 5), (2, 1, 3)], {}),
    ],
)
def test_what_is_left_of_a_new_operator_is_labelled_with_a_version_that_runs(op_type, inputs, attributes):
    """Opset 27 knows these, onnxruntime does not know opset 27, and their bodies need nothing of it."""
    names = [f"p{index}" for index in range(len(inputs))]
    node = onnx.helper.make_node(op_type, names, ["y", "state"], **attributes)
    total = onnx.helper.make_node("ReduceSumSquare", ["y"], ["loss"], keepdims=0)
    weights = [
        onnx.numpy_helper.from_array(values(*s).astype(np.float32), n) for n, s in zip(names, inputs, strict=True)
    ]
    loss = onnx.helper.make_tensor_value_info("loss", onnx.TensorProto.FLOAT, [])
    graph = onnx.helper.make_graph([node, total], "g", [], [loss], weights)
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 27)], ir_version=10)
    training = build_training_graph(normalise(ir.from_proto(model)).model, wrt=["p*"])
    assert training.model.graph.opset_imports[""] == 26
    assert any("labelled opset 26" in note for note in training.notes)
    found = onnxruntime_run(training.model)

    def along(step: float) -> float:
        moved = {n: onnx.numpy_helper.to_array(t) * np.float32(1 + step) for n, t in zip(names, weights, strict=True)}
        return float(onnxruntime_run(training.model, moved)["loss"])

    whole = sum(
        float((found[f"{n}_grad"] * onnx.numpy_helper.to_array(t)).sum()) for n, t in zip(names, weights, strict=True)
    )
    assert whole == pytest.approx((along(1e-2) - along(-1e-2)) / 2e-2, rel=1e-2)


@pytest.mark.parametrize("own", [11, 13])
def test_a_body_in_which_an_operator_means_something_else_is_refused(own):
    """Softmax reads the same inputs since ever, but until opset 13 it summed up all axes from one on."""
    model = ir.from_onnx_text(
        f"""<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[2,3,4] x) => (float[2,3,4] y) {{ y = local.F(x) }}
        <domain: "local", opset_import: ["" : {own}]>
        F (x) => (y) {{ y = Softmax<axis=1>(x) }}"""
    )
    if own < 13:
        with pytest.raises(ModelError, match="is written for operator set 11"):
            inline_functions(model)
    else:
        inline_functions(model)
        assert [node.op_type for node in model.graph] == ["Softmax"]


def test_what_a_body_draws_is_drawn_in_each_run():
    model = ir.from_onnx_text(
        """<ir_version: 10, opset_import: ["" : 21, "local" : 1]>
        g (float[2,3] x) => (float[2,3] y) { y = local.F(x) }
        <domain: "local", opset_import: ["" : 21]>
        F (x) => (y) {
            noise = RandomNormal<shape=[2, 3]>()
            shape = Shape(x)
            flat = Reshape(noise, shape)
            y = Add(x, flat)
        }"""
    )
    inline_functions(model)
    assert [node.op_type for node in model.graph] == ["RandomNormal", "Reshape", "Add"]

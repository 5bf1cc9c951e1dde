"""Elementwise functions of one input."""

from __future__ import annotations

import math

import numpy as np
import pytest

from ckplan.errors import UnsupportedOperatorsError
from tests.autodiff.gradcheck import (
    build_training_graph,
    check_gradient,
    check_training_graph,
    infer,
    node_model,
    onnxruntime_run,
    parse,
    reference,
    values,
)

X = values(3, 4)
INSIDE = values(3, 4, low=-0.9, high=0.9)
ABOVE = values(3, 4, low=0.2, high=3.0)


@pytest.mark.parametrize(
    ("op_type", "x", "attributes"),
    [
        ("Identity", X, {}),
        ("Relu", X, {}),
        ("LeakyRelu", X, {}),
        ("LeakyRelu", X, {"alpha": 0.3}),
        ("LeakyRelu", X, {"alpha": -0.3}),
        ("ThresholdedRelu", X, {}),
        ("ThresholdedRelu", X, {"alpha": -0.7}),
        ("Elu", X, {}),
        ("Elu", X, {"alpha": 0.4}),
        ("Elu", X, {"alpha": -0.4}),
        ("Selu", X, {}),
        ("Selu", X, {"alpha": 1.1, "gamma": 0.7}),
        ("HardSigmoid", 2 * X, {}),
        ("HardSigmoid", 2 * X, {"alpha": 0.31, "beta": 0.4}),
        ("HardSwish", 3 * X, {}),
        ("Sigmoid", X, {}),
        ("Tanh", X, {}),
        ("Softplus", X, {}),
        ("Softsign", X, {}),
        ("Mish", X, {}),
        ("Gelu", X, {}),
        ("Gelu", X, {"approximate": "tanh"}),
        ("Shrink", X, {}),
        ("Shrink", X, {"lambd": 1.1, "bias": 0.3}),
        ("Exp", X, {}),
        ("Log", ABOVE, {}),
        ("Sqrt", ABOVE, {}),
        ("Reciprocal", X, {}),
        ("Neg", X, {}),
        ("Abs", X, {}),
        ("Erf", X, {}),
        ("Sin", X, {}),
        ("Cos", X, {}),
        ("Tan", INSIDE, {}),
        ("Asin", INSIDE, {}),
        ("Acos", INSIDE, {}),
        ("Atan", X, {}),
        ("Sinh", X, {}),
        ("Cosh", X, {}),
        ("Asinh", X, {}),
        ("Acosh", ABOVE + 1, {}),
        ("Atanh", INSIDE, {}),
        ("Tanh", np.float64(0.3), {}),
        ("Relu", values(5), {}),
    ],
)
def test_gradient(op_type, x, attributes):
    check_gradient(node_model(op_type, x, **attributes))


@pytest.mark.parametrize("attributes", [{}, {"alpha": 1.7}])
def test_swish(attributes):
    # onnxruntime 1.31 knows opset 24's Swish by its function body only.
    check_gradient(node_model("Swish", X, opset=24, **attributes), torch=False, runtime=False)


@pytest.mark.parametrize("alpha", [1.0, 0.4, 2.5])
def test_celu(alpha):
    # ONNX defines Celu for float32 only, too coarse for finite differences.
    x = X.astype(np.float32)
    training = build_training_graph(infer(node_model("Celu", x, alpha=alpha)), wrt=["p0"])
    weight = next(v for v in training.model.graph.initializers.values() if v.name == "weight_y0").const_value.numpy()
    expected = weight * np.where(x > 0, 1, np.exp(x / alpha))
    np.testing.assert_allclose(reference(training.model)["p0_grad"], expected, rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(onnxruntime_run(training.model)["p0_grad"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("slope", [values(3, 4, seed=3), values(4, seed=3), values(3, 1, seed=3), np.array([0.25])])
def test_prelu(slope):
    check_gradient(node_model("PRelu", X, slope), torch=False)


def test_a_slope_that_stretches_its_input_is_refused():
    # onnxruntime stretches it all the same, where inference takes the result for as large as the input.
    text = "g (double[3,4] slope) => (double s) { y = PRelu(p0, slope) s = ReduceSum<keepdims = 0>(y) }"
    with pytest.raises(UnsupportedOperatorsError, match="its slope stretches its input"):
        build_training_graph(parse(text, p0=X[:, :1]), loss="s", wrt=["p0"])


@pytest.mark.parametrize(
    "limits", [(-0.8, 0.9), (-0.8, None), (None, 0.9), (-3.4e38, 0.9), (-0.8, 3.4e38), (None, None)]
)
def test_clip(limits):
    model = node_model("Clip", X, *(None if limit is None else np.float64(limit) for limit in limits))
    check_gradient(model, torch=False)


def test_clip_limits_are_settings_unless_they_are_named():
    model = infer(node_model("Clip", X, np.float64(-1), np.float64(1)))
    assert not {"p1", "p2"} & set(build_training_graph(model, loss="loss").gradients)
    assert list(build_training_graph(model, loss="loss", wrt=["p*"]).gradients) == ["p0", "p1", "p2"]


def test_clip_between_limits_in_the_wrong_order():
    """ONNX says that all of it becomes the upper limit then."""
    found = check_gradient(node_model("Clip", X, np.float64(1), np.float64(-1)))
    assert not found["p0"].any()
    assert not found["p1"].any()


def test_elements_at_a_limit_get_nothing():
    """As in torch's hardtanh; its clamp would let them pass."""
    found = check_gradient(
        node_model("Clip", np.asarray([-1.0, 0, 1]), np.float64(-1), np.float64(1)), differences=False, torch=False
    )
    assert found["p0"][[0, 2]].tolist() == [0, 0]
    assert found["p1"] > 0
    assert found["p2"] > 0


def gelu_and(nodes: str, approximate: str):
    """A training graph of a product, a GELU and what comes behind it, whose gradients are right."""
    gelu = f'h = MatMul(x, w) y = Gelu <approximate = "{approximate}"> (h)'
    text = f"g (double[6,3] x) => (double loss) {{ {gelu} {nodes} q = Mul(z, z) loss = ReduceSum <keepdims = 0> (q) }}"
    training = build_training_graph(parse(text, w=values(3, 4), v=values(4, 2, seed=2)), loss="loss")
    check_training_graph(training, {"x": values(6, 3, seed=8)})
    return training


@pytest.mark.parametrize(("approximate", "passes"), [("none", 8), ("tanh", 12)])
def test_the_gradient_of_gelu_takes_few_passes(approximate, passes):
    graph = gelu_and("z = MatMul(y, v)", approximate).model.graph
    name = next(node.name for node in graph if node.op_type == "Gelu")
    found = [node.op_type for node in graph if node.name.startswith(f"{name}/grad/")]
    assert len([op_type for op_type in found if op_type != "Reshape"]) == passes


@pytest.mark.parametrize("shape", [(6, 1024), (7,), (2, 521)])
def test_numbers_that_are_scaled_alike_lie_in_many_channels(shape):
    # A GPU works at all channels at a time, and at each with few threads.
    model = node_model("Gelu", values(*shape))
    graph = build_training_graph(infer(model), loss="loss").model.graph
    (scaled,) = (node for node in graph if node.op_type == "BatchNormalization")
    assert scaled.inputs[1].shape[0] == {6144: 512, 7: 7, 1042: 2}[math.prod(shape)]
    check_gradient(model)


def test_what_gelu_leaves_for_the_next_product_is_applied_where_another_gradient_is_added():
    gelu_and("t = Mul(h, h) r = Add(y, t) z = MatMul(r, v)", "none")


def test_the_mask_of_a_clip_stands_before_what_makes_the_gradient():
    text = "g () => (double loss) { y = Clip(p, low, high) z = MatMul(y, w) loss = ReduceSumSquare<keepdims=0>(z) }"
    arrays = {"p": values(6, 4, high=7.0), "w": values(4, 3), "low": np.float64(0), "high": np.float64(6)}
    training = build_training_graph(parse(text, **arrays), loss="loss", wrt=["p", "w"])
    names = [str(node.name) for node in training.model.graph]
    assert names.index("Clip_0/grad/Cast_0") < names.index("MatMul_1/grad/Gemm_1") < names.index("Clip_0/grad/Mul_0")
    check_training_graph(training)


@pytest.mark.parametrize(("low", "kinds"), [(0.0, ["And", "Cast", "Cast", "Greater", "Mul"]), (0.5, None)])
def test_what_is_not_zero_is_above_a_limit_of_zero(low: float, kinds: list[str] | None):
    model = node_model("Clip", np.asarray([-1.0, 0, 1, 6, 7]), np.float64(low), np.float64(6))
    found = check_gradient(model, differences=False, torch=False)
    assert found["p0"][[0, 1, 3, 4]].tolist() == [0] * 4
    assert found["p0"][2] != 0
    graph = build_training_graph(infer(model), loss="loss").model.graph
    compared = sorted(node.op_type for node in graph if str(node.name).startswith("node/grad/"))
    assert compared == (kinds or ["And", "Cast", "Greater", "Greater", "Mul"])

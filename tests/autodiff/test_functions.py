"""Operators without a rule that ONNX defines as functions of others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.registry import lookup
from tests.autodiff.gradcheck import (
    check_finite_differences,
    check_gradient,
    infer,
    node_model,
    reference,
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


@pytest.mark.parametrize("size", [[2, 3, 4, 5], [2, 3, 2, 3, 4]])
@pytest.mark.parametrize("align", [0, 1])
def test_affine_grid(size, align):
    """Its body asks, by If, how many axes there are."""
    axes = len(size) - 2
    theta = values(2, axes, axes + 1).astype(np.float32)
    model = node_model("AffineGrid", theta, np.asarray(size), align_corners=align)
    training = build_training_graph(infer(model), wrt=["p*"])
    # The operator gives float32, but the grid is linear in theta: long steps are exact.
    check_finite_differences(to_overridable(model), training, step=1.0, rtol=1e-5)


def test_a_body_computed_from_shapes_is_folded():
    training = build_training_graph(infer(node_model("Attention", *[values(1, 2, 3, 4)] * 3, opset=23)), wrt=["p*"])
    kinds = {node.op_type for node in training.model.graph}
    assert "Attention" not in kinds
    assert not {"Shape", "Constant", "Size"} & kinds
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

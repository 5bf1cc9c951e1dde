"""Operators without a rule that ONNX defines as functions of others."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.registry import lookup
from tests.autodiff.gradcheck import check_gradient, infer, node_model, onnxruntime_run, reference, slope, values


@pytest.mark.parametrize("axes", [(0, 2, 3), (1, 2)])
def test_mean_variance_normalization(axes):
    assert lookup("MeanVarianceNormalization", 21) is None
    # Its body is float32 in any case, too coarse for finite differences of itself.
    x = values(2, 3, 2, 2)
    training = build_training_graph(
        infer(node_model("MeanVarianceNormalization", x.astype(np.float32), axes=axes)), wrt=["p0"]
    )
    weight = training.model.graph.initializers["weight_y0"].const_value.numpy().astype(np.float64)
    direction = np.random.default_rng(0).standard_normal(x.shape)

    def loss(t: float) -> float:
        moved = x + t * direction
        centred = moved - moved.mean(axes, keepdims=True)
        return float((weight * centred / (np.sqrt((centred**2).mean(axes, keepdims=True)) + 1e-9)).sum())

    for found in (reference(training.model)["p0_grad"], onnxruntime_run(training.model)["p0_grad"]):
        assert float((found * direction).sum()) == pytest.approx(slope(loss), rel=1e-4)


@pytest.mark.parametrize("attributes", [{}, {"is_causal": 1}, {"scale": 0.3}])
def test_attention(attributes):
    assert lookup("Attention", 23) is None
    inputs = [values(1, 2, 3, 4, seed=seed) for seed in range(3)]
    # onnxruntime runs it through the same function body.
    check_gradient(node_model("Attention", *inputs, opset=23, **attributes), torch=False, runtime=False)


def test_a_body_computed_from_shapes_is_folded():
    training = build_training_graph(infer(node_model("Attention", *[values(1, 2, 3, 4)] * 3, opset=23)), wrt=["p*"])
    kinds = {node.op_type for node in training.model.graph}
    assert "Attention" not in kinds
    assert not {"Shape", "Constant", "Size"} & kinds
    assert all(node.metadata_props["pkg.ckplan.phase"] for node in training.model.graph)


def test_functions_off_the_path_stay():
    model = node_model("Mul", values(2, 3, 2, 2).astype(np.float32), values(2, 3, 2, 2, seed=1).astype(np.float32))
    model.graph.node[0].input[0] = "normal"
    model.graph.node.insert(0, onnx.helper.make_node("MeanVarianceNormalization", ["p0"], ["normal"], axes=[0, 2, 3]))
    training = build_training_graph(infer(model), wrt=["p1"])
    assert "MeanVarianceNormalization" in {node.op_type for node in training.model.graph}
    assert onnxruntime_run(training.model)["p1_grad"].shape == (2, 3, 2, 2)

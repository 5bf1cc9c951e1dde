"""Dropout."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import check_gradient, infer, node_model, onnxruntime_run, values


@pytest.mark.parametrize("rest", [[], [np.float64(0.3)], [np.float64(0.3), np.asarray(False)]])
def test_inference(rest):
    check_gradient(node_model("Dropout", values(4, 5), *rest), wrt=["p0"], idle=["p1"])


@pytest.mark.parametrize("outputs", [1, 2])
@pytest.mark.parametrize("ratio", [None, 0.3])
def test_training(ratio, outputs):
    share = 0.5 if ratio is None else ratio
    model = node_model("Dropout", np.ones((40, 50), np.float32), np.float32(share), np.asarray(True), outputs=outputs)
    if ratio is None:
        model.graph.node[0].input[1] = ""
    training = build_training_graph(infer(model), wrt=["p0"])
    weight = training.model.graph.initializers["weight_y0"].const_value.numpy()
    ran = onnxruntime_run(training.model)
    gradient = ran["p0_grad"]
    # Of ones, the loss is the sum of the gradient, if both used the same mask.
    assert float(ran["loss"].reshape(())) == pytest.approx(float(gradient.sum()), rel=1e-5)
    kept = gradient != 0
    np.testing.assert_allclose(gradient[kept], weight[kept] / (1 - share), rtol=1e-5)
    assert kept.mean() == pytest.approx(1 - share, abs=0.06)

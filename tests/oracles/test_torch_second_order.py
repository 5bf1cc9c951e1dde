"""Products of Hessian and vector of whole networks against torch's double backward pass."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

pytest.importorskip("torch", reason="comparison with torch.autograd needs torch; install ckplan[oracle]")

import torch

from ckplan.autodiff import build_training_graph
from ckplan.meter.inputs import make_inputs
from ckplan.model import normalise
from sample_models.catalogue import SMALL
from tests.autodiff.gradcheck import onnxruntime_run
from tests.oracles.torch_oracle import forward_of, torch_products

SLOW = ["densenet_tiny", "mobilenet_tiny", "unet_tiny", "tanh_chain"]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] if n in SLOW else []) for n in SMALL])
def test_product_of_the_hessian_and_a_vector(name: str) -> None:
    training = build_training_graph(normalise(ir.from_proto(SMALL[name]())).model)
    second = build_training_graph(training.model, grad_ys=list(training.gradients.values()))
    feeds = {key: np.asarray(array) for key, array in make_inputs(training.model).arrays.items()}
    rng = np.random.default_rng(3)
    vector = {}
    for parameter in training.gradients:
        tensor = training.model.graph.initializers[parameter].const_value
        assert tensor is not None
        weight = tensor.numpy()
        vector[parameter] = np.asarray(rng.standard_normal(weight.shape) * np.abs(weight).mean(), np.float32)
    expected = torch_products(forward_of(training), feeds, training.loss, vector, torch.float64)
    given = {f"{training.gradients[parameter]}_given_grad": array for parameter, array in vector.items()}
    found = onnxruntime_run(second.model, {**feeds, **given})
    size = np.sqrt(sum(float((array**2).sum()) for array in expected.values()))
    for parameter, array in expected.items():
        gradient = found[second.gradients[parameter]] if parameter in second.gradients else np.zeros_like(array)
        assert np.abs(gradient - array).max() < 1e-5 * size, parameter

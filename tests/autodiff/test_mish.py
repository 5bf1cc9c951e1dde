"""Mish, written as one node or as three, differentiated as one."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import onnxruntime_run
from tests.autodiff.test_silu import kept

THREE = "s = Softplus(h) t = Tanh(s)"


@pytest.mark.parametrize(
    "nodes",
    ["y = Mish(h)", f"{THREE} y = Mul(h, t)", f"{THREE} y = Mul(t, h)"],
    ids=["one node", "three", "the other way round"],
)
def test_its_input_and_its_result_are_kept_and_nothing_in_between(nodes: str) -> None:
    assert kept(nodes)[:3] == ["MatMul", "Mul", "MatMul"]


def test_what_is_read_inside_is_differentiated_node_by_node() -> None:
    assert "Tanh" in kept(f"{THREE} r = Mul(h, t) y = Add(r, t)")


@pytest.mark.parametrize("x", [-1e30, -80, -20, -1e-3, 0, 1e-3, 5, 18.9, 19.1, 30, 1e30, np.inf])
def test_at_the_ends_of_single_precision(x: float) -> None:
    """Where the fraction is 1 the derivative is, and where it is 0 nothing is left of x."""
    model = onnx.parser.parse_model(
        """<ir_version: 8, opset_import: ["": 18]> g (float[1] x) => (float loss)
        { y = Mish(x) loss = ReduceSum <keepdims = 0> (y) }"""
    )
    forward = ir.serde.deserialize_model(onnx.shape_inference.infer_shapes(model))
    training = build_training_graph(forward, loss="loss", wrt=["x"])
    found = onnxruntime_run(training.model, {"x": np.array([x], np.float32)})
    wide = np.clip(x, -200, 200)
    t = np.tanh(np.logaddexp(0, wide))
    np.testing.assert_allclose(found["x_grad"], [t + wide * (1 - t**2) / (1 + np.exp(-wide))], atol=3e-7)
    if np.isfinite(x):
        np.testing.assert_allclose(found["loss"], x * t, rtol=1e-6, atol=1e-7)

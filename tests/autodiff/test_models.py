"""Whole networks: the nine models that come with onnx, and half precision."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.model import load
from tests.autodiff.gradcheck import onnxruntime_run, parse, reference, values

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
NAMES = [
    "bvlc_alexnet",
    "densenet121",
    "inception_v1",
    "inception_v2",
    "resnet50",
    "shufflenet",
    "squeezenet",
    "vgg19",
    "zfnet512",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_weight_of_a_light_model_gets_a_gradient(name):
    forward = load(LIGHT / f"light_{name}.onnx").model
    training = build_training_graph(forward)
    statistics = {
        value.name for node in forward.graph if node.op_type == "BatchNormalization" for value in node.inputs[3:]
    }
    floating = {
        value.name
        for value in forward.graph.initializers.values()
        if value.dtype.is_floating_point() and value.shape.rank() > 0
    }
    assert set(training.gradients) == floating - statistics
    onnx.checker.check_model(ir.to_proto(training.model), full_check=True)


def test_a_light_model_against_torch():
    pytest.importorskip("torch", reason="torch is not installed; it is in ckplan's `oracle` extra")
    from tests.oracles.torch_oracle import forward_of, torch_gradients

    model = load(LIGHT / "light_squeezenet.onnx").model
    rng = np.random.default_rng(0)
    for value in model.graph.initializers.values():
        if value.dtype.is_floating_point():
            # The file's weights are all equal; He's scale keeps the activations in range.
            fan_in = max(int(np.prod(value.shape[1:])), 1)
            array = rng.standard_normal(value.shape.numpy()) * np.sqrt(2 / fan_in) * (value.shape.rank() > 1)
            value.const_value = ir.Tensor(array.astype(np.float32), name=value.name)
    training = build_training_graph(model)
    assert "cross-entropy of the logits" in training.description
    feeds = {
        "data_0": rng.standard_normal((1, 3, 224, 224)).astype(np.float32),
        "labels": np.asarray([7]),
    }
    ran = onnxruntime_run(training.model, feeds)
    loss, expected = torch_gradients(forward_of(training), feeds, training.loss, list(training.gradients))
    assert float(ran[training.loss]) == pytest.approx(loss, rel=1e-5)
    for name, gradient in expected.items():
        difference = np.linalg.norm(ran[training.gradients[name]] - gradient)
        # Signs of ReLU may flip at float32's precision, so the norm is compared.
        assert difference <= 1e-3 * np.linalg.norm(gradient), name


def test_half_precision():
    text = """g (float16[6,3] x) => (float16[6,5] y) {
        a = MatMul(x, w)
        b = Gelu(a)
        c = Clip(b, low)
        y = Mul(c, c)
    }"""
    weights = {"w": values(3, 5).astype(np.float16), "low": np.float16(-0.1)}
    training = build_training_graph(parse(text, **weights), loss="cross-entropy")
    gradient = next(value for value in training.model.graph.outputs if value.name == "w_grad")
    assert gradient.dtype == ir.DataType.FLOAT16
    double = build_training_graph(
        parse(text.replace("float16", "double"), **{k: v.astype(np.float64) for k, v in weights.items()}),
        loss="cross-entropy",
    )
    x, labels = values(6, 3, seed=8), np.asarray([0, 4, 2, 2, 1, 3])
    expected = reference(double.model, {"x": x, "labels": labels})["w_grad"]
    ran = onnxruntime_run(training.model, {"x": x.astype(np.float16), "labels": labels})["w_grad"]
    np.testing.assert_allclose(ran.astype(np.float64), expected, atol=2e-2 * np.abs(expected).max())

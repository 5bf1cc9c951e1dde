"""Lengths of weights that torch's old exporter computed beforehand."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from tests.model.models import normal, parse, run
from tests.model.torch_files import loaded

WEIGHT = normal(1, 3, 4)
X, TARGET = normal(2, 2, 4), normal(3, 2, 3)
TOLD = "'onnx::Clip_7' of 'head.weight': computed by torch's exporter, and in the step again"


def classifier(lengths: np.ndarray, opset: int = 17) -> onnx.ModelProto:
    """A linear layer of three classes whose weight is divided by its lengths, as the old exporter writes it."""
    text = f"""<ir_version: 8, opset_import: ["": {opset}]> g (float[2,4] x) => (float[2,3] y) {{
        far = Clip("onnx::Clip_7", least) wide = Expand(far, shape)
        rows = Div("head.weight", wide) turned = Transpose <perm = [1, 0]> (rows) y = MatMul(x, turned)
    }}"""
    arrays = {"head.weight": WEIGHT, "onnx::Clip_7": lengths, "least": np.asarray(1e-12, np.float32)}
    model = parse(text, {**arrays, "shape": np.asarray([3, 4])})
    model.producer_name = "pytorch"
    return model


@pytest.mark.parametrize("opset", [12, 17, 18])
@pytest.mark.parametrize("order", [1, 2])
def test_gradients_are_those_of_the_module(order: int, opset: int) -> None:
    torch = pytest.importorskip("torch")
    model = classifier(np.linalg.norm(WEIGHT, order, axis=1, keepdims=True), opset)
    forward, notes = loaded(model)
    assert TOLD in notes
    np.testing.assert_allclose(run(forward, {"x": X})[0], run(model, {"x": X})[0], rtol=1e-5, atol=1e-6)

    step = ckplan.open_model(model, loss="mse:y")
    assert list(step.training.gradients) == ["head.weight"]
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    (found,) = session.run([step.training.gradients["head.weight"]], {"x": X, "target": TARGET})
    weight = torch.tensor(WEIGHT, requires_grad=True)
    y = torch.from_numpy(X) @ torch.nn.functional.normalize(weight, p=order).T
    torch.nn.functional.mse_loss(y, torch.from_numpy(TARGET)).backward()
    np.testing.assert_allclose(found, weight.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_other_numbers_stay_as_they_are() -> None:
    lengths = 1.01 * np.linalg.norm(WEIGHT, axis=1, keepdims=True).astype(np.float32)
    _, notes = loaded(classifier(lengths))
    assert TOLD not in notes

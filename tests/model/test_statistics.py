"""Running statistics that a tool merged with scales and shifts of equal values."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.training.export import with_weights
from tests.model.models import normal, parse, run, write
from tests.model.torch_files import loaded

NORMALISED = """<ir_version: 10, opset_import: ["": 21]> g (float[3,4,2] x) => (float[3,4,2] y) {
    h = BatchNormalization(x, ones, zeros, zeros, ones)
    t = Tanh(h)
    y = BatchNormalization(t, ones, zeros, zeros, ones)
}"""
MERGED = {"ones": np.ones(4, np.float32), "zeros": np.zeros(4, np.float32)}


def test_gradients_of_scales_have_no_part_through_the_statistics() -> None:
    torch = pytest.importorskip("torch")
    model = parse(NORMALISED, MERGED)
    told = "2 running statistic(s) that a tool merged with other tensors ('zeros', 'ones') are apart again"
    assert told in loaded(model)[1]
    step = ckplan.open_model(model, loss="mse")
    x, target = normal(0, 3, 4, 2), normal(1, 3, 4, 2)
    gradients = step.training.gradients
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    found = dict(zip(gradients, session.run(list(gradients.values()), {"x": x, "target": target}), strict=True))

    scale, shift = (torch.tensor(MERGED[name], requires_grad=True) for name in ("ones", "zeros"))
    mean, variance = (torch.tensor(MERGED[name]) for name in ("zeros", "ones"))
    norm = torch.nn.functional.batch_norm
    made = norm(torch.tanh(norm(torch.tensor(x), mean, variance, scale, shift)), mean, variance, scale, shift)
    torch.nn.functional.mse_loss(made, torch.tensor(target)).backward()
    assert sorted(found) == ["ones", "zeros"]
    np.testing.assert_allclose(found["ones"], scale.grad.numpy(), rtol=1e-5)
    np.testing.assert_allclose(found["zeros"], shift.grad.numpy(), rtol=1e-5)


def test_a_trained_scale_leaves_the_statistics_alone(tmp_path: Path) -> None:
    path, x = write(parse(NORMALISED, MERGED), tmp_path), normal(0, 3, 4, 2)
    trained = with_weights(path, {"ones": np.full(4, 2, np.float32)})
    np.testing.assert_allclose(run(trained, {"x": x})[0], 2 * np.tanh(2 * x), rtol=1e-4)


def test_statistics_that_nothing_else_reads_stay() -> None:
    names = NORMALISED.replace("ones, zeros, zeros, ones", "w, b, m, v")
    assert "statistic" not in loaded(parse(names, {name: np.abs(normal(0, 4)) for name in "wbmv"}))[1]


def test_what_was_computed_of_merged_ones_is_told() -> None:
    """As an instance norm repeats scale and variance for each sample."""
    nodes = "r = Mul(ones, half) y = BatchNormalization(x, r, zeros, m, r)"
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[3,4,2] x) => (float[3,4,2] y) {{ {nodes} }}'
    arrays = {"half": np.full(4, 0.5, np.float32), "m": np.zeros(4, np.float32)}
    notes = loaded(parse(text, MERGED | arrays))[1]
    assert "one computed tensor is both a scale or shift and a running statistic" in notes

"""Weights that a file holds twice, once moved."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from tests.model.models import normal, parse, run
from tests.model.torch_files import add_source, exported, loaded

WEIGHT = normal(7, 6, 4)
TWICE = 'h = MatMul(x, "{}") y = MatMul(h, "{}")'
KERNEL = (
    'h = MatMul(x, "{}") u = Unsqueeze(h, two) c = Conv(u, "{}") y = Squeeze(c, two)'  # samples, channels, one place
)
FORMS = {
    "named": (TWICE, "a.w", WEIGHT.T, WEIGHT),
    "numbered": (TWICE, "onnx::MatMul_3", WEIGHT.T, WEIGHT),
    "kernel": (KERNEL, "onnx::MatMul_3", WEIGHT.T, WEIGHT.T[..., None]),
    "square kernel": (KERNEL, "onnx::MatMul_3", WEIGHT[:4], WEIGHT[:4, :, None]),
}


@pytest.mark.parametrize(
    "copied", ["onnx::MatMul_4", "t", "permute_1", "Transpose.1", "p2o.pd_op.transpose.0.0", "head/transpose_1:0"]
)
@pytest.mark.parametrize("form", FORMS)
def test_a_moved_copy_is_computed_of_the_weight(form: str, copied: str) -> None:
    torch = pytest.importorskip("torch")
    nodes, name, first, second = FORMS[form]
    nodes = nodes.format(name, copied)
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y) {{ {nodes} }}'
    model = parse(text, {name: first, copied: second, "two": np.array([2])})
    forward, notes = loaded(model)
    assert f"'{copied}' is '{name}'" in notes
    x, target = normal(0, 2, 4), normal(1, 2, 4)
    np.testing.assert_allclose(run(forward, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-5)

    step = ckplan.open_model(model, loss="mse")
    assert set(step.training.gradients) == {name}
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    (found,) = session.run(list(step.training.gradients.values()), {"x": x, "target": target})
    w = torch.tensor(first, requires_grad=True)
    torch.nn.functional.mse_loss(torch.from_numpy(x) @ w @ w.T, torch.from_numpy(target)).backward()
    np.testing.assert_allclose(found, w.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_what_is_of_a_buffer_that_was_copied_of_a_weight_is_not_the_weight() -> None:
    """A teacher that follows a network begins as a copy of it, and gets no gradient."""
    model = exported(
        TWICE.format("w", "permute"),
        {"w": WEIGHT.T, "permute": WEIGHT},
        {"p_w": ("PARAMETER", "w"), "b_ema": ("BUFFER", "ema")},
        ["aten.mm](args = (%x, %p_w))", "aten.mm](args = (%mm, %permute))"],
    )
    add_source(model, "permute", "ema")
    _, notes = loaded(model)
    assert "are one again" not in notes
    assert set(ckplan.open_model(model, loss="mse").training.gradients) == {"w"}


def test_a_copy_of_the_same_shape_stays() -> None:
    """Layers begin as copies of others, and are trained apart."""
    square = normal(3, 4, 4)
    nodes = TWICE.format("onnx::MatMul_3", "onnx::MatMul_4")
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y) {{ {nodes} }}'
    model = parse(text, {"onnx::MatMul_3": square, "onnx::MatMul_4": square.copy()})
    assert set(ckplan.open_model(model, loss="mse").training.gradients) == {"onnx::MatMul_3", "onnx::MatMul_4"}


@pytest.mark.parametrize(
    ("names", "second", "told"),
    [
        (("const_0", "const_2"), WEIGHT[:4], True),
        (("const_0", "const_2"), 2 * WEIGHT[:4], False),
        (("first.weight", "second.weight"), WEIGHT[:4], False),
    ],
)
def test_nameless_weights_of_the_same_numbers_are_told(names: tuple[str, str], second: np.ndarray, told: bool) -> None:
    """They may be one weight that is read twice, or layers that begin alike."""
    text = '<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y) {{ {} }}'
    model = parse(text.format(TWICE.format(*names)), dict(zip(names, (WEIGHT[:4], second), strict=True)))
    step = ckplan.open_model(model, loss="mse")
    assert set(step.training.gradients) == set(names)
    assert any("hold the numbers of another ('const_2' as 'const_0')" in note for note in step.notes) is told


def test_nameless_constants_of_the_same_numbers_are_not_told() -> None:
    """The note called constants trained, as those of an RT-DETR of torch's old exporter."""
    text = """<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y)
    { h = MatMul(x, weight) t = Mul(h, const_0) y = Add(t, const_2) }"""
    scale = normal(3, 2, 4)
    step = ckplan.open_model(
        parse(text, {"weight": WEIGHT[:4], "const_0": scale, "const_2": scale.copy()}), loss="mse", wrt=["weight"]
    )
    assert set(step.training.gradients) == {"weight"}
    assert not any("hold the numbers of another" in note for note in step.notes)


def test_places_of_a_grid_are_no_weights_that_the_file_holds_twice() -> None:
    """A grid is spread of the same few whole numbers along one axis and along the other."""
    nodes = "h = MatMul(x, w) a = Add(h, const_0) y = Add(a, const_2)"
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[4,4] x) => (float[4,4] y) {{ {nodes} }}'
    along = np.arange(4, dtype=np.float32)
    model = parse(text, {"w": WEIGHT[:4], "const_0": along[None], "const_2": along[:, None]})
    assert not any("are one again" in note for note in ckplan.open_model(model, loss="mse").notes)

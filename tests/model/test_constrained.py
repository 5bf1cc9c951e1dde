"""What torch's exporters computed of a parameter that is not in the file, where the values show how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.training.export import with_weights
from tests.model.models import normal, parse, run
from tests.model.torch_files import FOLDED, add_source, exported, loaded

PARAMETER = normal(7, 4, 4)
FORMS: dict[str, Callable[[Any], Any]] = {
    "symmetric": lambda w: w + w.T,
    "antisymmetric": lambda w: w - w.T,
    "probabilities": lambda w: w.softmax(-1),
    "columns": lambda w: w.softmax(0),
}


def older(made: np.ndarray, name: str = "onnx::MatMul_6") -> onnx.ModelProto:
    """As the exporter before writes it: the result under a number."""
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y) {{ y = MatMul(x, "{name}") }}'
    model = parse(text, {name: made})
    model.producer_name = "pytorch"
    return model


def newer(made: np.ndarray, name: str = "made") -> onnx.ModelProto:
    """As the default exporter writes it, with what it was computed of."""
    model = exported(f"y = MatMul(x, {name})", {name: made}, {"p_a_w": ("PARAMETER", "a.w")}, ["aten.mm"])
    add_source(model, name, "a.w")
    return model


@pytest.mark.parametrize("exporter", [older, newer])
@pytest.mark.parametrize("form", FORMS)
def test_the_gradient_is_that_of_the_parameter(form: str, exporter: Callable[[np.ndarray], onnx.ModelProto]) -> None:
    torch = pytest.importorskip("torch")
    w = torch.tensor(PARAMETER, requires_grad=True)
    model = exporter(FORMS[form](w).detach().numpy())
    forward, notes = loaded(model)
    assert form.replace("columns", "probabilities") in notes
    x, target = normal(0, 2, 4), normal(1, 2, 4)
    np.testing.assert_allclose(run(forward, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-5)

    step = ckplan.open_model(model, loss="mse")
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    (found,) = session.run(list(step.training.gradients.values()), {"x": x, "target": target})
    torch.nn.functional.mse_loss(torch.from_numpy(x) @ FORMS[form](w), torch.from_numpy(target)).backward()
    np.testing.assert_allclose(found, w.grad.numpy(), rtol=1e-4, atol=1e-6)
    assert not any("may be constants" in note for note in step.notes)


NAMED: dict[str, tuple[list[str], Callable[[Any], Any]]] = {
    "unsqueeze_3": (["exp", "neg", "unsqueeze_2", "val_25"], lambda w: -w.exp()),
    "exp_1": (["neg"], lambda w: (-w).exp()),
    "view": (["exp"], lambda w: w.exp()),
    "sigmoid": ([], lambda w: w.sigmoid()),
    "tanh": ([], lambda w: w.tanh()),
    "softplus": (["beta", "softplus_2", "tmp", "tmp_1", "threshold_cast"], lambda w: w.exp().log1p()),
}


def of_named(name: str, made: np.ndarray, ways: list[str]) -> onnx.ModelProto:
    """A scale that was computed of a parameter by operations of these names."""
    model = exported(f"y = Mul(x, {name})", {name: made}, {"p_a_w": ("PARAMETER", "a.w")}, ["aten.mul"])
    add_source(model, name, "a.w")
    info = next(one for one in model.graph.value_info if one.name == name)
    next(one for one in info.metadata_props if one.key == FOLDED).value = repr(sorted(["a.w", *ways]))
    return model


@pytest.mark.parametrize("name", NAMED)
@pytest.mark.parametrize("size", [4, 1])
def test_names_of_operations_tell_the_parameter(name: str, size: int) -> None:
    """As of the decay of a state space, or of a gate."""
    torch = pytest.importorskip("torch")
    ways, function = NAMED[name]
    w = torch.tensor(PARAMETER[0, :size], requires_grad=True)
    model = of_named(name, function(w).detach().numpy(), ways)
    step = ckplan.open_model(model, loss="mse")
    assert set(step.training.gradients) == {f"{name}_free"}
    np.testing.assert_allclose(
        step.training.model.graph.initializers[f"{name}_free"].const_value.numpy(),
        w.detach().numpy(),
        rtol=1e-5,
        atol=1e-6,
    )
    x, target = normal(0, 2, 4), normal(1, 2, 4)
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    (found,) = session.run(list(step.training.gradients.values()), {"x": x, "target": target})
    torch.nn.functional.mse_loss(torch.from_numpy(x) * function(w), torch.from_numpy(target)).backward()
    np.testing.assert_allclose(found, w.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("ways", [["exp", "exp_1", "neg"], ["exp", "mul"], []], ids=["twice", "scaled", "unnamed"])
def test_other_names_tell_nothing(ways: list[str]) -> None:
    model = of_named("view_2", np.exp(PARAMETER[0]), ways)
    assert set(ckplan.open_model(model, loss="mse").training.gradients) == {"view_2"}


def almost(array: np.ndarray) -> np.ndarray:
    changed = array.copy()
    changed[0, 1] *= 1.001
    return changed


@pytest.mark.parametrize(
    "made",
    [PARAMETER, almost(PARAMETER + PARAMETER.T), np.full((4, 4), 0.25, np.float32), np.eye(4, dtype=np.float32)],
    ids=["weight", "almost symmetric", "means", "identity"],
)
def test_other_matrices_stay(made: np.ndarray) -> None:
    assert set(loaded(older(made))[0].graph.initializers) == {"onnx::MatMul_6"}


def test_one_number_is_no_symmetric_matrix() -> None:
    """As the slope of an `nn.PReLU()`, which the exporter gives the rank of what it is multiplied by."""
    arrays, line = {"val_1": np.full((1, 1), 0.25, np.float32)}, "aten.prelu.default](args = (%x, %p_1_weight))"
    model = exported("y = PRelu(x, val_1)", arrays, {"p_1_weight": ("PARAMETER", "1.weight")}, [line])
    add_source(model, "val_1", "1.weight", "val_0")
    assert set(ckplan.open_model(model, loss="mse").training.gradients) == {"val_1"}


def test_what_has_a_name_of_its_own_stays() -> None:
    assert set(loaded(older(PARAMETER + PARAMETER.T, "a.w"))[0].graph.initializers) == {"a.w"}


def test_a_trained_parameter_is_computed_with_in_the_exported_file(tmp_path: Path) -> None:
    onnx.save(older(PARAMETER + PARAMETER.T), tmp_path / "model.onnx")
    new, x = normal(9, 4, 4), normal(0, 2, 4)
    found = run(with_weights(tmp_path / "model.onnx", {"onnx::MatMul_6_free": new}), {"x": x})[0]
    np.testing.assert_allclose(found, x @ (new + new.T), rtol=1e-5)

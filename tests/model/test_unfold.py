"""What torch's exporter computed of parameters that are in the file as well."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.training.export import with_weights
from tests.model.models import normal, run
from tests.model.test_torch_export import exported, loaded

FOLDED = "pkg.onnxscript.optimizer.folded_from"
FUNCTIONS = {
    "sub_5": lambda x: 1 - x,
    "add_1": lambda x: 1 + x,
    "neg": lambda x: -x,
    "reciprocal": lambda x: 1 / x,
    "exp": np.exp,
    "neg_2": lambda x: -np.exp(x),
    "sqrt": np.sqrt,
    "pow_1": lambda x: x * x,
}


def mixed(name: str, values: np.ndarray, parameter: np.ndarray, source: str = "a.mix") -> onnx.ModelProto:
    """As of a time mix: x times a parameter, plus its square times what was computed of the parameter."""
    model = exported(
        f"h = Mul(x, a.mix) s = Mul(x, x) t = Mul(s, {name}) y = Add(h, t)",
        {"a.mix": parameter, name: values.astype(np.float32)},
        {"p_a_mix": ("PARAMETER", "a.mix"), "p_a_gone": ("PARAMETER", "a.gone")},
        [
            "aten.mul](args = (%x, %p_a_mix))",
            "aten.mul](args = (%x, %x))",
            f"aten.mul](args = (%s, %{name}))",
            "aten.add",
        ],
    )
    info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, values.shape)
    info.metadata_props.add(key=FOLDED, value=f"['{source}', 'val_1']")
    model.graph.value_info.append(info)
    return model


PARAMETER = np.abs(normal(3, 4)) + np.float32(0.5)


@pytest.mark.parametrize("name", FUNCTIONS)
def test_it_is_computed_again_and_has_a_gradient(name: str) -> None:
    torch = pytest.importorskip("torch")
    model = mixed(name, FUNCTIONS[name](PARAMETER), PARAMETER)
    forward, notes = loaded(model)
    assert f"'{name}' of 'a.mix': computed by torch's exporter, and in the step again" in notes
    assert set(forward.graph.initializers) <= {"a.mix", "one"}
    x = normal(0, 2, 4)
    np.testing.assert_allclose(run(forward, {"x": x})[0], run(model, {"x": x})[0], rtol=1e-6)

    step = ckplan.open_model(model, loss="mse")
    assert set(step.training.gradients) == {"a.mix"}
    target = normal(1, 2, 4)
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    found = session.run(list(step.training.gradients.values()), {"x": x, "target": target})[0]
    mix = torch.tensor(PARAMETER, requires_grad=True)
    values = {"exp": torch.exp, "neg_2": lambda p: -torch.exp(p), "sqrt": torch.sqrt}.get(name, FUNCTIONS[name])(mix)
    read = torch.from_numpy(x)
    torch.nn.functional.mse_loss(read * mix + read * read * values, torch.from_numpy(target)).backward()
    np.testing.assert_allclose(found, mix.grad.numpy(), rtol=1e-5, atol=1e-6)


def test_equal_values_are_told_apart_by_torch_s_name() -> None:
    ones = np.ones(4, np.float32)
    assert "in the step again" in loaded(mixed("reciprocal", ones, ones))[1]
    assert "in the step again" not in loaded(mixed("view", ones, ones))[1]


def test_what_is_not_known_is_noted() -> None:
    _, notes = loaded(mixed("mul_3", np.sin(PARAMETER), PARAMETER))
    assert "1 tensor(s) were computed by torch's exporter of parameters" in notes
    assert "'mul_3' of 'a.mix'; their gradients lack that part" in notes


def test_all_parameters_whose_gradients_lack_a_part_are_named() -> None:
    """As of the first step of a recurrent cell that begins with learnt states, in a file with a fixed batch."""
    weight, bias, state = normal(0, 4, 4), normal(1, 4), normal(2, 4)
    first = np.tile(state @ weight + bias, (2, 1))
    model = exported(
        "m = MatMul(x, weight) b = Add(m, r.bias) y = Add(b, linear)",
        {"weight": weight, "r.bias": bias, "linear": first},
        {"p_w": ("PARAMETER", "r.weight"), "p_b": ("PARAMETER", "r.bias"), "p_s": ("PARAMETER", "state")},
        ["aten.mm](args = (%x, %p_w))", "aten.add](args = (%m, %p_b))", "aten.add](args = (%b, %linear))"],
    )
    info = onnx.helper.make_tensor_value_info("linear", onnx.TensorProto.FLOAT, first.shape)
    info.metadata_props.add(key=FOLDED, value="['expand', 'r.bias', 'r.weight', 'state']")
    model.graph.value_info.append(info)
    notes = loaded(model)[1]
    assert "'linear' of 'r.bias' and 'r.weight'; their gradients lack that part" in notes
    assert "('state')" in notes


def test_what_is_left_of_a_parameter_stands_for_it() -> None:
    step = ckplan.open_model(mixed("neg", -normal(5, 4), PARAMETER, source="a.gone"), loss="mse")
    assert set(step.training.gradients) == {"a.mix", "neg"}
    assert any("'neg' of 'a.gone'" in note for note in step.notes)


def test_a_trained_parameter_is_computed_with_in_the_exported_file(tmp_path: Path) -> None:
    onnx.save(mixed("sub_5", 1 - PARAMETER, PARAMETER), tmp_path / "model.onnx")
    new, x = PARAMETER * 3, normal(0, 2, 4)
    found = run(with_weights(tmp_path / "model.onnx", {"a.mix": new}), {"x": x})[0]
    np.testing.assert_allclose(found, x * new + x * x * (1 - new), rtol=1e-6)


@pytest.mark.parametrize("row", [PARAMETER, np.zeros(4, np.float32)], ids=["numbers", "zeros"])
def test_a_bias_that_was_repeated_is_expanded(row: np.ndarray) -> None:
    """The first step of a recurrent cell: of zeros times a weight, plus a bias, the bias is left."""
    model = mixed("linear_2", np.tile(row, (2, 1)), row)
    forward, _ = loaded(model)
    assert ("linear_2" in forward.graph.initializers) == (not row.any())
    x = normal(0, 2, 4)
    np.testing.assert_array_equal(run(forward, {"x": x})[0], run(model, {"x": x})[0])


def test_what_only_resembles_a_repeated_bias_stays() -> None:
    values = np.tile(PARAMETER, (2, 1))
    values[1, 3] += 1
    assert "linear_2" in loaded(mixed("linear_2", values, PARAMETER))[0].graph.initializers

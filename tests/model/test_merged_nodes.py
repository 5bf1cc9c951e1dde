"""Nodes that torch's default exporter merged along with the equal parameters that they read."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.model.models import normal
from tests.model.torch_files import gradients, in_modules

WEIGHT = normal(0, 8, 4)
READ = ("x", "mm", "mm_1", "mm_2")


def projections(listed: tuple[str, ...] = ("a.w", "b.w")) -> onnx.ModelProto:
    """As of attention across sequences, which reads parts of one weight."""
    return in_modules(
        "p, q = Split <num_outputs=2> (a.w) mm = MatMul(x, p) mm_1 = MatMul(mm, q) mm_2 = MatMul(mm_1, p) "
        "y = MatMul(mm_2, q)",
        ["", *(f"aten.mm](args = (%{read}, %getitem_{number}))" for number, read in enumerate(READ))],
        ["", "a", "a", "b", "b"],
        {"a.w": WEIGHT},
        listed,
    )


def heads(read: str, weight: np.ndarray, made: str = "relu") -> onnx.ModelProto:
    """Two modules that begin alike and read the same; the second goes on with what it made."""
    return in_modules(
        f"mm = MatMul(x, a.w) {made} = Relu(mm) tanh = Tanh({made}) y = Add({made}, tanh)",
        ["aten.mm](args = (%x, %p_a_w))", "aten.relu](args = (%mm,))", f"aten.tanh](args = (%{read},))",
         "aten.add](args = (%relu, %tanh))"],
        ["a", "a", "b.act", ""],
        {"a.w": weight},
        ("a.w", "b.w"),
    )  # fmt: skip


def test_parts_of_equal_weights_are_read_from_the_weight_of_each_module() -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.tensor(WEIGHT, requires_grad=True) for _ in range(2))
    made = torch.from_numpy(normal(1, 2, 4)) @ a[:4] @ a[4:] @ b[:4] @ b[4:]
    torch.nn.functional.mse_loss(made, torch.from_numpy(normal(2, 2, 4))).backward()
    found = gradients(projections())
    assert set(found) == {"a.w", "b.w"}
    for name, expected in (("a.w", a), ("b.w", b)):
        np.testing.assert_allclose(found[name], expected.grad.numpy(), rtol=1e-4, atol=1e-6)


def test_a_weight_that_two_modules_share_stays_one() -> None:
    """Of such ones the program reads the last that is listed, and a merged one is the first."""
    assert set(gradients(projections(listed=("b.w", "a.w")))) == {"a.w"}


@pytest.mark.parametrize("weight", [normal(3, 4, 4), np.zeros((4, 4), np.float32)], ids=["numbers", "zeros"])
def test_what_two_modules_made_of_one_input_is_made_of_the_weight_of_each(weight: np.ndarray) -> None:
    torch = pytest.importorskip("torch")
    a, b = (torch.tensor(weight, requires_grad=True) for _ in range(2))
    x = torch.from_numpy(normal(1, 2, 4))
    made = (x @ a).relu() + (x @ b).relu().tanh()
    torch.nn.functional.mse_loss(made, torch.from_numpy(normal(2, 2, 4))).backward()
    found = gradients(heads("relu_1", weight))
    assert set(found) == {"a.w", "b.w"}
    for name, expected in (("a.w", a), ("b.w", b)):
        np.testing.assert_allclose(found[name], expected.grad.numpy(), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(("read", "made"), [("relu", "relu"), ("made", "val_3")], ids=["by its name", "by its line's"])
def test_what_a_line_names_was_made_for_it(read: str, made: str) -> None:
    """Of several nodes of a line the last has a number for a name, where the optimiser removed one behind it."""
    assert set(gradients(heads(read, normal(3, 4, 4), made))) == {"a.w"}


def test_a_layer_that_a_norm_was_folded_into_reads_what_it_read_before() -> None:
    """Its line is that of the norm, which names what the layer made, and its weight is the module's no more."""
    arrays = {"neck.0.w": normal(0, 4, 4), "head.0.w": normal(1, 4, 4), "head.0.w_bias": normal(2, 4)}
    model = in_modules(
        "mm = MatMul(x, neck.0.w) y = Gemm(mm, head.0.w, head.0.w_bias)",
        ["aten.mm](args = (%x, %p_neck_0_w))",
         "aten._native_batch_norm_legit_no_training.default](args = (%mm_1, %p_head_1_w, %p_head_1_b, %mean, %var))"],
        ["neck.0", "head.1"],
        arrays,
        ("neck.0.w", "head.0.w", "head.1.w", "head.1.b"),
    )  # fmt: skip
    for folded in [one for one in model.graph.value_info if one.name == "head.0.w"]:
        model.graph.value_info.remove(folded)
    assert set(gradients(model)) == set(arrays)

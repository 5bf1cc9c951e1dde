"""Weights into which torch's exporter multiplied a mask, and those that it padded."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from tests.model.models import normal, parse, run
from tests.model.test_unfold import FOLDED
from tests.model.torch_files import add_source, exported, gradients, loaded

TRIANGLE = np.tril(np.ones((4, 4), np.float32))
MASK = TRIANGLE[[1, 0, 2, 3]]
WEIGHT = normal(1, 4, 4)
KINDS = ("BUFFER", "PARAMETER")


def masked(kind: str, weight: np.ndarray, way: str = "val_1") -> onnx.ModelProto:
    model = exported(
        "y = MatMul(x, mul)",
        {"mul": weight},
        {"p_a_weight": ("PARAMETER", "a.weight"), "b_a_mask": (kind, "a.mask")},
        ["aten.linear.default](args = (%x, %mul))"],
    )
    info = onnx.helper.make_tensor_value_info("mul", onnx.TensorProto.FLOAT, weight.shape)
    info.metadata_props.add(key=FOLDED, value=f"['a.mask', 'a.weight', '{way}']")
    model.graph.value_info.append(info)
    return model


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("BUFFER", "1 weight(s) keep the zeros of a mask that torch's exporter multiplied in: 'mul'"),
        ("PARAMETER", "1 product(s) of two parameters keep their zeros, as where one is a mask that is frozen ('mul')"),
    ],
)
def test_no_gradient_reaches_the_zeros(kind: str, told: str) -> None:
    torch = pytest.importorskip("torch")
    model = masked(kind, WEIGHT * MASK)
    forward, notes = loaded(model)
    assert told in notes
    x, target = normal(2, 2, 4), normal(3, 2, 4)
    np.testing.assert_array_equal(run(forward, {"x": x})[0], run(model, {"x": x})[0])

    step = ckplan.open_model(model, loss="mse")
    assert set(step.training.gradients) == {"mul"}
    session = onnxruntime.InferenceSession(ir.to_proto(step.model).SerializeToString())
    (found,) = session.run(list(step.training.gradients.values()), {"x": x, "target": target})
    weight = torch.tensor(WEIGHT, requires_grad=True)
    product = torch.from_numpy(x) @ (weight * torch.from_numpy(MASK))
    torch.nn.functional.mse_loss(product, torch.from_numpy(target)).backward()
    np.testing.assert_allclose(found, weight.grad.numpy(), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("kind", "weight"),
    [("PARAMETER", WEIGHT), ("BUFFER", WEIGHT), *((kind, np.zeros((4, 4), np.float32)) for kind in KINDS)],
)
def test_other_products_are_as_they_were(kind: str, weight: np.ndarray) -> None:
    forward, notes = loaded(masked(kind, weight))
    assert "keep the zeros" not in notes
    assert [node.op_type for node in forward.graph] == ["MatMul"]


@pytest.mark.parametrize(("name", "is_noted"), [("onnx::MatMul_7", True), ("a.weight", False)])
def test_zeros_in_what_the_older_exporter_computed_are_noted(name: str, is_noted: bool) -> None:
    text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y) {{ y = MatMul(x, "{name}") }}'
    _, notes = loaded(parse(text, {name: WEIGHT * MASK}))
    assert (f"1 weight(s) hold zeros among other numbers ('{name}')" in notes) == is_noted
    assert "hold zeros" not in loaded(parse(text, {name: WEIGHT}))[1]


@pytest.mark.parametrize("name", ["tril", "onnx::MatMul_7"], ids=["default exporter", "older exporter"])
@pytest.mark.parametrize("form", [TRIANGLE, np.triu(TRIANGLE), TRIANGLE - np.tril(TRIANGLE, -2)])
def test_a_triangle_of_a_weight_stays_one(name: str, form: np.ndarray) -> None:
    graph = f'y = MatMul(x, "{name}")'
    if name == "tril":
        model = exported(
            graph, {name: WEIGHT * form}, {"p_w": ("PARAMETER", "w")}, ["aten.matmul.default](args = (%x))"]
        )
        info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (4, 4))
        info.metadata_props.add(key=FOLDED, value="['w', 'val_0']")
        model.graph.value_info.append(info)
    else:
        text = f'<ir_version: 8, opset_import: ["": 17]> g (float[2,4] x) => (float[2,4] y) {{ {graph} }}'
        model = parse(text, {name: WEIGHT * form})
        model.producer_name = "pytorch"
    _, notes = loaded(model)
    told = "1 weight(s) keep the zeros of a mask"
    assert (
        told if name == "tril" else "1 weight(s) are triangles or diagonals and stay so ('onnx::MatMul_7')"
    ) in notes
    assert "hold zeros" not in notes
    assert "may be constants" not in " ".join(ckplan.open_model(model, loss="mse").notes)
    (found,) = gradients(model).values()
    np.testing.assert_array_equal(found != 0, form != 0)


INNER = np.pad(np.ones((2, 3), np.float32), ((1, 1), (1, 0)))


def padded(name: str, weight: np.ndarray) -> onnx.ModelProto:
    model = exported(
        f"y = MatMul(x, {name})",
        {name: weight},
        {"p_table": ("PARAMETER", "table")},
        [f"aten.matmul.default](args = (%x, %{name}))"],
    )
    info = onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, (4, 4))
    info.metadata_props.add(key=FOLDED, value="['table', 'val_8', 'val_9']")
    model.graph.value_info.append(info)
    return model


@pytest.mark.parametrize("name", ["pad", "constant_pad_nd_1"])
def test_what_a_parameter_was_padded_with_is_not_trained(name: str) -> None:
    inside = np.where(INNER, WEIGHT, 0).astype(np.float32)
    inside[1, 2] = 0  # a zero of the parameter itself
    model = padded(name, inside)
    forward, notes = loaded(model)
    assert f"1 weight(s) keep the zeros that torch's exporter padded with: '{name}'" in notes
    x = normal(2, 2, 4)
    np.testing.assert_array_equal(run(forward, {"x": x})[0], run(model, {"x": x})[0])
    (found,) = gradients(model).values()
    np.testing.assert_array_equal(found != 0, INNER != 0)


@pytest.mark.parametrize(
    ("name", "weight"),
    [("pad", WEIGHT), ("pad", np.zeros((4, 4), np.float32)), ("roll", WEIGHT * INNER)],
    ids=["no zeros", "nothing else", "not padded"],
)
def test_a_parameter_without_a_padding_is_trained_as_a_whole(name: str, weight: np.ndarray) -> None:
    forward, notes = loaded(padded(name, weight))
    assert "keep the zeros" not in notes
    assert [node.op_type for node in forward.graph] == ["MatMul"]


def test_a_triangle_that_is_a_parameter_is_trained_as_a_whole() -> None:
    model = exported(
        "y = MatMul(x, w)",
        {"w": WEIGHT * TRIANGLE},
        {"p_w": ("PARAMETER", "w")},
        ["aten.matmul.default](args = (%x, %p_w))"],
    )
    assert gradients(model)["w"].all()


@pytest.mark.parametrize("name", ["permute", "val_0", "mul"])
def test_a_parameter_that_only_begins_as_a_triangle_is_trained_as_a_whole(name: str) -> None:
    """Matrices of state spaces begin so; turning them, as a layer does beforehand, makes no zeros."""
    lines = ["aten.matmul.default](args = (%x, %permute))"]
    model = exported(f"y = MatMul(x, {name})", {name: WEIGHT * TRIANGLE}, {"p_w": ("PARAMETER", "w")}, lines)
    add_source(model, name, "w", "permute")
    assert "keep the zeros" not in loaded(model)[1]
    (found,) = gradients(model).values()
    assert found.all()

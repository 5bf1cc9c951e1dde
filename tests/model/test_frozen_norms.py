"""Batch normalisations of buffers, as torch's old exporter writes them."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

import ckplan
from tests.model.models import normal, parse

CHANNELS = normal(1, 1, 8, 1, 1), normal(2, 1, 8, 1, 1)


def backbone(
    conv: str = "/net/conv/Conv",
    norm: str = "/net/norm",
    names: tuple[str, str] = ("onnx::Mul_7", "onnx::Add_9"),
    arrays: tuple[np.ndarray, np.ndarray] = CHANNELS,
) -> onnx.ModelProto:
    scale, shift = names
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[2,3,5,5] x) => (float[2,8,3,3] y) '
        f'{{ h = Conv(x, "conv.weight") s = Mul(h, "{scale}") y = Add(s, "{shift}") }}'
    )
    model = parse(text, {"conv.weight": normal(0, 8, 3, 3, 3), scale: arrays[0], shift: arrays[1]})
    model.producer_name = "pytorch"
    for node, name in zip(model.graph.node, (conv, f"{norm}/Mul", f"{norm}/Add"), strict=True):
        node.name = name
    return model


def test_scale_and_shift_of_buffers_are_not_trained() -> None:
    step = ckplan.open_model(backbone(), loss="mse")
    assert set(step.training.gradients) == {"conv.weight"}
    assert any("'onnx::Mul_7': of a batch normalisation of buffers" in note for note in step.notes)


def test_those_that_were_merged_are_not_trained_either() -> None:
    """The exporter writes equal tensors once, and the others as copies of it."""
    model = backbone()
    for name, other in zip(("onnx::Mul_7", "onnx::Add_9"), ("onnx::Mul_8", "onnx::Add_10"), strict=True):
        model.graph.node.insert(0, onnx.helper.make_node("Identity", [name], [other]))
    second = [
        ("Conv", ["y", "next.weight"], "c"),
        ("Mul", ["c", "onnx::Mul_8"], "t"),
        ("Add", ["t", "onnx::Add_10"], "z"),
    ]
    for (kind, read, made), name in zip(second, ("/net/next/Conv", "/net/two/Mul", "/net/two/Add"), strict=True):
        model.graph.node.append(onnx.helper.make_node(kind, read, [made], name))
    model.graph.initializer.append(onnx.numpy_helper.from_array(normal(4, 8, 8, 1, 1), "next.weight"))
    model.graph.output[0].name = "z"
    assert set(ckplan.open_model(model, loss="mse").training.gradients) == {"conv.weight", "next.weight"}


@pytest.mark.parametrize(
    "model",
    [
        backbone(norm="/net/conv"),
        backbone(names=("norm.weight", "norm.bias")),
        backbone(arrays=(CHANNELS[0], normal(2, 1, 8, 3, 3))),
    ],
    ids=["one module", "parameters", "no shift for each channel"],
)
def test_others_are_trained(model: onnx.ModelProto) -> None:
    assert len(ckplan.open_model(model, loss="mse").training.gradients) == 3


@pytest.mark.parametrize(
    ("name", "said"),
    [("onnx::Mul_7", True), ("scale", False), ("onnx::MatMul_7", False)],
    ids=["made", "named", "turned"],
)
def test_what_the_exporter_computed_is_named(name: str, said: bool) -> None:
    """Of what it was computed the file does not say, so that a gradient may lack a part."""
    operator = "MatMul" if "MatMul" in name else "Mul"
    text = (
        '<ir_version: 8, opset_import: ["": 17]> g (float[4,4] x) => (float[4,4] y) '
        f'{{ h = Add(x, "net.p") y = {operator}(h, "{name}") }}'
    )
    model = parse(text, {"net.p": normal(0, 4), name: normal(1, 4, 4)})
    model.producer_name = "pytorch"
    notes = ckplan.open_model(model, loss="mse").notes
    assert any(f"torch's exporter computed of parameters ('{name}')" in note for note in notes) == said

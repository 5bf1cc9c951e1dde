"""Biases of zeros that torch's default exporter dropped."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from tests.model.models import normal, run
from tests.model.torch_files import exported, gradients, loaded

OPERANDS = {"p_a_weight": ("PARAMETER", "a.weight"), "p_a_bias": ("PARAMETER", "a.bias")}
LINEAR = "aten.linear.default](args = (%x, %p_a_weight, %p_a_bias), kwargs = {})"
CONV = "(%x, %p_a_weight, %p_a_bias, [1], [0]), kwargs = {})"
WEIGHT = normal(1, 4, 4)
MATRIX = ("y = Gemm <transB = 1> (x, a.weight)", LINEAR, WEIGHT)
BESIDE = {
    "Gemm": MATRIX,
    "addmm": (
        "y = Gemm (x, a.weight)",
        "aten.addmm.default](args = (%p_a_bias, %x, %p_a_weight), kwargs = {})",
        WEIGHT,
    ),
    "Conv": (
        "r = Reshape (x, s) c = Conv <group = 2> (r, a.weight) y = Reshape (c, z)",
        f"aten.conv1d.default](args = {CONV}",
        normal(1, 4, 2, 1),
    ),
    "ConvTranspose": (
        "r = Reshape (x, s) c = ConvTranspose <group = 2> (r, a.weight) y = Reshape (c, z)",
        f"aten.conv_transpose1d.default](args = {CONV}",
        normal(1, 4, 2, 1),
    ),
    "a normalisation": (
        "y = Gemm <transB = 1> (x, a.weight)",
        "aten._native_batch_norm_legit_no_training.default](args = (%made, %p_a_weight, %p_a_bias, "
        "%b_mean, %b_var, 0.1, 1e-05), kwargs = {})",
        WEIGHT,
    ),
}


def dropped(nodes: str, line: str, weight: np.ndarray, kind: str = "torch.nn.modules.linear.Linear") -> onnx.ModelProto:
    arrays = {"a.weight": weight, "s": np.array([2, 4, 1]), "z": np.array([2, 4])}
    lines = ["aten.view.default](args = (%x, [2, 4, 1]))", line, "aten.view.default](args = (%made, [2, 4]))"]
    if "Reshape" not in nodes:
        arrays, lines = {"a.weight": weight}, [line]
    return of_class(kind, exported(nodes, arrays, OPERANDS, lines))


def of_class(kind: str, model: onnx.ModelProto) -> onnx.ModelProto:
    for node in model.graph.node:
        node.metadata_props.add(key="pkg.torch.onnx.class_hierarchy", value=f"['net.Net', '{kind}', 'aten.linear']")
    return model


@pytest.mark.parametrize("case", BESIDE)
def test_a_bias_that_the_line_names_is_there_again(case: str) -> None:
    model = dropped(*BESIDE[case])
    forward, notes = loaded(model)
    assert "1 bias(es) of zeros that torch's exporter dropped are there again" in notes
    assert "not in the file as such" not in notes
    x = normal(3, 2, 4)
    np.testing.assert_array_equal(run(forward, {"x": x})[0], run(model, {"x": x})[0])
    found = gradients(model)
    assert set(found) == {"a.weight", "a.bias"}
    difference = run(model, {"x": normal(1, 2, 4)})[0] - normal(2, 2, 4)
    np.testing.assert_allclose(found["a.bias"], 2 * difference.sum(0) / difference.size, rtol=1e-5)


@pytest.mark.parametrize(
    ("nodes", "line"),
    [
        (MATRIX[0], "aten.linear.default](args = (%x, %p_a_weight), kwargs = {})"),
        ("y = MatMul (x, a.weight)", LINEAR),
        ("y = Gemm (x, a.weight)", "aten.addmm.default](args = (%p_a_weight, %x, %made), kwargs = {})"),
    ],
    ids=["none named", "not what it is taken off", "of an unknown shape"],
)
def test_no_other_is_made_up(nodes: str, line: str) -> None:
    assert "there again" not in loaded(dropped(nodes, line, WEIGHT))[1]


@pytest.mark.parametrize("case", ["Gemm", "addmm"])
@pytest.mark.parametrize(("kind", "is_known"), [("net.Affine", False), ("transformers.pytorch_utils.Conv1D", True)])
def test_what_a_module_of_its_own_adds_may_be_no_vector(case: str, kind: str, is_known: bool) -> None:
    """One number for all units, or one for each sample."""
    _, notes = loaded(dropped(*BESIDE[case], kind))
    assert ("there again" in notes) == is_known
    assert ("not in the file as such" in notes) != is_known


def test_a_layer_that_is_used_twice_has_one_bias() -> None:
    lines = [LINEAR, LINEAR.replace("%x", "%linear")]
    nodes = "h = Gemm <transB = 1> (x, a.weight) y = Gemm <transB = 1> (h, a.weight)"
    model = of_class("torch.nn.modules.linear.Linear", exported(nodes, {"a.weight": WEIGHT}, OPERANDS, lines))
    forward, _ = loaded(model)
    assert len({node.inputs[2] for node in forward.graph}) == 1
    assert set(gradients(model)) == {"a.weight", "a.bias"}


def test_the_trained_bias_is_in_the_exported_file(tmp_path: Path) -> None:
    source, output = tmp_path / "net.onnx", tmp_path / "trained.onnx"
    onnx.save(dropped(*MATRIX), source)
    bias = normal(4, 4)
    ckplan.export_weights(source, {"a.weight": WEIGHT, "a.bias": bias}, output)
    x = normal(3, 2, 4)
    np.testing.assert_allclose(run(onnx.load(output), {"x": x})[0], x @ WEIGHT.T + bias, rtol=1e-5)
    assert ir.load(output).graph.initializers["a.bias"].shape == (4,)

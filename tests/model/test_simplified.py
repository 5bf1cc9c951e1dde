"""What tools that went over a file of torch's may have taken away."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from tests.model.models import normal, parse
from tests.model.torch_files import exported, loaded

WEIGHT = normal(1, 4, 4)
ZEROS_LOST = "may have lost biases of zeros"


def simplified(nodes: str, name: str, output: str, weight: np.ndarray = WEIGHT) -> onnx.ModelProto:
    """A file of torch's default exporter without its metadata: a layer that bears a name makes an output."""
    nodes = nodes.replace("made", output)
    text = f'<ir_version: 10, opset_import: ["": 21]> g (float[2,4,1] x) => (float[2,4,1] {output}) {{ {nodes} }}'
    model = parse(text, {"w": weight} | ({"b": np.zeros(1, np.float32)} if "b)" in nodes else {}))
    model.producer_name = "pytorch"
    model.graph.node[0].name = name
    return model


@pytest.mark.parametrize(
    ("nodes", "name", "output", "noted"),
    [
        ("made = MatMul(w, x)", "node_MatMul_1", "linear", False),  # its second operand is no weight
        ("made = Conv(x, w)", "node_Conv_0", "conv1d", True),
        ("made = Conv(x, w)", "node_conv1d", "conv1d", False),  # it never had one
        ("made = Conv(x, w)", "/conv/Conv", "conv1d", False),  # as the old exporter calls it
    ],
)
def test_layers_that_may_have_had_biases_are_noted(nodes: str, name: str, output: str, noted: bool) -> None:
    weight = WEIGHT if "MatMul" in nodes else normal(1, 4, 4, 1)
    assert (ZEROS_LOST in loaded(simplified(nodes, name, output, weight))[1]) == noted


@pytest.mark.parametrize(
    ("nodes", "noted"), [("made = MatMul(x, w)", True), ("h = MatMul(x, w) made = Add(h, b)", False)]
)
def test_a_product_that_is_added_to_has_its_bias(nodes: str, noted: bool) -> None:
    model = simplified(nodes, "node_MatMul_1", "linear", normal(1, 1, 1))
    assert (ZEROS_LOST in loaded(model)[1]) == noted


def test_what_the_exporter_says_needs_no_guess() -> None:
    model = exported(
        "y = MatMul(x, a.weight)",
        {"a.weight": WEIGHT},
        {"p_a_weight": ("PARAMETER", "a.weight")},
        ["aten.matmul.default](args = (%x, %p_a_weight))"],
    )
    model.graph.node[0].name = "node_MatMul_1"
    assert ZEROS_LOST not in loaded(model)[1]


@pytest.mark.parametrize(("output", "noted"), [("getitem_3", True), ("conv1d", False)])
def test_a_convolution_that_makes_what_a_normalisation_made_is_noted(output: str, noted: bool) -> None:
    model = simplified("made = Conv(x, w)", "node_conv1d", output, normal(1, 4, 4, 1))
    assert ("are products" in loaded(model)[1]) == noted


def test_what_onnxsim_lists_is_noted() -> None:
    model = simplified("made = Conv(x, w)", "/a/Conv", "y", normal(1, 4, 4, 1))
    removed = onnx.StringStringEntryProto(
        key="onnxsim.removed_values", value="/a/Add_output_0, a.running_mean, a.bias, linear, onnx::MatMul_3, w"
    )
    model.metadata_props.append(removed)
    _, notes = loaded(model)
    assert "onnxsim dropped, merged or computed with 1 parameter(s) of the module or more ('a.bias')" in notes
    assert f"1 layer(s) ('/a/Conv') {ZEROS_LOST}" in notes


@pytest.mark.parametrize(("listed", "folded_by"), [("a.bias", "onnxsim or torch's exporter"), ("", "torch's exporter")])
def test_what_folded_a_normalisation_is_not_said_for_certain(listed: str, folded_by: str) -> None:
    model = simplified("made = Conv(x, w)", "node_conv1d", "getitem_3", normal(1, 4, 4, 1))
    model.metadata_props.append(onnx.StringStringEntryProto(key="onnxsim.removed_values", value=listed))
    assert f"are products: {folded_by} folded a" in loaded(model)[1]

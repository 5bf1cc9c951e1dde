"""Gradients of tables of which rows are looked up: no second tensor of the table's size."""

from __future__ import annotations

import math

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph
from ckplan.autodiff.idioms import scattering
from ckplan.autodiff.reading import shape_of
from ckplan.keys import PHASE
from ckplan.runtime.executing.executed import expected_timeline
from tests.autodiff.gradcheck import (
    build_training_graph,
    check_gradient,
    check_second_derivatives,
    infer,
    node_model,
    to_dtype,
    values,
    weighed,
)

WORDS, WIDTH = 60, 40
TOKENS = np.asarray([[3, 59, 3], [0, -1, 17]], dtype=np.int64)


def tied(tokens: np.ndarray = TOKENS, head: str = "MatMul") -> onnx.ModelProto:
    """A table that is read by tokens and multiplied by."""
    nodes = [
        onnx.helper.make_node("Gather", ["p0", "tokens"], ["read"]),
        onnx.helper.make_node("Tanh", ["read"], ["h"]),
    ]
    if head == "MatMul":
        nodes.append(onnx.helper.make_node("Transpose", ["p0"], ["turned"], perm=[1, 0]))
        nodes.append(onnx.helper.make_node("MatMul", ["h", "turned"], ["y0"]))
    else:
        nodes.append(onnx.helper.make_node("Flatten", ["h"], ["flat"], axis=2))
        nodes.append(onnx.helper.make_node("Gemm", ["flat", "p0"], ["y0"], transB=1, alpha=0.5))
    constants = {"p0": values(WORDS, WIDTH), "tokens": tokens}
    return weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()], ["y0"])


def in_single(model: onnx.ModelProto) -> TrainingGraph:
    return build_training_graph(infer(to_dtype(model, np.float32)), wrt=["p0"])


def as_large(graph: ir.Graph, value: ir.Value) -> list[str]:
    """What else the backward pass makes that is as large as a value, views of it left out."""
    nodes = [n for n in graph if n.metadata_props[PHASE] == "backward" and n.op_type != "Reshape"]
    made = [v for node in nodes for v in node.outputs if v is not value]
    return [f"{v.producer().op_type} {v.name}" for v in made if math.prod(shape_of(v)) >= math.prod(shape_of(value))]


def test_rows_that_are_looked_up_are_gathered_into_the_gradient() -> None:
    model = node_model("Gather", values(WORDS, WIDTH), TOKENS)
    check_gradient(model)
    training = in_single(model)
    gradient = training.model.graph.outputs[1]
    assert gradient.producer().op_type == "Gather"
    assert as_large(training.model.graph, gradient) == []
    assert expected_timeline(training.model).peak_activations < 4 * WORDS * WIDTH


@pytest.mark.parametrize("shape", [(2, WIDTH), (2, 3, 5), (2,)])
def test_the_gradient_of_few_rows_is_one_product(shape: tuple[int, ...]) -> None:
    picked = np.random.default_rng(0).integers(-2, 2, (10, 20))
    model = node_model("Gather", values(*shape), picked)
    check_gradient(model)
    (product,) = (node for node in in_single(model).model.graph if node.op_type == "MatMul")
    assert product.inputs[0].producer().op_type == "OneHot"


@pytest.mark.parametrize(
    ("start", "perm", "reads_rows"), [(0, [2, 0, 1], False), (-3, [2, 0, 1], True), (0, [2, 1, 0], True)]
)
def test_lookups_in_a_narrow_table_are_added_by_column(start: int, perm: list[int], reads_rows: bool) -> None:
    """Where the forward pass turns them, as a bias for each head is, their gradient is not turned back before."""
    picked = np.random.default_rng(0).integers(start, 12, (5, 7))
    nodes = [
        onnx.helper.make_node("Gather", ["p0", "rows"], ["read"]),
        onnx.helper.make_node("Transpose", ["read"], ["y0"], perm=perm),
    ]
    constants = {"p0": values(12, 3), "rows": picked}
    model = weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()], ["y0"])
    check_gradient(model)
    graph = in_single(model).model.graph
    backward = [node for node in graph if node.op_type == "Transpose" and node.metadata_props[PHASE] == "backward"]
    assert any(math.prod(shape_of(node.outputs[0])) == 3 * picked.size for node in backward) == reads_rows


@pytest.mark.parametrize("width", [3, 20], ids=["narrow", "wide"])
@pytest.mark.parametrize(("high", "wide", "step", "summed"), [(6, 9, 1, True), (9, 6, 1, True), (6, 9, 2, False)])
def test_what_a_table_of_distances_gives_is_added_up_along_diagonals(
    high, wide, step, summed, width, monkeypatch
) -> None:
    monkeypatch.setattr(scattering, "_LONG", 2)
    distances = np.arange(wide) - step * np.arange(high)[:, None]
    nodes = [
        onnx.helper.make_node("Gather", ["p0", "rows"], ["read"]),
        onnx.helper.make_node("Transpose", ["read"], ["y0"], perm=[2, 0, 1]),
    ]
    constants = {"p0": values(12, width), "rows": np.abs(5 * distances) % 12}
    model = weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()], ["y0"])
    check_gradient(model)
    scattered = next(node for node in in_single(model).model.graph if node.op_type == "ScatterElements")
    assert shape_of(scattered.inputs[2]) == (width * (high + wide if summed else high * wide),)


@pytest.mark.parametrize("shape", [(60,), (60, 3, 5), (60, 1)])
def test_tables_of_any_rank(shape: tuple[int, ...]) -> None:
    check_gradient(node_model("Gather", values(*shape), TOKENS))
    check_gradient(node_model("Gather", values(*shape), np.asarray(5)))


def test_second_derivatives_of_lookups() -> None:
    model = node_model("Gather", values(20, 3), TOKENS % 20)
    model.graph.node.insert(1, onnx.helper.make_node("Mul", ["y0", "y0"], ["squares"]))
    for node in model.graph.node[2:]:
        node.input[:] = ["squares" if name == "y0" else name for name in node.input]
    check_second_derivatives(model)


def test_two_lookups_of_one_table_are_gathered_at_once() -> None:
    nodes = [
        onnx.helper.make_node("Gather", ["p0", "one"], ["y0"]),
        onnx.helper.make_node("Gather", ["p0", "other"], ["y1"]),
    ]
    constants = {"p0": values(WORDS, WIDTH), "one": TOKENS, "other": np.asarray([59, 4, 17], dtype=np.int32)}
    tensors = [onnx.numpy_helper.from_array(array, name) for name, array in constants.items()]
    model = weighed(nodes, tensors, ["y0", "y1"])
    check_gradient(model)
    training = in_single(model)
    assert as_large(training.model.graph, training.model.graph.outputs[1]) == []


@pytest.mark.parametrize("head", ["MatMul", "Gemm"])
def test_a_wide_tied_table_is_made_by_one_product(head: str) -> None:
    model = tied(head=head)
    check_gradient(model)
    check_second_derivatives(model)
    training = in_single(model)
    gradient = training.model.graph.outputs[1]
    assert gradient.producer().op_type == "Gemm"
    assert as_large(training.model.graph, gradient) == []
    assert expected_timeline(training.model).peak_activations < 4 * WORDS * WIDTH


def test_of_many_tokens_the_product_is_made_first() -> None:
    tokens = np.random.default_rng(0).integers(0, WORDS, (5, 6))
    check_gradient(tied(tokens))
    training = in_single(tied(tokens))
    gradient = training.model.graph.outputs[1]
    assert [node.op_type for node in training.model.graph][-2:] == ["ScatterElements", "Reshape"]
    large = as_large(training.model.graph, gradient)
    assert [name.split()[0] for name in large if not name.startswith("Transpose")] == [
        "Gemm",
        "ScatterElements",
    ]  # in the layout of the table

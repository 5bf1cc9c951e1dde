"""Copies that are not made for operators that stretch their operands."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import check_gradient, infer, values, weighed


def mean_of(op_type: str, *others: str) -> onnx.ModelProto:
    """The mean of each row of an operator's result, weighed."""
    nodes = [
        onnx.helper.make_node(op_type, ["p0", *others], ["inner"], name="inner"),
        onnx.helper.make_node("ReduceMean", ["inner", "axis"], ["mean"], name="mean"),
    ]
    arrays = {"p0": values(3, 4), "axis": np.asarray([1]), "two": np.asarray(2.0)}
    named = {name: array for name, array in arrays.items() if name != "two" or name in others}
    return weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in named.items()], ["mean"])


def operators(model: onnx.ModelProto) -> list[str]:
    """The operators of the backward pass."""
    training = build_training_graph(infer(model), loss="loss", wrt=["p0"])
    return [node.op_type for node in training.model.graph if "/grad/" in str(node.name)]


@pytest.mark.parametrize("model", [mean_of("Pow", "two"), mean_of("Sin")], ids=["number before", "factor at once"])
def test_products_read_the_gradient_of_a_mean_as_it_is(model):
    check_gradient(model)
    assert "Expand" not in operators(model)


def test_gradients_that_are_returned_are_expanded():
    model = mean_of("Identity")
    check_gradient(model)
    assert "Expand" in operators(model)


@pytest.mark.parametrize(("windows", "copied"), [(1, False), (6, True)])
def test_what_samples_share_is_added_before_it_is_copied(windows, copied):
    """The mask of each of three windows, the bias of each head, and scores of two samples."""
    nodes = [
        onnx.helper.make_node("Expand", ["mask", "samples"], ["copies"]),
        onnx.helper.make_node("Reshape", ["copies", "merged"], ["masks"]),
        onnx.helper.make_node("Add", ["p1", "masks"], ["shared"]),
        onnx.helper.make_node("Add", ["p0", "shared"], ["scores"]),
        onnx.helper.make_node("Softmax", ["scores"], ["y0"]),
    ]
    arrays = {"p0": values(6, 4, 2, 5), "p1": values(windows, 4, 2, 5, seed=1), "mask": values(1, 3, 1, 2, 5, seed=2)}
    arrays |= {"samples": np.asarray([2, 3, 1, 2, 5]), "merged": np.asarray([6, 1, 2, 5])}
    model = weighed(nodes, [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()], ["y0"])
    check_gradient(model)
    graph = build_training_graph(infer(model), loss="loss", wrt=["p0", "p1"]).model.graph
    assert any(node.op_type == "Expand" for node in graph) == copied

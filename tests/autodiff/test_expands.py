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

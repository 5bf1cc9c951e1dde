"""Operators that undo what windows did: Col2Im and MaxUnpool."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.errors import UnsupportedOperatorsError
from tests.autodiff.gradcheck import (
    build_training_graph,
    check_gradient,
    infer,
    node_model,
    onnxruntime_run,
    reference,
    to_dtype,
    values,
    weighed,
)
from tests.autodiff.reference_operators import use_reference_operators

__all__ = ["use_reference_operators"]


def ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, dtype=np.int64)


@pytest.mark.parametrize(
    ("columns", "image", "block", "attributes"),
    [
        ((1, 6, 12), (5, 5), (2, 3), {}),
        ((2, 4, 4), (4, 4), (2, 2), {"strides": [2, 2]}),
        ((1, 8, 12), (5, 5), (2, 2), {"pads": [0, 1, 0, 1], "strides": [2, 1]}),
        ((1, 4, 4), (5, 5), (2, 2), {"dilations": [3, 3]}),
        ((1, 8, 12), (3, 4, 4), (2, 2, 2), {"strides": [1, 1, 2]}),
        ((2, 3, 5), (7,), (3,), {}),
    ],
)
def test_col2im(columns, image, block, attributes):
    model = node_model("Col2Im", values(*columns), ints(*image), ints(*block), **attributes)
    check_gradient(model, runtime=len(image) > 1, torch=len(image) == 2)


@pytest.mark.parametrize(("image", "block"), [((5,), (2,)), ((3, 3, 3), (2, 1, 2))])
def test_dilations_that_onnxruntime_mixes_up_are_refused(image, block):
    inputs = values(1, 2 * int(np.prod(block)), 3), ints(*image), ints(*block)
    dilations = [2] * len(image)
    model = node_model("Col2Im", *inputs, dilations=dilations)
    assert abs(reference(model)["loss"] - onnxruntime_run(infer(to_dtype(model, np.float32)))["loss"]) > 1e-3
    with pytest.raises(UnsupportedOperatorsError, match="other numbers with dilations"):
        build_training_graph(infer(model), loss="loss", wrt=["p0"])
    of_one_channel = inputs[0][:, : int(np.prod(block))], *inputs[1:]
    check_gradient(node_model("Col2Im", *of_one_channel, dilations=dilations), torch=False)


def test_max_unpool():
    indices = ints(0, 3, 10, 13, 16, 18, 25, 31).reshape(1, 2, 2, 2)
    check_gradient(node_model("MaxUnpool", values(1, 2, 2, 2), indices, kernel_shape=[2, 2], strides=[2, 2]))


def test_max_unpool_of_one_place_twice():
    indices = ints(4, 4, 2).reshape(1, 1, 3)
    found = check_gradient(node_model("MaxUnpool", values(1, 1, 3), indices, kernel_shape=[3]), torch=False)["p0"]
    assert found[0, 0, 0] == 0


def test_max_unpool_behind_its_pool():
    x = onnx.numpy_helper.from_array(values(1, 2, 4, 6), "p0")
    attributes = {"kernel_shape": [2, 2], "strides": [2, 2]}
    nodes = [
        onnx.helper.make_node("MaxPool", ["p0"], ["y", "i"], **attributes),
        onnx.helper.make_node("Mul", ["y", "y"], ["z"]),
        onnx.helper.make_node("MaxUnpool", ["z", "i"], ["u"], **attributes),
    ]
    model = weighed(nodes, [x], ["u"])
    training = build_training_graph(infer(model))
    assert [node.op_type for node in training.model.graph].count("ScatterElements") == 1
    single = build_training_graph(infer(to_dtype(model, np.float32)))
    np.testing.assert_allclose(
        onnxruntime_run(single.model)["p0_grad"], reference(training.model)["p0_grad"], rtol=1e-5
    )


def test_max_unpool_to_a_size_of_its_own():
    """onnxruntime and onnx's evaluator count indices differently here; each has the gradient of what it computes."""
    indices = ints(5, 7, 13, 15).reshape(1, 1, 2, 2)
    model = node_model("MaxUnpool", values(1, 1, 2, 2), indices, ints(1, 1, 5, 5), kernel_shape=[2, 2], strides=[2, 2])
    check_gradient(model, runtime=False, torch=False)
    single = build_training_graph(infer(to_dtype(model, np.float32)))
    weight = next(t for t in single.model.graph.initializers.values() if t.name == "weight_y0").const_value.numpy()
    found = onnxruntime_run(single.model)["p0_grad"]
    np.testing.assert_array_equal(found.reshape(-1), weight.reshape(-1)[indices.reshape(-1)])

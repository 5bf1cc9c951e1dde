"""Reductions, softmax."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import (
    check_gradient,
    check_second_derivatives,
    infer,
    node_model,
    onnxruntime_run,
    to_dtype,
    values,
)

OPERATORS = [
    "ReduceSum",
    "ReduceMean",
    "ReduceMax",
    "ReduceMin",
    "ReduceProd",
    "ReduceL1",
    "ReduceL2",
    "ReduceLogSum",
    "ReduceLogSumExp",
    "ReduceSumSquare",
]
POSITIVE = values(2, 3, 4, low=0.3, high=2.0)
AXES = [None, [0], [-1], [0, 2], [1, -3], [0, 1, 2], []]


@pytest.mark.parametrize("axes", AXES)
@pytest.mark.parametrize("keepdims", [0, 1])
@pytest.mark.parametrize("op_type", OPERATORS)
def test_axes(op_type, keepdims, axes):
    given = [] if axes is None else [np.asarray(axes, dtype=np.int64)]
    check_gradient(node_model(op_type, POSITIVE, *given, keepdims=keepdims))


@pytest.mark.parametrize("op_type", ["ReduceSum", "ReduceMean", "ReduceMax", "ReduceProd"])
def test_no_axes_may_mean_none(op_type):
    check_gradient(node_model(op_type, POSITIVE, noop_with_empty_axes=1), torch=False)


@pytest.mark.parametrize("op_type", OPERATORS)
def test_small_ranks(op_type):
    check_gradient(node_model(op_type, values(4, low=0.3)))


# onnx's evaluator cannot run ReduceLogSumExp of a scalar.
@pytest.mark.parametrize("op_type", [name for name in OPERATORS if name != "ReduceLogSumExp"])
def test_scalar(op_type):
    check_gradient(node_model(op_type, np.float64(0.7)), torch=False)


@pytest.mark.parametrize("op_type", ["ReduceL1", "ReduceSumSquare", "ReduceLogSumExp"])
def test_both_signs(op_type):
    check_gradient(node_model(op_type, values(3, 4), np.asarray([1])))


@pytest.mark.parametrize("op_type", ["ReduceMax", "ReduceMin"])
def test_equal_elements_share_the_gradient(op_type):
    gradients = check_gradient(node_model(op_type, np.ones((2, 4)), np.asarray([1])), differences=False)
    assert (gradients["p0"] == gradients["p0"][:, :1]).all()


@pytest.mark.parametrize("zeros", [0, 1, 2, 3])
@pytest.mark.parametrize("size", [3, 4, 5])
def test_product_of_zeros(zeros, size):
    x = values(2, size, low=0.5)
    x[0, :zeros] = 0
    model = node_model("ReduceProd", x, np.asarray([1]))
    check_gradient(model)
    check_second_derivatives(model)


def test_product_of_zeros_over_several_axes():
    x = values(3, 2, 2)
    x[0, 1, 0] = x[2, 1, 1] = 0
    model = node_model("ReduceProd", x, np.asarray([0, 2]), keepdims=0)
    check_gradient(model)
    check_second_derivatives(model)


def test_long_product_of_zeros():
    x = values(1, 70, low=0.9, high=1.1)
    x[0, [5, 60]] = 0
    check_second_derivatives(node_model("ReduceProd", x))


@pytest.mark.parametrize("axes", [[1], [0, 2], [0, 1, 2]])
def test_logarithm_of_a_sum_of_large_exponentials(axes):
    """The gradient is a softmax, exact to float32's rounding however large the numbers are."""
    x = (values(2, 50, 3, low=-5, high=5) + 1e4).astype(np.float32)
    model = to_dtype(node_model("ReduceLogSumExp", x.astype(np.float64), np.asarray(axes)), np.float32)
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"])
    found = onnxruntime_run(training.model)["p0_grad"]
    weights = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in model.graph.initializer}["weight_y0"]
    powers = np.exp(x.astype(np.float64) - 1e4)
    expected = powers / powers.sum(tuple(axes), keepdims=True) * weights
    np.testing.assert_allclose(found, expected, rtol=3e-6, atol=1e-9)


@pytest.mark.parametrize("axes", [[1], [0, 2]])
def test_second_derivative_of_a_log_sum_exp(axes):
    check_second_derivatives(node_model("ReduceLogSumExp", values(2, 3, 4), np.asarray(axes)))


def test_norm_of_zeros():
    x = np.zeros((2, 3))
    x[1] = 1.5
    gradients = check_gradient(node_model("ReduceL2", x, np.asarray([1])), differences=False, torch=False)
    assert gradients["p0"][0].tolist() == [0, 0, 0]
    assert (gradients["p0"][1] > 0).all()


@pytest.mark.parametrize("axis", [None, 0, 1, 2, -2])
@pytest.mark.parametrize("op_type", ["Softmax", "LogSoftmax"])
def test_softmax(op_type, axis):
    check_gradient(node_model(op_type, values(2, 3, 4), **({} if axis is None else {"axis": axis})))

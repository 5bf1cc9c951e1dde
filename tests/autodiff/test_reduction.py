"""Reductions, softmax."""

from __future__ import annotations

import numpy as np
import pytest

from tests.autodiff.gradcheck import check_gradient, node_model, values

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


@pytest.mark.parametrize("zeros", [1, 2])
def test_product_of_zeros(zeros):
    x = values(2, 4, low=0.5)
    x[0, :zeros] = 0
    check_gradient(node_model("ReduceProd", x, np.asarray([1])))


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

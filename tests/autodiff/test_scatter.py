"""Operators that put elements at given places, with every reduction."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.evaluation import evaluation_graph
from tests.autodiff.gradcheck import check_gradient, infer, node_model, onnxruntime_run, values

REDUCTIONS = ["none", "add", "mul", "max", "min"]


def ints(numbers: object) -> np.ndarray:
    return np.asarray(numbers, dtype=np.int64)


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize(
    ("shape", "indices", "updates"),
    [
        ((4, 3), [[0], [2]], (2, 3)),
        ((4, 3), [[0, 1], [2, 2], [3, 0]], (3,)),
        ((2, 3, 2), [[[0, -1], [1, 1]]], (1, 2, 2)),
        ((5,), [3], ()),
    ],
)
def test_scatter_nd(reduction, shape, indices, updates):
    inputs = values(*shape), ints(indices), values(*updates, seed=1)
    check_gradient(node_model("ScatterND", *inputs, reduction=reduction))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("axis", [0, 1, -1])
def test_scatter_elements(reduction, axis):
    # onnx's evaluator wants the other axes whole, and all of them if the axis is negative.
    indices = {0: [[0, 2, 1], [1, 0, -1]], 1: [[0, 2], [2, 1], [0, -2]], -1: [[0, 2, 1], [2, 1, 0], [0, -2, 2]]}
    given = ints(indices[axis])
    inputs = [values(3, 3), given, values(*given.shape, seed=1)]
    check_gradient(node_model("ScatterElements", *inputs, axis=axis, reduction=reduction))


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_updates_to_one_place(reduction):
    data, updates = values(3, 2), values(4, 2, seed=1)
    check_gradient(node_model("ScatterND", data, ints([[1], [0], [1], [1]]), updates, reduction=reduction))
    indices = ints([[1, 0], [0, 0], [1, 2], [1, 0]])
    check_gradient(node_model("ScatterElements", values(3, 2), indices, updates, reduction=reduction))


@pytest.mark.parametrize("zeros", [[(0, 0)], [(2, 0)], [(0, 0), (2, 0)], [(0, 0), (3, 0)], [(0, 0), (0, 1), (3, 1)]])
def test_products_of_zeros(zeros):
    updates = values(4, 2, seed=1)
    for place in zeros:
        updates[place] = 0
    for data in (values(3, 2), np.zeros((3, 2))):
        check_gradient(node_model("ScatterND", data, ints([[1], [0], [1], [1]]), updates, reduction="mul"))


@pytest.mark.parametrize("reduction", ["max", "min"])
def test_equal_extremes_share(reduction):
    indices = ints([0, 0, 2])
    model = node_model("ScatterElements", np.ones(3), indices, np.asarray([1.0, 1.0, 1.0]), reduction=reduction)
    found = check_gradient(model, differences=False)
    weight = np.random.default_rng(1).uniform(0.5, 1.5, 3)
    np.testing.assert_allclose(found["p0"], weight / [3, 1, 2])
    np.testing.assert_allclose(found["p2"], (weight / [3, 1, 2])[indices])


def test_no_updates():
    model = node_model("ScatterND", values(3, 2), np.zeros((0, 1), np.int64), np.zeros((0, 2)))
    check_gradient(model, idle=["p2"])


@pytest.mark.parametrize("mode", ["linear", "circular"])
@pytest.mark.parametrize(("axis", "cache", "update"), [(-2, (2, 4, 3), (2, 2, 3)), (1, (2, 4, 3, 2), (2, 3, 3, 2))])
@pytest.mark.parametrize("start", [None, [1, 0]])
def test_tensor_scatter(mode, axis, cache, update, start):
    rest = [] if start is None else [ints(start)]
    model = node_model("TensorScatter", values(*cache), values(*update, seed=1), *rest, opset=24, axis=axis, mode=mode)
    check_gradient(model)


def test_tensor_scatter_around_the_end():
    model = node_model(
        "TensorScatter", values(2, 4, 3), values(2, 3, 3, seed=1), ints([3, 2]), opset=24, mode="circular"
    )
    check_gradient(model)


@pytest.mark.parametrize("axis", [None, 0, 1, -1])
def test_compress(axis):
    conditions = {None: [0, 1, 1, 0, 0, 1], 0: [0, 1, 1], 1: [1, 0, 1, 1], -1: [0, 1]}
    attributes = {} if axis is None else {"axis": axis}
    check_gradient(node_model("Compress", values(3, 4, 2), np.asarray(conditions[axis], dtype=bool), **attributes))


@pytest.mark.parametrize("reduction", ["add", "mul", "max", "min"])
def test_threads_do_not_race_for_one_place(reduction):
    """onnxruntime's threads lose updates of a ScatterND with a reduction, of the loss as well."""
    forward = infer(
        node_model("ScatterND", values(3, 2), ints([[1], [0], [1], [1]]), values(4, 2), reduction=reduction)
    )
    training = build_training_graph(forward)
    assert any("ScatterND node(s) with a reduction" in note for note in training.notes)
    for made in (training.model, evaluation_graph(forward)):
        found = [node for node in made.graph.all_nodes() if node.op_type in ("ScatterElements", "ScatterND")]
        reducing = {node.op_type for node in found if node.attributes.get_string("reduction", "none") != "none"}
        assert reducing == {"ScatterElements"}
        assert onnxruntime_run(made)["loss"] == onnxruntime_run(forward)["loss"]

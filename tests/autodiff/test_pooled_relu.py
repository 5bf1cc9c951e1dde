"""A Relu that a MaxPool alone reads, differentiated with it."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.rules.pooling import pool_maxima
from tests.autodiff.gradcheck import check_gradient, infer, onnxruntime_run, to_dtype, values, weighed
from tests.autodiff.reference_operators import use_reference_operators

__all__ = ["use_reference_operators"]
pytestmark = pytest.mark.usefixtures("use_reference_operators")

HALVED = {"kernel_shape": [2, 2], "strides": [2, 2]}
OVERLAPPING = {"kernel_shape": [3, 3], "strides": [2, 2], "pads": [1, 1, 1, 1]}


def model_of(*more: onnx.NodeProto, **attributes: object) -> onnx.ModelProto:
    """A Relu and a MaxPool, of whose windows some have no positive element."""
    nodes = [
        onnx.helper.make_node("Relu", ["p0"], ["x"], name="relu"),
        onnx.helper.make_node("MaxPool", ["x"], ["y0"], name="pool", **attributes),
        *more,
    ]
    p = onnx.numpy_helper.from_array(values(2, 2, 7, 8, low=-2.0, high=0.7), "p0")
    return weighed(nodes, [p], [f"y{index}" for index in range(1 + len(more))])


def masks_of(training: TrainingGraph) -> list[tuple[int, ...]]:
    """The shapes of what is compared with 0."""
    found = [node.inputs[0] for node in training.model.graph if node.op_type in ("Greater", "HardSigmoid")]
    return [tuple(map(int, value.shape)) for value in found if isinstance(value, ir.Value) and value.shape is not None]


def training_of(model: onnx.ModelProto, retained: tuple[str, ...] = ()) -> TrainingGraph:
    return build_training_graph(infer(model), loss="loss", wrt=["p*"], retain_grad=retained)


@pytest.mark.parametrize("compared", [True, False])
@pytest.mark.parametrize("attributes", [HALVED, OVERLAPPING, OVERLAPPING | {"ceil_mode": 1}])
def test_the_maxima_are_masked(attributes, compared, monkeypatch: pytest.MonkeyPatch):
    if compared:
        monkeypatch.setattr(pool_maxima, "MANY_ELEMENTS", 1)
        monkeypatch.setattr(pool_maxima, "LEAST_PARTS", 2)
    model = model_of(**attributes)
    training = training_of(model)
    assert masks_of(training) == [tuple(map(int, training.model.graph[1].outputs[0].shape))]
    check_gradient(model)


@pytest.mark.parametrize(
    "model",
    [
        model_of(onnx.helper.make_node("Exp", ["x"], ["y1"], name="exp"), **HALVED),
        model_of(kernel_shape=[1, 1]),
    ],
    ids=["another-reader", "no-fewer-maxima"],
)
def test_other_relus_have_masks_of_their_own(model):
    assert masks_of(training_of(model)) == [(2, 2, 7, 8)]
    check_gradient(model)


def test_the_gradient_of_the_relus_result_is_not_masked():
    model = to_dtype(model_of(**HALVED), np.float32)
    training = training_of(model, ("x",))
    assert masks_of(training) == [(2, 2, 7, 8)]
    found = onnxruntime_run(training.model)
    assert np.count_nonzero(found[training.retained["x"]]) == found[training.loss].size * 2 * 2 * 3 * 4
    assert np.count_nonzero(found[training.gradients["p0"]]) < 2 * 2 * 3 * 4

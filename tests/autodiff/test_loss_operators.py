"""The loss operators of ONNX inside a model."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import (
    check_gradient,
    check_training_graph,
    infer,
    node_model,
    parse,
    values,
)

X = values(6, 3, seed=8)
WEIGHT = np.asarray([0.5, 1.0, 2.0, 0.7, 1.5])
SHAPES = [((4, 5), (4,)), ((2, 5, 3), (2, 3)), ((2, 5, 2, 2), (2, 2, 2))]


@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize(("weighted", "ignore"), list(itertools.product([False, True], [None, 2, -100])))
def test_loss_operators(op_type, reduction, weighted, ignore):
    for shape, samples in SHAPES:
        scores = values(*shape, seed=4)
        labels = np.random.default_rng(3).integers(0, 5, samples)
        labels.reshape(-1)[0] = 2 if ignore is None else ignore
        attributes = {} if ignore is None else {"ignore_index": ignore}
        # The weights are data, as in torch: not trained unless asked for by name.
        rest = [WEIGHT] if weighted else []
        model = node_model(op_type, scores, labels, *rest, reduction=reduction, **attributes)
        check_gradient(model, wrt=["p0"], idle=["p2"])


@pytest.mark.parametrize("op_type", ["SoftmaxCrossEntropyLoss", "NegativeLogLikelihoodLoss"])
@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
@pytest.mark.parametrize("ignore", [None, 2])
def test_weights_of_classes_by_name(op_type, reduction, ignore):
    attributes = {} if ignore is None else {"ignore_index": ignore}
    labels = np.asarray([[0, 4, 2], [2, 1, 1]])
    model = node_model(op_type, values(2, 5, 3, seed=4), labels, WEIGHT, reduction=reduction, **attributes)
    check_gradient(model, wrt=["p0", "p2"])
    check_gradient(model, wrt=["p2"], idle=["p0"])


def test_weights_of_classes_are_not_trained_unasked():
    model = node_model("SoftmaxCrossEntropyLoss", values(2, 5), np.asarray([0, 4]), WEIGHT)
    training = build_training_graph(infer(model))
    assert "p2" not in training.gradients
    assert any("'p2'" in note for note in training.notes)


@pytest.mark.parametrize("read", [[0, 1], [1], [0]])
def test_logarithms_of_softmax_beside_the_loss(read):
    model = node_model("SoftmaxCrossEntropyLoss", values(4, 5), np.asarray([0, 4, 2, 2]), outputs=2)
    total = next(node for node in model.graph.node if node.op_type == "Sum")
    total.input[:] = [total.input[index] for index in read]
    check_gradient(model, wrt=["p0"])


@pytest.mark.parametrize("reduction", ["none", "sum", "mean"])
def test_one_sample_without_an_axis_of_samples(reduction):
    model = parse(
        "g (double[3] x, int64 label) => (double loss) { z = MatMul(x, w) loss = SoftmaxCrossEntropyLoss"
        f'<reduction="{reduction}", ignore_index=-100>(z, label) }}',
        w=values(3, 5, seed=9),
    )
    feeds = {"x": values(3), "label": np.asarray(2)}
    logits = feeds["x"] @ values(3, 5, seed=9)
    loss = check_training_graph(build_training_graph(model), feeds)
    np.testing.assert_allclose(loss, np.log(np.exp(logits).sum()) - logits[2])


def test_32_bit_labels():
    check_gradient(node_model("SoftmaxCrossEntropyLoss", values(4, 5), np.asarray([0, 4, 2, 2], dtype=np.int32)))


@pytest.mark.parametrize(
    ("logits", "initializers"),
    [
        ("z = MatMul(x, w)", {"w": values(3, 9, seed=9)}),
        ("z = Gemm(x, w, b)", {"w": values(3, 9, seed=9), "b": values(9, seed=4)}),
        ("z = Gemm<transB=1, alpha=0.5, beta=2.0>(x, w, b)", {"w": values(9, 3, seed=9), "b": values(1, 9, seed=4)}),
        ("z = Gemm(x, w, b)", {"w": values(3, 9, seed=9), "b": values(6, 9, seed=4)}),
        (
            "rows = Reshape(x, three) product = MatMul(rows, w) z = Reshape(product, two)",
            {"w": values(3, 9, seed=9), "three": np.asarray([2, 3, 3]), "two": np.asarray([6, 9])},
        ),
    ],
)
def test_the_factors_of_ignored_samples_are_left_to_smaller_matrices(logits, initializers):
    model = parse(
        "g (double[6,3] x, int64[6] labels) => (double loss) "
        f"{{ {logits} loss = SoftmaxCrossEntropyLoss<ignore_index=4>(z, labels) }}",
        **initializers,
    )
    training = build_training_graph(model)
    check_training_graph(training, {"x": X, "labels": np.asarray([0, 4, 8, 2, 4, 3])})
    multiplied = [
        node for node in training.model.graph if node.op_type == "Mul" and node.outputs[0].shape.numpy() == (6, 9)
    ]
    whole_bias = initializers.get("b", np.zeros(1)).shape == (6, 9)  # whose gradient is that of the logits
    assert len(multiplied) == whole_bias

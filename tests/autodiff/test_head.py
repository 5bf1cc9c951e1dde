"""The loss that a model's head suggests, and what is said for it."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import check_training_graph, parse, values

#: Inputs, outputs and nodes of a model whose weights are ``w``; what its loss is put behind and why.
CLASSIFIERS = [
    pytest.param("double[2,3] x", "double[2,5] y", "y = MatMul(x, w)", (3, 5), "y", "5 scores a sample", id="product"),
    pytest.param("double[2,3] x", "double[2,5] y", "y = Gemm(x, w, b)", (3, 5), "y", "5 scores a sample", id="gemm"),
    pytest.param(
        "double[2,3] x",
        "double[2,5] y",
        "h = MatMul(x, w) a = Add(b, h) y = Mul(a, t)",
        (3, 5),
        "y",
        "5 scores",
        id="bias",
    ),
    pytest.param(
        "double[2,3,4,4] x",
        "double[2,5] y",
        "h = Conv(x, w) p = GlobalAveragePool(h) y = Flatten(p)",
        (5, 3, 1, 1),
        "y",
        "5 scores a sample",
        id="pooled",
    ),
    pytest.param(
        "double[2,3,4,4] x", "double[2,5,4,4] y", "y = Conv(x, w)", (5, 3, 1, 1), "y", "5 scores a place", id="segments"
    ),
    pytest.param(
        "double[2,3,4,4] x",
        "double[2,4,4,5] y",
        "h = Conv(x, w) y = Transpose <perm = [0, 2, 3, 1]> (h)",
        (5, 3, 1, 1),
        "y",
        "5 scores a place",
        id="channels-last",
    ),
    pytest.param(
        "double[2,3,4,4] x",
        "double[2,5,4,4] y, double[2,5,2,2] half",
        "y = Conv(x, w) half = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (y)",
        (5, 3, 1, 1),
        "y",
        "5 scores a place",
        id="segments-of-several-sizes",
    ),
    pytest.param("double[2,7,3] x", "double[2,7,5] y", "y = MatMul(x, w)", (3, 5), "y", "5 scores a place", id="steps"),
    pytest.param(
        "int64[2,7] x",
        "double[2,7,9] y",
        "h = Gather(w, x) y = Tanh(h)",
        (9, 9),
        "y",
        "each of the 9 rows of 'w'",
        id="tokens",
    ),
    pytest.param(
        "double[2,3] x",
        "double[2,5] logits",
        "h = MatMul(x, w) logits = Relu(h)",
        (3, 5),
        "logits",
        "it is called 'logits'",
        id="name",
    ),
    pytest.param(
        "double[2,3] x",
        "double[2,5] h, double[2,5] logits",
        "h = MatMul(x, w) logits = Relu(h)",
        (3, 5),
        "logits",
        "it is called 'logits'",
        id="name-of-the-second",
    ),
    pytest.param(
        "double[2,3] x",
        "double[2,5] stage, double[2,5] y",
        "stage = MatMul(x, w) h = Add(stage, b) i = Tanh(h) j = Mul(i, t) y = Softmax(j)",
        (3, 5),
        "y",
        "it ends in a softmax",
        id="last-stage",
    ),
    pytest.param(
        "double[2,3] x",
        "double[2,5] y",
        "h = MatMul(x, w) y = Softmax(h)",
        (3, 5),
        "y",
        "it ends in a softmax",
        id="softmax",
    ),
    pytest.param(
        "double[2,3,4] x",
        "float[2,4,5] y",
        "h = Conv(x, w) s = Softmax <axis = 1> (h) t = Transpose <perm = [0, 2, 1]> (s) y = Cast <to = 1> (t)",
        (5, 3, 1),
        "y",
        "it ends in a softmax",
        id="softmax-of-channels",
    ),
]

NUMBERS = [
    pytest.param(
        "double[2,3] x", "double[2,5] variable", "variable = MatMul(x, w)", (3, 5), "a regression's", id="regression"
    ),
    pytest.param("double[2,3] x", "double[2,1] y", "y = MatMul(x, w)", (3, 1), "one number a sample", id="one"),
    pytest.param("double[2,3] x", "double[2,1] logits", "logits = MatMul(x, w)", (3, 1), "one number", id="one-logit"),
    pytest.param(
        "double[2,3] x", "double[2,3] y", "y = MatMul(x, w)", (3, 3), "the shape of input 'x'", id="autoencoder"
    ),
    pytest.param(
        "double[2,3,4,4] x",
        "double[2,3,8,8] y",
        "y = ConvTranspose <strides = [2, 2]> (x, w)",
        (3, 3, 2, 2),
        "as many channels as input 'x'",
        id="upsampling",
    ),
    pytest.param(
        "double[2,3,4,4] x",
        "double[2,5,4,4] y, double[2,10,2,2] deep",
        "y = Conv(x, w) h = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (y) deep = Concat <axis = 1> (h, h)",
        (5, 3, 1, 1),
        "maps of several sizes",
        id="features-of-several-sizes",
    ),
    pytest.param(
        "double[2,3,8,8] x",
        "double[2,5,4,4] y, double[2,5,2,2] deep",
        "y = Conv <strides = [2, 2]> (x, w) deep = AveragePool <kernel_shape = [2, 2], strides = [2, 2]> (y)",
        (5, 3, 1, 1),
        "maps of several sizes",
        id="pyramid",
    ),
    pytest.param(
        "double[2,7,3] x",
        "double[2,4,3] y",
        "h = MatMul(x, w) y = Slice(h, zero, four, one)",
        (3, 3),
        "nothing tells of classes",
        id="forecast",
    ),
    pytest.param(
        "double[2,3,4,4] x", "double[2,1,4,4] y", "y = Conv(x, w)", (1, 3, 1, 1), "one number a place", id="map"
    ),
    pytest.param(
        "double[2,3] x", "double[2,5] y", "h = MatMul(x, w) y = Tanh(h)", (3, 5), "nothing tells", id="features"
    ),
]

CONSTANTS = {
    "b": values(5),
    "t": np.float64(0.5),
    "zero": np.asarray([0]),
    "one": np.asarray([1]),
    "four": np.asarray([4]),
}


def training_of(inputs: str, outputs: str, nodes: str, weight: tuple[int, ...]):
    used = {name: array for name, array in CONSTANTS.items() if f", {name}" in nodes or f"({name}," in nodes}
    return build_training_graph(parse(f"g ({inputs}) => ({outputs}) {{ {nodes} }}", w=values(*weight, seed=1), **used))


@pytest.mark.parametrize(("inputs", "outputs", "nodes", "weight", "behind", "reason"), CLASSIFIERS)
def test_scores_of_classes_suggest_cross_entropy(inputs, outputs, nodes, weight, behind, reason):
    training = training_of(inputs, outputs, nodes, weight)
    assert training.description.startswith("cross-entropy of ")
    assert f"'{behind}' against input 'labels', since " in training.description
    assert reason in training.description
    rng = np.random.default_rng(0)
    feeds = {}
    for value in training.model.graph.inputs:
        if value.name == "x" and value.dtype.is_floating_point():
            feeds["x"] = values(*value.shape, seed=8)
        elif value.name in ("x", "labels"):
            feeds[value.name] = rng.integers(0, 5, tuple(value.shape))
    check_training_graph(training, feeds)


@pytest.mark.parametrize(("inputs", "outputs", "nodes", "weight", "reason"), NUMBERS)
def test_other_heads_suggest_a_squared_error(inputs, outputs, nodes, weight, reason):
    training = training_of(inputs, outputs, nodes, weight)
    assert training.description.startswith("mean squared error of ")
    assert "against input 'target', since " in training.description
    assert reason in training.description


def test_a_loss_that_the_model_returns_is_taken():
    model = parse(
        "g (double[2,3] x) => (double[2,5] y, double[1] loss) { y = MatMul(x, w) q = Mul(y, y) s = ReduceSum(q) "
        "loss = Reshape(s, one) }",
        w=values(3, 5),
        one=np.asarray([1]),
    )
    training = build_training_graph(model)
    assert training.loss == "loss"
    assert training.description == "the model's output 'loss'"

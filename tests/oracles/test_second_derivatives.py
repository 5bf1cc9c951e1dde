"""Gradients of gradients against torch's double backward, in float64."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import onnx
import onnx_ir as ir
import pytest

pytest.importorskip("torch", reason="the torch oracle needs torch; install ckplan[oracle]")

import torch

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.model.loading import normalise
from tests.autodiff.gradcheck import reference, values
from tests.oracles.torch_oracle import _run, _start

TANH_MLP = """g (double[6,4] x, int64[6] labels) => (double loss) {
  h = MatMul(x, w1)
  hb = Add(h, b1)
  t = Tanh(hb)
  u = MatMul(t, w2)
  ub = Add(u, b2)
  v = Tanh(ub)
  scores = Gemm <transB = 1> (v, w3, b3)
  loss = SoftmaxCrossEntropyLoss (scores, labels)
}"""
MLP_WEIGHTS = {
    "w1": values(4, 8, seed=1),
    "b1": values(8, seed=2),
    "w2": values(8, 8, seed=3, low=-1, high=1),
    "b2": values(8, seed=4),
    "w3": values(3, 8, seed=5),
    "b3": values(3, seed=6),
}
MLP_FEEDS = {"x": values(6, 4, seed=7), "labels": np.asarray([0, 2, 1, 1, 0, 2])}

ATTENTION = """g (double[2,5,8] x, double[2,5,8] target) => (double loss) {
  n = LayerNormalization <axis = -1> (x, scale, bias)
  q0 = MatMul(n, wq)
  k0 = MatMul(n, wk)
  v0 = MatMul(n, wv)
  q1 = Reshape(q0, split)
  k1 = Reshape(k0, split)
  v1 = Reshape(v0, split)
  q = Transpose <perm = [0, 2, 1, 3]> (q1)
  k = Transpose <perm = [0, 2, 3, 1]> (k1)
  v = Transpose <perm = [0, 2, 1, 3]> (v1)
  s0 = MatMul(q, k)
  s1 = Mul(s0, half)
  p = Softmax <axis = -1> (s1)
  a0 = MatMul(p, v)
  a1 = Transpose <perm = [0, 2, 1, 3]> (a0)
  a = Reshape(a1, joined)
  o = MatMul(a, wo)
  r = Add(x, o)
  m0 = MatMul(r, w1)
  m1 = Gelu <approximate = "tanh"> (m0)
  m2 = MatMul(m1, w2)
  y = Add(r, m2)
  d = Sub(y, target)
  e = Mul(d, d)
  loss = ReduceMean <keepdims = 0> (e)
}"""
ATTENTION_WEIGHTS = {
    "scale": values(8, seed=1),
    "bias": values(8, seed=2),
    **{name: values(8, 8, seed=index, low=-1, high=1) for index, name in enumerate(("wq", "wk", "wv", "wo"), 3)},
    "w1": values(8, 12, seed=7, low=-1, high=1),
    "w2": values(12, 8, seed=8, low=-1, high=1),
}
ATTENTION_CONSTANTS = {"split": np.asarray([2, 5, 2, 4]), "joined": np.asarray([2, 5, 8]), "half": np.asarray(0.5)}
ATTENTION_FEEDS = {"x": values(2, 5, 8, seed=9), "target": values(2, 5, 8, seed=10)}

NETWORKS = {
    "tanh MLP": (TANH_MLP, MLP_WEIGHTS, {}, MLP_FEEDS),
    "attention block": (ATTENTION, ATTENTION_WEIGHTS, ATTENTION_CONSTANTS, ATTENTION_FEEDS),
}


def network(name: str) -> tuple[onnx.ModelProto, list[str], dict[str, np.ndarray]]:
    text, weights, constants, feeds = NETWORKS[name]
    model = onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}')
    for key, array in {**weights, **constants}.items():
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, key))
    return model, list(weights), feeds


def first(model: onnx.ModelProto, weights: Sequence[str]) -> TrainingGraph:
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return build_training_graph(normalise(ir.from_proto(copy)).model, loss="loss", wrt=weights)


def run(training: TrainingGraph, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    with np.errstate(over="ignore", invalid="ignore"):  # the evaluator's Sigmoid computes both of its branches
        return reference(training.model, feeds)


class Twice:
    """A network's gradients in torch, kept differentiable."""

    def __init__(self, model: onnx.ModelProto, weights: Sequence[str], feeds: Mapping[str, np.ndarray]) -> None:
        graph, found = _start(model, feeds, torch.float64)
        self.leaves = [found[name].clone().requires_grad_() for name in weights]
        found.update(zip(weights, self.leaves, strict=True))
        _run(graph, found, ["loss"], torch.float64)
        self.gradients = torch.autograd.grad(found["loss"].reshape(()), self.leaves, create_graph=True)

    def differentiate(self, value: torch.Tensor) -> list[np.ndarray]:
        found = torch.autograd.grad(value, self.leaves, retain_graph=True, allow_unused=True)
        return [np.zeros(leaf.shape) if g is None else g.numpy() for g, leaf in zip(found, self.leaves, strict=True)]


def compare(second: TrainingGraph, found: dict[str, np.ndarray], names: Sequence[str], expected: list[np.ndarray]):
    for name, theirs in zip(names, expected, strict=True):
        ours = found[second.gradients[name]] if name in second.gradients else np.zeros_like(theirs)
        np.testing.assert_allclose(ours, theirs, rtol=1e-9, atol=1e-9 * np.abs(theirs).max(), err_msg=name)


@pytest.mark.parametrize("name", NETWORKS)
def test_product_of_the_hessian_and_a_vector(name: str) -> None:
    model, weights, feeds = network(name)
    training = first(model, weights)
    second = build_training_graph(training.model, grad_ys=list(training.gradients.values()))
    twice = Twice(model, weights, feeds)
    directions = {w: values(*leaf.shape, seed=11) for w, leaf in zip(weights, twice.leaves, strict=True)}
    given = {f"{training.gradients[w]}_given_grad": direction for w, direction in directions.items()}
    pairs = zip(twice.gradients, directions.values(), strict=True)
    product = sum((gradient * torch.from_numpy(direction)).sum() for gradient, direction in pairs)
    compare(second, run(second, {**feeds, **given}), weights, twice.differentiate(product))


@pytest.mark.parametrize("name", NETWORKS)
def test_penalty_on_the_norm_of_the_gradient(name: str) -> None:
    model, weights, feeds = network(name)
    training = first(model, weights)
    second = build_training_graph(
        training.model, loss=[f"sum-of-squares:{gradient}" for gradient in training.gradients.values()]
    )
    twice = Twice(model, weights, feeds)
    penalty = sum(gradient.square().sum() for gradient in twice.gradients)
    compare(second, run(second, feeds), weights, twice.differentiate(penalty))


def test_a_whole_row_block_of_the_hessian() -> None:
    """One row after the other: nothing cancels."""
    model, weights, feeds = network("tanh MLP")
    training = first(model, weights)
    second = build_training_graph(training.model, grad_ys=[training.gradients["b2"]])
    twice = Twice(model, weights, feeds)
    by_b2 = twice.gradients[weights.index("b2")]
    for index in range(by_b2.numel()):
        given = {f"{training.gradients['b2']}_given_grad": np.eye(by_b2.numel())[index]}
        compare(second, run(second, {**feeds, **given}), weights, twice.differentiate(by_b2[index]))

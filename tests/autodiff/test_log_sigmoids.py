"""The logarithm of a sigmoid has a value and a gradient wherever it has one in torch."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import onnxruntime_run, parse

X = np.asarray([-200.0, -90.0, -20.0, -3.0, 0.0, 3.0, 12.0, 40.0, 200.0], np.float32)
ONE = "s = Sigmoid(h) y = Log(s)"
BOTH = """s = Sigmoid(h) a = Log(s) r = Sub(one, s) b = Log(r) p = Mul(a, labels) q = Mul(b, others) e = Add(p, q)
    y = Neg(e)"""
LABELS = np.asarray([1, 0, 0, 1, 0, 1, 1, 0, 1], np.float32)


def graph(nodes: str, **options: list[str]) -> TrainingGraph:
    text = f"g (float[9] x) => (float loss) {{ h = Mul(w, x) {nodes} loss = ReduceSum<keepdims = 0>(y) }}"
    given = {"one": np.ones((), np.float32), "labels": LABELS, "others": 1 - LABELS}
    used = {name: array for name, array in given.items() if name in nodes}
    return build_training_graph(parse(text, w=np.ones(9, np.float32), **used), wrt=["w"], **options)


def test_the_gradient_is_that_of_a_softplus() -> None:
    found, exact = onnxruntime_run(graph(ONE).model, {"x": X}), X.astype(np.float64)
    np.testing.assert_allclose(found["loss"], -np.logaddexp(0, -exact).sum(), rtol=1e-6)
    np.testing.assert_allclose(found["w_grad"], exact * np.exp(-np.logaddexp(0, exact)), rtol=1e-5, atol=1e-5)


def test_a_cross_entropy_of_logits_has_no_infinities() -> None:
    found, exact = onnxruntime_run(graph(BOTH).model, {"x": X}), X.astype(np.float64)
    losses = LABELS * np.logaddexp(0, -exact) + (1 - LABELS) * np.logaddexp(0, exact)
    np.testing.assert_allclose(found["loss"], losses.sum(), rtol=1e-6)
    expected = exact * (np.exp(-np.logaddexp(0, -exact)) - LABELS)
    np.testing.assert_allclose(found["w_grad"], expected, rtol=1e-5, atol=1e-5)


def test_what_else_reads_the_sigmoid_goes_on_doing_so() -> None:
    found, exact = onnxruntime_run(graph("s = Sigmoid(h) l = Log(s) y = Mul(l, s)").model, {"x": X}), X.astype(float)
    chance = np.exp(-np.logaddexp(0, -exact))
    np.testing.assert_allclose(found["loss"], (-chance * np.logaddexp(0, -exact)).sum(), rtol=1e-4)
    assert np.isfinite(found["w_grad"]).all()


@pytest.mark.parametrize(
    ("nodes", "options"),
    [(ONE, {"retain_grad": ["s"]}), ("y = Log(h)", {}), ("s = Sigmoid(h) r = Sub(s, one) y = Log(r)", {})],
    ids=["its gradient is asked for", "of something else", "less one"],
)
def test_others_are_left_alone(nodes: str, options: dict[str, list[str]]) -> None:
    assert "Softplus" not in {node.op_type for node in graph(nodes, **options).model.graph}

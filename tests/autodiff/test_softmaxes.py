"""Softmaxes that are written out in arithmetic are one node again, however they are written."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from tests.autodiff.gradcheck import parse, values
from tests.autodiff.written_formulas import between_products, forward_operators, results_of

FED = (6, 3)
LAST, FIRST = np.array([-1]), np.array([0])
KEPT, WHOLE = np.array([6, 1]), np.array([6, 4])
CONSTANTS = {"last": LAST, "first": FIRST, "kept": KEPT, "whole": WHOLE, "lowest": np.array(-np.inf)}

SOFTMAX = {
    "plain": "m = ReduceMax(h, last) d = Sub(h, m) e = Exp(d) s = ReduceSum(e, last) y = Div(e, s)",
    "without a maximum": "e = Exp(h) s = ReduceSum(e, last) y = Div(e, s)",
    "of JAX": "m = ReduceMax<keepdims = 0>(h, last) n = Max(lowest, m) r = Reshape(n, kept) u = Expand(r, whole) "
    "d = Sub(h, u) e = Exp(d) s = ReduceSum<keepdims = 0>(e, last) t = Unsqueeze(s, last) v = Expand(t, whole) "
    "y = Div(e, v)",
    "along the first axis": "m = ReduceMax(h, first) d = Sub(h, m) e = Exp(d) s = ReduceSum(e, first) y = Div(e, s)",
}
LOG_SOFTMAX = {
    "plain": "m = ReduceMax(h, last) d = Sub(h, m) e = Exp(d) s = ReduceSum(e, last) l = Log(s) y = Sub(d, l)",
    "of JAX": "m = ReduceMax<keepdims = 0>(h, last) r = Reshape(m, kept) i = Identity(r) d = Sub(h, i) e = Exp(d) "
    "s = ReduceSum<keepdims = 0>(e, last) t = Reshape(s, kept) l = Log(t) y = Sub(d, l)",
}
LEFT_ALONE = {
    "a sum of others": SOFTMAX["plain"].replace("ReduceSum(e,", "ReduceSum(h,"),
    "sums of rows laid along columns": "c = Slice(h, first, four, first) e = Exp(c) "
    "s = ReduceSum<keepdims = 0>(e, last) y = Div(e, s)",
    "two logarithms": LOG_SOFTMAX["plain"].replace("l = Log(s)", "o = Log(s) l = Log(o)"),
    "the exponential is read elsewhere": SOFTMAX["plain"].replace("y =", "q =") + " y = Add(q, e)",
    "another numerator": SOFTMAX["plain"].replace("Div(e,", "Div(h,"),
}


def graph(nodes: str, dtype: str = "double", outputs: str = "", **options: Any) -> TrainingGraph:
    return between_products(nodes, FED, 4, {**CONSTANTS, "four": np.array([4])}, dtype, outputs, **options)


@pytest.mark.parametrize(
    ("op_type", "nodes"),
    [*(("Softmax", nodes) for nodes in SOFTMAX.values()), *(("LogSoftmax", nodes) for nodes in LOG_SOFTMAX.values())],
    ids=[*SOFTMAX, *(f"logarithm, {name}" for name in LOG_SOFTMAX)],
)
def test_it_is_one_node_and_its_gradients_are_those_of_what_was_written(op_type: str, nodes: str) -> None:
    joined, written = graph(nodes), graph(nodes, retain_grad=["e"])
    assert forward_operators(joined) == Counter(["MatMul", op_type, "MatMul", "Mul", "ReduceSum"])
    assert forward_operators(written)["Exp"] == 1  # somebody asks for what is inside
    compared = results_of(joined, written, graph(nodes, "float"), FED)
    for array, expected, single in compared.values():
        np.testing.assert_allclose(array, expected, rtol=1e-9, atol=1e-12)
        np.testing.assert_allclose(single, expected, rtol=1e-4, atol=1e-5 * np.abs(array).max())


@pytest.mark.parametrize("nodes", LEFT_ALONE.values(), ids=LEFT_ALONE)
def test_another_function_and_what_is_read_inside_are_left_alone(nodes: str) -> None:
    kinds = forward_operators(graph(nodes))
    assert not kinds["Softmax"]
    assert not kinds["LogSoftmax"]


@pytest.mark.parametrize(
    ("outputs", "options"),
    [
        ("double[6,4] e,", {"loss": ["loss", "sum:e"]}),
        ("", {"retain_grad": ["d"]}),
        ("", {"no_grad": ["e"]}),
        ("", {"grad_ys": ["s"], "loss": None}),
    ],
    ids=["a loss of it", "asked for its gradient", "where gradients stop", "differentiated"],
)
def test_what_somebody_knows_inside_stays(outputs: str, options: dict[str, Any]) -> None:
    assert not forward_operators(graph(SOFTMAX["plain"], outputs=outputs, **options))["Softmax"]


def test_an_output_that_ends_in_one_is_of_classes() -> None:
    text = "g (double[6,3] x) => (double[6,4] y) { h = MatMul(x, w) " + SOFTMAX["of JAX"] + " }"
    training = build_training_graph(parse(text, w=values(3, 4), **CONSTANTS))
    assert training.description.startswith("cross-entropy of the logits 'h' of output 'y'")
    assert list(training.gradients) == ["w"]  # and nobody is told of the numbers inside
    assert not [note for note in training.notes if "lowest" in note and "no gradient" in note]

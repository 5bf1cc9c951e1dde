"""Gradients of If."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from ckplan.errors import UnsupportedOperatorsError
from tests.autodiff.control_flow.models import check, parse, single, training_graph
from tests.autodiff.gradcheck import onnxruntime_run

NESTED = """g (bool outer, bool inner) => (double loss) {
    x = Mul(X, s)
    y, z = If (outer) <
        then_branch = a () => (double[2,4] p, double[4] v) {
            m = MatMul(x, W)
            p = Tanh(m)
            v = Identity(V)
        },
        else_branch = b () => (double[2,4] q, double[4] w) {
            q = If (inner) <
                then_branch = c () => (double[2,4] e) { d = Sigmoid(Y) e = Mul(d, V) },
                else_branch = f () => (double[2,4] h) { h = Gelu(Y) }
            >
            w = ReduceSum<keepdims = 0>(q, first)
        }
    >
    l = ReduceSum<keepdims = 0>(y)
    r = Mul(z, z)
    k = ReduceSum<keepdims = 0>(r)
    loss = Add(l, k)
}"""


def nested():
    rng = np.random.default_rng(0)
    shapes = {"X": (2, 3), "s": (3,), "W": (3, 4), "V": (4,), "Y": (2, 4)}
    return parse(NESTED, **{name: rng.normal(size=shape) for name, shape in shapes.items()}, first=np.array([0]))


@pytest.mark.parametrize(("outer", "inner"), list(itertools.product([True, False], repeat=2)))
def test_nested_branches(outer, inner):
    _, gradients = check(nested(), {"outer": np.array(outer), "inner": np.array(inner)})
    assert set(gradients) == {"X", "s", "W", "V", "Y"}
    assert gradients["W"].any() == outer
    assert gradients["Y"].any() != outer
    assert gradients["V"].any() == (outer or inner)


def test_weights_inside_branches_are_trained():
    model = nested()
    choice = next(node for node in model.graph.node if node.op_type == "If")
    then = next(attribute.g for attribute in choice.attribute if attribute.name == "then_branch")
    for name in ("W", "V"):
        tensor = next(t for t in model.graph.initializer if t.name == name)
        then.initializer.append(tensor)
        then.initializer[-1].name = f"{name}_inside"
    for node in then.node:
        for index, name in enumerate(node.input):
            if name in ("W", "V"):
                node.input[index] = f"{name}_inside"
    # An initializer that is the result of a branch itself.
    then.output[1].name = "V_inside"
    del then.node[2]
    feeds = {"outer": np.array(True), "inner": np.array(True)}
    _, gradients = check(model, feeds)
    assert set(gradients) == {"X", "s", "W_inside", "V", "V_inside", "Y"}
    _, expected = check(nested(), feeds)
    np.testing.assert_array_equal(gradients["W_inside"], expected["W"])


@pytest.mark.parametrize("outer", [True, False])
def test_what_is_stored_changes_no_bit(outer):
    feeds = {"outer": np.array(outer), "inner": np.array(True)}

    model = single(nested())
    expected, stored = training_graph(model), training_graph(model, store=["*"])
    before, after = onnxruntime_run(expected.model, feeds), onnxruntime_run(stored.model, feeds)
    for name, gradient in expected.gradients.items():
        np.testing.assert_array_equal(before[gradient], after[stored.gradients[name]], err_msg=name)

    def outputs(training):
        return [len(node.outputs) for node in training.model.graph if node.op_type == "If"]

    assert outputs(expected)[0] == 2
    assert outputs(stored)[0] > 2


def test_what_is_drawn_in_a_branch_is_kept():
    text = """g (bool flag) => (float loss) {
        y = If (flag) <
            then_branch = a () => (float[64] p) { n = RandomNormalLike(X) p = Mul(n, X) },
            else_branch = b () => (float[64] q) { q = Neg(X) }
        >
        loss = ReduceSum<keepdims = 0>(y)
    }"""
    model = parse(text, X=np.ones(64, np.float32))
    training = training_graph(model)
    for flag in (True, False):
        got = onnxruntime_run(training.model, {"flag": np.array(flag)})
        np.testing.assert_allclose(got[training.gradients["X"]].sum(), got[training.loss], rtol=1e-5)


def test_what_is_drawn_in_a_branch_in_a_loop_is_kept():
    text = """g (bool flag) => (float loss) {
        last = Scan <num_scan_inputs = 1, body = s (float[64] h, float[64] x) => (float[64] n) {
            y = If (flag) <
                then_branch = a () => (float[64] p) { r = RandomNormalLike(x) p = Mul(r, W) },
                else_branch = b () => (float[64] q) { q = Mul(x, W) }
            >
            n = Add(h, y)
        }> (H, X)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    model = parse(text, H=np.zeros(64, np.float32), W=np.ones(64, np.float32), X=np.ones((5, 64), np.float32))
    for chunks in (None, 2):
        training = training_graph(model, time_checkpoints=chunks)
        for flag in (True, False):
            got = onnxruntime_run(training.model, {"flag": np.array(flag)})
            np.testing.assert_allclose(got[training.gradients["W"]].sum(), got[training.loss], rtol=1e-5)


def test_branches_of_different_shapes_are_refused():
    text = """g (bool flag) => (double loss) {
        y = If (flag) <
            then_branch = a () => (double[3] p) { p = Mul(X, X) },
            else_branch = b () => (double[1] q) { q = ReduceSum<keepdims = 1>(X, first) }
        >
        loss = ReduceSum<keepdims = 0>(y)
    }"""
    model = parse(text, X=np.ones(3), first=np.array([0]))
    with pytest.raises(UnsupportedOperatorsError, match=r"If 'node' \(its branches give 'y' different shapes"):
        training_graph(model)


def test_a_branch_that_does_not_matter_costs_no_parameter():
    """Only the branch that depends on the parameter is asked for a gradient, and a known condition leaves no If."""
    text = """g (double[3] x) => (double loss) {
        y = If (flag) <
            then_branch = a () => (double[3] p) { p = Mul(x, W) },
            else_branch = b () => (double[3] q) { q = Exp(V) }
        >
        loss = ReduceSum<keepdims = 0>(y)
    }"""
    model = parse(text, W=np.ones(3), V=np.ones(3), flag=np.array(True))
    training, gradients = check(model, {"x": np.arange(3.0)})
    assert set(gradients) == {"W"}
    assert not any(node.op_type == "If" for node in training.model.graph)

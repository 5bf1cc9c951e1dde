"""Gradients of Loop."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import UnsupportedOperatorsError
from tests.autodiff.control_flow.models import check, parse, run, training_graph
from tests.autodiff.control_flow.recurrences import loop_model


def kinds(training):
    return [node.op_type for node in training.model.graph if node.op_type in ("If", "Loop", "Scan")]


@pytest.mark.parametrize("chunks", [None, 3, "sqrt"])
def test_a_fixed_number_of_steps_is_a_scan(chunks):
    training, gradients = check(loop_model(7), time_checkpoints=chunks)
    assert kinds(training).count("Loop") == 0
    assert set(gradients) == {"W", "R", "h0", "X"}
    assert not training.notes


def test_a_sequence_of_as_many_rows_as_steps_is_read_row_by_row():
    """Else its gradient would be summed up, all of it in every step."""
    training = training_graph(loop_model(7))
    forward, backward = (node for node in training.model.graph if node.op_type == "Scan")
    assert "X" in [value.name for value in forward.inputs]
    assert not any(node.op_type == "ScatterElements" for node in backward.attributes["body"].as_graph())


def test_fewer_steps_than_rows():
    _, gradients = check(loop_model(5))
    assert not gradients["X"][5:].any()
    assert gradients["X"][4].any()


def test_no_steps():
    _, gradients = check(loop_model(0, stacked=False))
    assert gradients["h0"].any()
    assert set(gradients) == {"h0"}


LIMIT = "a2 = Mul(h, h) t = ReduceSum<keepdims = 0>(a2) goes = Less(t, limit)"


@pytest.mark.parametrize("limit", [-1.0, 0.9, 1.5, 2.5, 100.0])
def test_a_number_of_steps_that_depends_on_data(limit):
    model = loop_model(6, LIMIT, "double limit", stacked=False)
    training, gradients = check(model, {"limit": np.array(limit)})
    assert kinds(training) == ["Loop", "Loop"]
    assert gradients["h0"].any()


def test_the_tests_above_run_different_numbers_of_steps():
    model = loop_model(6, LIMIT, "double limit", stacked=False)
    training = training_graph(model)
    losses = {
        float(run(training.model, {"limit": np.array(limit)})[training.loss]) for limit in (-1.0, 0.9, 1.5, 2.5, 100.0)
    }
    assert len(losses) >= 3


def test_a_first_condition_that_is_false():
    text = """g (bool start) => (double loss) {
        last = Loop <body = b (int64 i, bool c, double[3] h) => (bool goes, double[3] n) {
            goes = Identity(c)
            n = Mul(h, W)
        }> (M, start, H)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    model = parse(text, H=np.array([1.0, 2.0, 3.0]), W=np.array([2.0, 3.0, 0.5]), M=np.array(4))
    for start in (True, False):
        _, gradients = check(model, {"start": np.array(start)})
        np.testing.assert_allclose(gradients["H"], np.array([16.0, 81.0, 0.0625]) if start else np.ones(3))


def test_an_unbounded_number_of_steps_is_refused():
    model = loop_model(2**62, LIMIT, "double limit", stacked=False)
    with pytest.raises(
        UnsupportedOperatorsError, match=r"Loop 'node' \(how often it runs depends on data and has no bound"
    ):
        training_graph(model)


def test_the_gradient_of_a_number_of_steps_that_depends_on_data_is_not_differentiated_again():
    """There is a bound, so that is not the reason."""
    training = training_graph(loop_model(6, LIMIT, "double limit", stacked=False))
    with pytest.raises(UnsupportedOperatorsError, match="it is the gradient of a Loop that runs as often as data say"):
        build_training_graph(training.model, loss=[f"sum-of-squares:{name}" for name in training.gradients.values()])


def test_rows_whose_number_depends_on_data_are_refused():
    with pytest.raises(
        UnsupportedOperatorsError, match=r"its output 'ys' has as many rows as it runs, which depends on data"
    ):
        training_graph(loop_model(6, LIMIT, "double limit"))


def test_a_state_that_grows_is_refused():
    text = """g () => (double loss) {
        last = Loop <body = b (int64 i, bool c, double[N] h) => (bool goes, double[K] n) {
            goes = Identity(c)
            w = Mul(h, W)
            n = Concat<axis = 0>(w, H)
        }> (M, , H)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    model = parse(text, H=np.ones(3), W=np.ones(1), M=np.array(4))
    with pytest.raises(
        UnsupportedOperatorsError, match=r"Loop 'node' \(its carried value 'h' changes its shape from step to step"
    ):
        training_graph(model)


def test_loops_in_loops_and_branches():
    text = """g () => (double loss) {
        last = Loop <body = b (int64 i, bool c, double[3] h) => (bool goes, double[3] n) {
            goes = Identity(c)
            t = ReduceSum<keepdims = 0>(h)
            big = Greater(t, limit)
            m = If (big) <
                then_branch = then () => (double[3] a) {
                    a = Loop <body = d (int64 j, bool e, double[3] k) => (bool f, double[3] l) {
                        f = Identity(e)
                        l = Mul(k, W)
                    }> (two, , h)
                },
                else_branch = other () => (double[3] o) { o = Exp(h) }
            >
            n = Add(m, W)
        }> (M, , H)
        q = Mul(last, last)
        loss = ReduceSum<keepdims = 0>(q)
    }"""
    arrays = {"H": np.array([0.1, -0.2, 0.3]), "W": np.array([0.7, 0.4, -0.3])}
    model = parse(text, **arrays, M=np.array(4), two=np.array(2), limit=np.array(1.0))
    for chunks in (None, 2):
        training, _ = check(model, time_checkpoints=chunks)
        assert not training.notes


@pytest.mark.parametrize("options", [{}, {"time_checkpoints": 2}, {"store": ["*"]}], ids=str)
@pytest.mark.parametrize("limit", [0.5, 100.0])
def test_a_number_of_steps_that_depends_on_data_inside_a_loop(limit, options):
    text = """g (double limit) => (double loss) {
        last = Scan <num_scan_inputs = 1, body = b (double[3] h, double[3] x) => (double[3] n) {
            m = Loop <body = d (int64 j, bool e, double[3] k) => (bool f, double[3] l) {
                t = ReduceSumSquare<keepdims = 0>(k)
                f = Less(t, limit)
                w = Mul(k, W)
                l = Add(w, x)
            }> (six, , h)
            n = Tanh(m)
        }> (H, X)
        q = Mul(last, last)
        loss = ReduceSum<keepdims = 0>(q)
    }"""
    rng = np.random.default_rng(0)
    arrays = {"H": rng.normal(size=3), "W": rng.normal(size=3), "X": rng.normal(size=(4, 3)), "six": np.array(6)}
    check(parse(text, **arrays), {"limit": np.array(limit)}, **options)

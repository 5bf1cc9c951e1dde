"""Loops as they come from TensorFlow: no trip count, a condition that counts, weights carried along as states."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.errors import UnsupportedOperatorsError
from ckplan.model import normalise
from tests.autodiff.control_flow.models import check, parse, training_graph

RNN = """g (double[6,2,3] x) => (double loss) {{
    goes = Less(zero, limit_as_double)
    steps, last, same, also, rows = Loop <body = b (
        int64 i, bool c, int32 time, double[2,4] h, int32 limit, double[3,4] w
    ) => (bool again, int32 next, double[2,4] n, int32 limit_on, double[3,4] w_on, double[2,4] row) {{
        next = Add(time, one)
        r = Gather(x, time)
        m = MatMul(r, w)
        s = MatMul(h, R)
        a = Add(m, s)
        n = Tanh(a)
        row = Identity(n)
        limit_on = Identity(limit)
        w_on = Identity(w)
        before = Cast<to = 1>(next)
        behind = Cast<to = 1>(limit_on)
        again = Less(before, behind)
    }}> ({trips}, goes, start, h0, limit, W)
    t = ReduceSumSquare<keepdims = 0>(rows)
    u = ReduceSum<keepdims = 0>(same)
    v = ReduceSumSquare<keepdims = 0>(also)
    casted = Cast<to = 11>(u)
    tv = Add(t, v)
    loss = Add(tv, casted)
}}"""

FEEDS = {"x": np.random.default_rng(0).standard_normal((6, 2, 3))}


def rnn(limit: int, trips: int | None = None):
    generator = np.random.default_rng(3)
    numbers = {"zero": np.zeros(1), "one": np.int32(1), "start": np.int32(0), "limit": np.int32(limit)}
    weights = {"W": generator.standard_normal((3, 4)), "R": generator.standard_normal((4, 4)) / 2}
    given = {} if trips is None else {"M": np.asarray(trips)}
    text = RNN.format(trips='""' if trips is None else "M")
    arrays = {**numbers, **weights, **given, "h0": np.full((2, 4), 0.1), "limit_as_double": np.full(1, float(limit))}
    return parse(text, **arrays)


def loops(model: ir.Model) -> list[ir.Node]:
    return [node for node in model.graph if node.op_type in ("Loop", "Scan")]


@pytest.mark.parametrize(("limit", "trips", "rows"), [(6, None, 6), (4, None, 4), (6, 3, 3), (3, 1 << 40, 3)])
def test_a_condition_that_counts_is_a_trip_count(limit, trips, rows):
    training, gradients = check(rnn(limit, trips), FEEDS)
    assert [node.op_type for node in loops(training.model)] == ["Scan", "Scan"]
    assert {"W", "R"} <= set(gradients)
    assert next(iter(loops(training.model))).outputs[-1].shape[0] == rows


def test_weights_that_are_carried_along_are_kept_once():
    """As states they would be stacked for the backward pass, once for each step."""
    training = training_graph(rnn(6))
    forward = loops(training.model)[0]
    assert not any(list(output.shape or ())[-2:] == [3, 4] for output in forward.outputs)
    assert "W" not in [value.name for value in forward.inputs if value is not None]


def test_what_no_step_changes_comes_out_as_it_went_in():
    """Both readers of `W`, the one inside the loop and the one behind it, add to its gradient."""
    _, gradients = check(rnn(5), FEEDS)
    assert np.abs(gradients["W"]).min() > 0


COUNTED_BY_DATA = """g (double[3] x, int64 most) => (double loss) {
    goes = Less(zero, most)
    n, last = Loop <body = b (int64 i, bool c, int64 k, double[3] h) => (bool again, int64 next, double[3] y) {
        next = Add(k, one)
        y = Mul(h, W)
        again = Less(next, most)
    }> ("", goes, zero, x)
    loss = ReduceSum<keepdims = 0>(last)
}"""


def test_a_count_that_data_decide_stays_open():
    model = parse(COUNTED_BY_DATA, W=np.ones(3), zero=np.asarray(0), one=np.asarray(1))
    with pytest.raises(UnsupportedOperatorsError, match="give it a constant trip count"):
        build_training_graph(normalise(ir.from_proto(model)).model)


def test_a_loop_that_would_not_end_is_left_as_it_is():
    model = parse(COUNTED_BY_DATA, W=np.ones(3), zero=np.asarray(0), one=np.asarray(0))
    del model.graph.input[1]
    model.graph.initializer.append(onnx_number("most", 4))
    with pytest.raises(UnsupportedOperatorsError, match="give it a constant trip count"):
        build_training_graph(normalise(ir.from_proto(model)).model)


def test_a_loop_without_states_and_without_a_first_condition():
    text = """g () => (double loss) {
        rows = Loop <body = b (int64 i, bool c) => (bool again, double[3] row) {
            again = Less(i, two)
            t = Cast<to = 11>(i)
            row = Mul(W, t)
        }> (M)
        loss = ReduceSumSquare<keepdims = 0>(rows)
    }"""
    model = parse(text, M=np.asarray(9), two=np.asarray(2), W=np.array([1.0, 2.0, 3.0]))
    training, gradients = check(model)
    assert loops(training.model)[0].outputs[0].shape[0] == 3
    np.testing.assert_allclose(gradients["W"], 2 * (0 + 1 + 4) * np.array([1.0, 2.0, 3.0]))


def onnx_number(name: str, number: int):
    return ir.to_proto(ir.Tensor(np.asarray(number), name=name))


@pytest.mark.parametrize("kept", ["output", "twice"])
def test_an_unchanged_state_that_is_a_result_stays(kept):
    text = f"""g (double[3] x) => (double loss{", double[3] same" if kept == "output" else ""}) {{
        same, rows = Loop <body = b (int64 i, bool c, double[3] w) => (bool again, double[3] w_on, double[3] row) {{
            again = Identity(c)
            w_on = Identity(w)
            row = {"Mul(w, x)" if kept == "output" else "Identity(w)"}
        }}> (M, "", W)
        a = ReduceSumSquare<keepdims = 0>(rows)
        b = ReduceSum<keepdims = 0>(same)
        loss = Add(a, b)
    }}"""
    _, gradients = check(parse(text, M=np.asarray(4), W=np.array([1.0, 2.0, 3.0])), {"x": np.array([0.5, 1.0, 2.0])})
    assert gradients["W"].shape == (3,)

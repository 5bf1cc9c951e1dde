"""Gradients of Scan."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckplan.autodiff import build_training_graph
from ckplan.errors import UnsupportedOperatorsError, UsageError
from tests.autodiff.control_flow.models import check, parse, run, single, training_graph
from tests.autodiff.control_flow.recurrences import Form, scan_model
from tests.autodiff.gradcheck import onnxruntime_run, slope

FORMS = [
    Form(),
    Form(steps=1, states=2),
    Form(states=3, in_axes=(1, 2), in_back=(0, 1), out_axes=(0, -1), out_back=(1, 0)),
    Form(steps=4, in_axes=(2, -2), in_back=(1, 1), out_axes=(1, 2), out_back=(1, 1), shared=True),
    Form(shared=True),
    Form(shared=True, states=2, out_axes=(2, 0), out_back=(0, 1)),
]


@pytest.mark.parametrize("form", FORMS, ids=str)
def test_gradients(form):
    _, gradients = check(scan_model(form))
    assert set(gradients) == {"W", "R", "X", "U", "V", *(f"i{k}" for k in range(form.states))}


# Not the profile's number of examples: each takes a tenth of a second.
few = settings(max_examples=12, deadline=None)
axes = st.tuples(st.integers(-3, 2), st.integers(-3, 2))
directions = st.tuples(st.integers(0, 1), st.integers(0, 1))


@few
@given(
    form=st.builds(
        Form,
        steps=st.integers(1, 4),
        states=st.integers(1, 3),
        in_axes=axes,
        in_back=directions,
        out_axes=axes,
        out_back=directions,
        shared=st.booleans(),
    ),
    chunks=st.sampled_from([None, 2, 3]),
)
def test_all_axes_directions_and_numbers_of_states(form, chunks):
    check(scan_model(form), time_checkpoints=chunks)


def loops(training):
    return [node for node in training.model.graph if node.op_type == "Scan"]


def kept(training):
    """Names of the sequences that the forward Scan outputs for the backward pass."""
    return {str(value.name) for value in loops(training)[0].outputs if str(value.name).endswith("/steps")}


@pytest.mark.parametrize("store", [["none"], ["t"], ["*"], ["a", "c"]], ids=" ".join)
def test_what_is_stored_changes_no_bit(store):
    model = single(scan_model(Form(steps=6)))
    expected = training_graph(model)
    stored = training_graph(model, store=store)
    before, after = onnxruntime_run(expected.model), onnxruntime_run(stored.model)
    for name, gradient in expected.gradients.items():
        np.testing.assert_array_equal(before[gradient], after[stored.gradients[name]], err_msg=name)


def test_what_is_stored():
    model = scan_model(Form())
    # What is made of the two products is as good as they are, and takes half of their memory.
    assert kept(training_graph(model)) == {"h0/steps", "t/steps"}
    assert kept(training_graph(model, store=["none"])) == {"h0/steps"}
    assert kept(training_graph(model, store=["t"])) == {"h0/steps", "t/steps"}
    # The state is a result of the model, so that nothing is kept for it.
    assert kept(training_graph(scan_model(Form(shared=True)), store=["none"])) == set()


def test_a_pattern_that_matches_nothing_is_refused():
    with pytest.raises(UsageError, match="`--store gates` matches no value of a step"):
        training_graph(scan_model(Form()), store=["gates"])
    with pytest.raises(UsageError, match="the model has no recurrence"):
        training_graph(parse("g () => (double loss) { loss = ReduceSum<keepdims = 0>(w) }", w=np.ones(3)), store=["a"])


def test_one_value_in_many_places():
    """The same sequence twice, a state of a parameter, a weight captured and read outside, a body in a body."""
    text = """g () => (double loss) {
        last, ys = Scan <num_scan_inputs = 2,
            body = b (double[3] h, double[3] x, double[3] z) => (double[3] n, double[3] y) {
            inner, zs = Scan <num_scan_inputs = 1, body = c (double[3] k, double v) => (double[3] m, double[3] w) {
                kv = Mul(k, v)
                kw = Mul(kv, W)
                m = Cos(kw)
                w = Mul(m, x)
            }> (h, z)
            total = ReduceSum<keepdims = 0>(zs, first)
            y = Mul(total, x)
            n = Add(inner, W)
        }> (W, X, X)
        q = Mul(ys, W)
        a = ReduceSum<keepdims = 0>(q)
        b = ReduceSum<keepdims = 0>(last)
        loss = Add(a, b)
    }"""
    rng = np.random.default_rng(0)
    model = parse(text, W=rng.normal(size=3), X=rng.normal(size=(4, 3)), first=np.array([0]))
    check(model)
    check(model, time_checkpoints=2)


def test_states_that_pass_through_or_do_not_matter():
    text = """g () => (double loss) {
        a, b, c, ys = Scan <num_scan_inputs = 1,
            body = g (double[2] p, double[2] q, int64 n, double[2] x)
                => (double[2] p2, double[2] q2, int64 n2, double[2] y) {
                p2 = Mul(x, W)
                q2 = Identity(p)
                n2 = Add(n, one)
                r = Mul(q, q)
                k = Cast<to = 11>(n)
                y = Mul(r, k)
            }> (A, B, zero, X)
        loss = ReduceSum<keepdims = 0>(ys)
    }"""
    rng = np.random.default_rng(0)
    numbers = {"one": np.array(1), "zero": np.array(0)}
    model = parse(
        text, A=rng.normal(size=2), B=rng.normal(size=2), W=rng.normal(size=2), X=rng.normal(size=(4, 2)), **numbers
    )
    _, gradients = check(model)
    assert gradients["A"].any()
    # Of the initial values of the second state only the first step reads, with a weight of zero.
    assert not gradients["B"].any()


def test_functions_inside_are_inlined():
    text = """g () => (double loss) {
        last = Scan <num_scan_inputs = 1, body = b (double[3] h, double[3] x) => (double[3] n) {
            a = Mul(x, W)
            g = Gelu(a)
            n = Add(g, h)
        }> (H, X)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    rng = np.random.default_rng(0)
    check(parse(text, H=rng.normal(size=3), W=rng.normal(size=3), X=rng.normal(size=(4, 3))))


def test_what_is_drawn_is_kept():
    """A mask that was drawn again would be another mask."""
    text = """g () => (float loss) {
        last = Scan <num_scan_inputs = 1, body = b (float[64] h, float[64] x) => (float[64] n) {
            noise = RandomNormalLike<seed = 1.0>(x)
            m = Mul(noise, x)
            mw = Mul(m, W)
            n = Add(h, mw)
        }> (H, X)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    model = parse(text, H=np.zeros(64, np.float32), W=np.ones(64, np.float32), X=np.ones((5, 64), np.float32))
    for options in ({}, {"store": ["none"]}, {"time_checkpoints": 2}):
        training = training_graph(model, **options)
        assert kept(training)
        got = onnxruntime_run(training.model)
        # The loss is the sum of W * noise, whose gradient by W times W is the loss itself.
        np.testing.assert_allclose(got[training.gradients["W"]].sum(), got[training.loss], rtol=1e-5)


def test_the_mask_of_a_dropout_is_kept():
    text = """g () => (float loss) {
        last = Scan <num_scan_inputs = 1, body = b (float[64] h, float[64] x) => (float[64] n) {
            y = Mul(x, W)
            d = Dropout(y, half, yes)
            n = Add(h, d)
        }> (H, X)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    arrays = {"H": np.zeros(64, np.float32), "W": np.ones(64, np.float32), "X": np.ones((6, 64), np.float32)}
    model = parse(text, **arrays, half=np.array(0.5, np.float32), yes=np.array(True))
    for chunks in (None, 2):
        training = training_graph(model, wrt=["W"], time_checkpoints=chunks)
        got = onnxruntime_run(training.model)
        assert 0 < got[training.loss] < 2 * 6 * 64
        np.testing.assert_allclose(got[training.gradients["W"]].sum(), got[training.loss], rtol=1e-5)


@pytest.mark.parametrize("chunks", [None, 2])
def test_a_final_state_that_nobody_reads(chunks):
    model = scan_model(Form(steps=4))
    scan = next(node for node in model.graph.node if node.op_type == "Scan")
    names = list(scan.output)
    # The loss of the final state is made of a result instead.
    for node in model.graph.node:
        for index, name in enumerate(node.input):
            if name == names[0]:
                node.input[index] = "ys"
    scan.output[0] = ""
    training = training_graph(model, time_checkpoints=chunks)
    assert set(training.gradients) == {"W", "R", "X", "U", "V", "i0"}
    run(training.model, {})


def test_what_cannot_be_differentiated_inside_is_named():
    text = """g (int64 trips) => (double loss) {
        last = Scan <num_scan_inputs = 1, body = b (double[3] h, double[3] x) => (double[3] n) {
            a = Mul(x, W)
            n = Loop <body = c (int64 i, bool c, double[3] k) => (bool d, double[3] m) {
                d = Identity(c)
                m = Add(k, a)
            }> (trips, , h)
        }> (H, X)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    model = parse(text, H=np.ones(3), W=np.ones(3), X=np.ones((4, 3)))
    message = r"Scan 'node' \(no gradient for 1 node\(s\) of its body: Loop '.*' \(how often it runs depends on data"
    with pytest.raises(UnsupportedOperatorsError, match=message):
        training_graph(model)


def test_gradients_accumulate_without_an_addition():
    """A matrix product adds to the running sum on its way."""
    training = training_graph(scan_model(Form()))
    body = loops(training)[1].attributes["body"].as_graph()
    products = [node for node in body if node.op_type == "Gemm" and len(node.inputs) == 3]
    assert len(products) == 2
    assert run(training.model, {})


@pytest.mark.parametrize("direction", [0, 1])
def test_rows_of_a_table_are_gathered_up_outside(direction):
    """Else each step would copy the gradient of the whole table."""
    text = f"""g () => (double loss) {{
        last = Scan <num_scan_inputs = 1, scan_input_directions = [{direction}],
            body = b (double[2,3] h, int64[2] words) => (double[2,3] n) {{
                rows = Gather(table, words)
                s = Mul(rows, h)
                n = Sin(s)
            }}> (H, tokens)
        loss = ReduceSum<keepdims = 0>(last)
    }}"""
    rng = np.random.default_rng(0)
    tokens = rng.integers(0, 50, size=(4, 2))
    model = parse(text, H=rng.normal(size=(2, 3)), table=rng.normal(size=(50, 3)), tokens=tokens)
    for chunks in (None, 2):
        training, gradients = check(model, time_checkpoints=chunks)
        assert gradients["table"][tokens].any(axis=-1).all()
        backward = loops(training)[-1]
        assert ("table_grad" in [value.name for value in backward.outputs]) == (chunks is not None)
        bodies = list(training.model.graph.subgraphs())
        assert sum(node.op_type == "ScatterElements" for body in bodies for node in body) == (
            0 if chunks is None else 1
        )


def test_a_weight_that_is_larger_than_the_sequences_gets_its_gradient_from_one_product():
    text = """g () => (double loss) {
        last = Scan <num_scan_inputs = 1, body = b (double[1,16] h, double[1,16] x) => (double[1,16] n) {
            a = MatMul(h, W)
            c = MatMul(x, V)
            s = Add(a, c)
            n = Tanh(s)
        }> (H, X)
        loss = ReduceSum<keepdims = 0>(last)
    }"""
    rng = np.random.default_rng(0)
    square = rng.normal(size=(16, 16)) * 0.3
    model = parse(text, H=rng.normal(size=(1, 16)), W=square, V=square.T.copy(), X=rng.normal(size=(4, 1, 16)))
    training, _ = check(model)
    body = loops(training)[1].attributes["body"].as_graph()
    assert len(loops(training)[1].outputs) == len(body.outputs)
    assert all(len(node.inputs) == 2 for node in body if node.op_type == "Gemm")
    check(model, time_checkpoints=2)


def test_second_derivatives():
    """The gradient of the gradient's sum of squares, against finite differences of the gradient."""
    model = scan_model(Form(steps=3, states=2))
    first = training_graph(model, wrt=["W"])
    again = ir.from_proto(ir.to_proto(first.model))
    second = build_training_graph(again, loss=f"sum-of-squares:{first.gradients['W']}", wrt=["W"])
    start = first.model.graph.initializers["W"].const_value.numpy()
    direction = np.random.default_rng(3).normal(size=start.shape)

    def along(t: float) -> float:
        got = run(first.model, {"W": start + t * direction})
        return float((got[first.gradients["W"]] ** 2).sum())

    gradient = run(second.model, {})[second.gradients["W"]]
    np.testing.assert_allclose((gradient * direction).sum(), slope(along, 1e-4), rtol=1e-7)

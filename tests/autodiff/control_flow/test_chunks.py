"""Checkpoints along time."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.chunks import Track, chunk_length, chunked
from ckplan.errors import UsageError
from ckplan.model import normalise
from tests.autodiff.control_flow.models import check, parse, run, single, training_graph
from tests.autodiff.control_flow.recurrences import Form, scan_model
from tests.autodiff.gradcheck import onnxruntime_run


@given(steps=st.integers(1, 5000))
def test_the_root_of_the_number_of_steps(steps):
    length = chunk_length(steps, "sqrt")
    assert 1 <= length <= steps
    assert length + math.ceil(steps / length) <= 2.6 * math.sqrt(steps) + 2
    assert length == steps or steps < 4 or steps % length == 0 or not divisors_near_root(steps)


def divisors_near_root(steps):
    root = math.sqrt(steps)
    return [n for n in range(2, steps) if steps % n == 0 and root / 2 <= n <= root * 2]


@given(steps=st.integers(1, 500), chunks=st.integers(1, 600))
def test_as_many_chunks_as_asked_for_at_most(steps, chunks):
    length = chunk_length(steps, chunks)
    assert 1 <= length <= steps
    assert math.ceil(steps / length) <= chunks


@pytest.mark.parametrize("chunks", [2, 3, 4, 6, "sqrt"])
@pytest.mark.parametrize("steps", [6, 7])
def test_chunks_change_no_number(steps, chunks):
    form = Form(steps, states=2, in_axes=(1, 0), in_back=(1, 0), out_axes=(0, 2), out_back=(1, 0))
    model = single(scan_model(form))
    plain, cut = training_graph(model), training_graph(model, time_checkpoints=chunks)
    before, after = onnxruntime_run(plain.model), onnxruntime_run(cut.model)
    np.testing.assert_array_equal(before[plain.loss], after[cut.loss])
    for name, gradient in plain.gradients.items():
        # Where sums are carried through the chunks, not a bit; a short chunk may sum up in one product instead.
        scale = np.abs(before[gradient]).max()
        np.testing.assert_allclose(
            before[gradient], after[cut.gradients[name]], rtol=0, atol=1e-6 * scale, err_msg=name
        )


def test_only_the_states_between_chunks_are_kept():
    training = training_graph(scan_model(Form(steps=12)), time_checkpoints=3)
    forward = next(node for node in training.model.graph if node.op_type == "Scan")
    kept = [value for value in forward.outputs if str(value.name).endswith("/steps")]
    assert [tuple(value.shape or ()) for value in kept] == [(3, 2, 4)]
    # Nothing that the gradient alone needs is made in the forward pass.
    inner = next(node for node in forward.attributes["body"].as_graph() if node.op_type == "Scan")
    assert len(inner.outputs) == 3


def test_sequences_of_whole_chunks_are_not_copied():
    def kinds(chunks):
        training = training_graph(scan_model(Form(steps=12)), time_checkpoints=chunks)
        return {node.op_type for node in training.model.graph}

    assert not kinds(4) & {"Concat", "Slice"}
    assert kinds(5) >= {"Scan"}
    assert chunk_length(12, 5) == 3


@pytest.mark.parametrize(("chunks", "note"), [(1, ""), ("sqrt", ""), (7, "it has only 3 steps")])
def test_too_few_steps_stay_as_they_are(chunks, note):
    training, _ = check(scan_model(Form(steps=3)), time_checkpoints=chunks)
    assert sum(node.op_type == "Scan" for node in training.model.graph) == 2
    assert note in " ".join(training.notes)
    assert bool(training.notes) == bool(note)


@pytest.mark.parametrize("chunks", [0, -3, "many", 2.5])
def test_no_number_of_chunks(chunks):
    with pytest.raises(UsageError, match="says no number of chunks"):
        training_graph(scan_model(Form()), time_checkpoints=chunks)


def test_frozen_recurrences_are_chunked_too():
    check(scan_model(Form(steps=6)), wrt=["W"], time_checkpoints=2)
    check(scan_model(Form(steps=7)), wrt=["i0"], time_checkpoints=2)


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize(("steps", "length"), [(6, 2), (7, 3), (5, 4)])
def test_any_node_can_be_chunked(steps, length, reverse):
    """A recurrence with an input that each chunk gets a row of."""
    direction = int(reverse)
    text = f"""g () => (double last, double[{steps},2] ys) {{
        last, ys = Scan <num_scan_inputs = 1,
            scan_input_directions = [{direction}], scan_output_directions = [{direction}],
            body = b (double h, double[2] x) => (double n, double[2] y) {{
                t = ReduceSum<keepdims = 0>(x)
                a = Mul(h, half)
                n = Add(a, t)
                y = Mul(n, x)
            }}> (H, X)
    }}"""
    rng = np.random.default_rng(0)
    proto = parse(text, H=np.array(0.3), half=np.array(0.5), X=rng.normal(size=(steps, 2)))
    expected = run(proto, {})
    model = normalise(ir.from_proto(proto)).model
    op = Builder(model.graph, model.graph.opset_imports)
    node = model.graph[0]
    track = Track(0, reverse=reverse)
    copies = chunked(op, node, steps, length, sequences={1: track}, states={0: 0}, results={1: track})
    assert len(copies) == 1 + bool(steps % length)
    assert [value.name for value in model.graph.outputs] == ["last", "ys"]
    got = run(model, {})
    for name, array in expected.items():
        np.testing.assert_array_equal(got[name], array)


@pytest.mark.parametrize(("steps", "length"), [(6, 2), (7, 3)])
def test_each_chunk_may_read_something_of_its_own(steps, length):
    """As an LSTM the lengths of its sequences, of which a chunk sees a part."""
    text = """g () => (double last) {
        last = Scan <num_scan_inputs = 1, body = b (double h, double x) => (double n) {
            y = Mul(x, F)
            n = Add(h, y)
        }> (H, X)
    }"""
    proto = parse(text, H=np.array(0.0), F=np.array(1.0), X=np.arange(float(steps)))
    model = normalise(ir.from_proto(proto)).model
    op = Builder(model.graph, model.graph.opset_imports)
    rows = op.constant(np.array([1.0, 10.0, 100.0]))
    # The node stands for an operator that reads the factor as its second input.
    node = model.graph[0]
    factor, sequence = model.graph.initializers["F"], node.inputs[1]
    node.resize_inputs(3)
    node.replace_input_with(1, factor)
    node.replace_input_with(2, sequence)
    copies = chunked(op, node, steps, length, sequences={2: Track(0)}, states={0: 0}, results={}, pieces={1: rows})
    for copy in copies:
        scale, row = copy.inputs[1], copy.inputs[2]
        copy.replace_input_with(1, row)
        copy.resize_inputs(2)
        body = copy.attributes["body"].as_graph()
        for inner in body:
            for index, value in enumerate(inner.inputs):
                if value is factor:
                    inner.replace_input_with(index, scale)
    expected = sum(x * 10 ** (x // length) for x in range(steps))
    assert run(model, {})["last"] == expected


def test_a_missing_state_is_an_error():
    model = normalise(ir.from_proto(scan_model(Form(steps=4)))).model
    op = Builder(model.graph, model.graph.opset_imports)
    with pytest.raises(ValueError, match="neither a state nor a sequence"):
        chunked(op, model.graph[0], 4, 2, sequences={1: Track(0), 2: Track(0)}, states={0: 0}, results={1: Track(0)})

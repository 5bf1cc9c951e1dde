"""Control flow in the planner and in the files it writes: predicted and measured memory, repeats, chunks along time."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan.meter import verify
from ckplan.model import normalise, save
from ckplan.planner.plan import make_plan
from ckplan.runtime.executing.executed import expected_timeline
from ckplan.runtime.problem_of import problem_of
from tests.autodiff.control_flow.models import parse
from tests.autodiff.gradcheck import onnxruntime_run

BATCH, INPUT, HIDDEN = 16, 32, 64


def weights(**shapes):
    rng = np.random.default_rng(0)
    return {name: (rng.normal(size=shape) * 0.1).astype(np.float32) for name, shape in shapes.items()}


CELL = "a = MatMul(x, W) r = MatMul(h, R) s = Add(a, r) n = Tanh(s)"
ROW = f"float[{BATCH},{HIDDEN}]"


def rnn(operator: str, steps: int = 200) -> onnx.ModelProto:
    """A tanh cell written as Scan or as Loop, with a loss of its last state."""
    if operator == "Scan":
        loop = f"""last = Scan <num_scan_inputs = 1,
            body = b ({ROW} h, float[{BATCH},{INPUT}] x) => ({ROW} n) {{ {CELL} }}> (H, X)"""
    else:
        loop = f"""last = Loop <body = b (int64 i, bool c, {ROW} h) => (bool goes, {ROW} n) {{
            goes = Identity(c) x = Gather(X, i) {CELL} }}> (M, , H)"""
    text = f"""g (float[{steps},{BATCH},{INPUT}] X) => (float loss) {{
        {loop}
        q = Mul(last, last)
        loss = ReduceSum<keepdims = 0>(q)
    }}"""
    arrays = weights(W=(INPUT, HIDDEN), R=(HIDDEN, HIDDEN), H=(BATCH, HIDDEN))
    return parse(text, **arrays, M=np.array(steps)) if operator == "Loop" else parse(text, **arrays)


BRANCHES = f"""g (float[{BATCH},{HIDDEN}] x, bool flag) => (float loss) {{
    p = MatMul(x, R)
    y = If (flag) <
        then_branch = t () => (float[{BATCH},{HIDDEN}] b) {{
            a = MatMul(p, S)
            c = Tanh(a)
            d = MatMul(c, R)
            b = Sigmoid(d)
        }},
        else_branch = e () => (float[{BATCH},{HIDDEN}] f) {{ f = Exp(p) }}
    >
    q = Mul(y, y)
    loss = ReduceSum<keepdims = 0>(q)
}}"""


def training(proto: onnx.ModelProto, **options) -> ckplan.TrainingGraph:
    copy = onnx.ModelProto()
    copy.CopyFrom(proto)
    return ckplan.build_training_graph(normalise(ir.from_proto(copy)).model, **options)


def measured(tmp_path, base, new, **feeds):
    """Verify two models against each other; the figures of the second."""
    save(base, tmp_path / "base.onnx")
    save(new, tmp_path / "new.onnx")
    inputs = None
    if feeds:
        inputs = tmp_path / "feeds.npz"
        np.savez(inputs, **feeds)
    return verify(tmp_path / "base.onnx", tmp_path / "new.onnx", inputs=inputs, device="cpu", runs=1, heap=False)


def planned(graph):
    return ckplan.emit(graph.model, ckplan.parse_strategy("memory").solve(problem_of(graph.model)))


def test_chunks_take_the_root_of_the_memory(tmp_path):
    plain, chunked = training(rnn("Scan")), training(rnn("Scan"), time_checkpoints="sqrt")
    states, weights_ = 200 * BATCH * HIDDEN * 4, (INPUT + HIDDEN) * HIDDEN * 4
    found = measured(tmp_path, planned(plain), planned(chunked))
    before, after = found.base.peak_activations, found.new.peak_activations
    assert before > states
    assert not found.numerics.differences
    # The states at the ends of about 14 chunks, those of one chunk, and running sums of the weights' gradients.
    assert after < 0.3 * states + 8 * weights_
    assert after < 0.5 * before
    assert found.new.prediction.peak_activations == pytest.approx(after, rel=0.02)
    assert found.base.prediction.peak_activations == pytest.approx(before, rel=0.02)


@pytest.mark.parametrize("chunks", [None, "sqrt"])
def test_a_loop_of_fixed_length_takes_what_a_scan_takes(chunks):
    scan, loop = (training(rnn(operator), time_checkpoints=chunks) for operator in ("Scan", "Loop"))
    x = np.random.default_rng(0).normal(size=(200, BATCH, INPUT)).astype(np.float32)
    expected, got = onnxruntime_run(scan.model, {"X": x}), onnxruntime_run(loop.model, {"X": x})
    for name, gradient in scan.gradients.items():
        np.testing.assert_array_equal(got[loop.gradients[name]], expected[gradient])
    peaks = [expected_timeline(graph.model).peak_activations for graph in (scan, loop)]
    assert peaks[0] == peaks[1]


def test_branches_take_what_the_dearer_one_needs(tmp_path):
    graph = training(parse(BRANCHES, **weights(R=(HIDDEN, HIDDEN), S=(HIDDEN, HIDDEN))))
    x = np.random.default_rng(0).normal(size=(BATCH, HIDDEN)).astype(np.float32)
    found = measured(tmp_path, graph.model, planned(graph), x=x, flag=np.array(True))
    assert found.new.prediction.peak_activations == pytest.approx(found.new.peak_activations, rel=0.05)


def test_a_repeated_loop_has_a_body_of_its_own():
    """A strategy may run a loop again; what is inside must not bear the same names."""
    graph = training(rnn("Scan", steps=5))
    problem = problem_of(graph.model)
    position = next(i for i, op in enumerate(problem.ops) if op.name == "node")
    last = max(i for i, op in enumerate(problem.ops) if not op.backward)
    schedule = list(range(len(problem.ops)))
    schedule.insert(last + 1, position)
    plan = make_plan(problem, "by hand", schedule)
    written = ckplan.emit(graph.model, plan)
    scans = [node for node in written.graph if node.op_type == "Scan"]
    assert [node.name for node in scans] == ["node", "node/recompute1", "node/grad/Scan"]
    names = [value.name for node in written.graph.all_nodes() for value in node.outputs]
    assert len(names) == len(set(names))
    x = np.random.default_rng(0).normal(size=(5, BATCH, INPUT)).astype(np.float32)
    before, after = onnxruntime_run(graph.model, {"X": x}), onnxruntime_run(written, {"X": x})
    for name, array in before.items():
        np.testing.assert_array_equal(after[name], array)

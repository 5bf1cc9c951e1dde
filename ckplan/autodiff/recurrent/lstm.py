"""The LSTM's cell, forward and backward: https://onnx.ai/onnx/operators/onnx__LSTM.html (Gers, Schmidhuber, 2000)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.recurrent.direction import Cell, Direction, Gradient, Run, Upstream
from ckplan.autodiff.recurrent.steps import (
    activate,
    advanced,
    arriving,
    backward_sequences,
    column,
    forward_sequences,
    given_out,
    leaving,
    slope,
    split_rows,
    sums_of,
    turned,
    zeros_like,
)
from ckplan.autodiff.recurrent.time_loop import States, Values, scan


def forward(op: Builder, d: Direction, keep: frozenset[str]) -> Run:
    """Emit the forward loop. The gates of a step are i, o, f, [3 H, N], and the candidate, [H, N]."""
    assert d.c is not None
    compute = _cell(op, d)

    def step(op: Builder, states: States, at: Mapping[str, ir.Value]) -> tuple[States, Values]:
        h, c = states
        made, c_after = compute(op, at["x"], h, c)
        output = split_rows(op, made["gates"], 3)[1]
        state = turned(op, op.Mul(output, d.functions[2].apply(op, c_after)))
        h_after, y = advanced(op, at, state, h)
        if "valid" in at:
            c_after = op.Where(at["valid"], c_after, c)
        return (h_after, c_after), {**made, "y": y, "previous_h": h, "previous_c": c}

    results = {"y"} & keep
    if "states" in keep:
        results |= {"previous_h", "previous_c"}
    if "gates" in keep:
        results |= {"gates", "candidate", "gates_slope", "candidate_slope"}
    states, kept = scan(op, d.name, "forward", step, (d.h, d.c), forward_sequences(d), results, backwards=d.backwards)
    return Run(kept.pop("y", None), states[0], states[1], kept)


def _cell(op: Builder, d: Direction) -> Callable[[Builder, ir.Value, ir.Value, ir.Value], tuple[Values, ir.Value]]:
    """Return what emits the gates, the candidate and the new cell from x and h, [N, I] and [N, H], and c, [H, N]."""
    joined = op.Concat(d.w, d.r, axis=1)
    bias = column(op, None if d.biases is None else op.Add(*d.biases))
    peepholes = None if d.peepholes is None else split_rows(op, d.peepholes, 3)
    hidden = shape_of(d.r)[1]
    f, g, _ = d.functions

    def compute(op: Builder, x: ir.Value, h: ir.Value, c: ir.Value) -> tuple[Values, ir.Value]:
        z = op.Gemm(joined, op.Concat(x, h, axis=1), bias, transB=1)
        before_gates, before_candidate = op.Split(z, np.asarray([3 * hidden, hidden]), axis=0, _outputs=2)
        if peepholes is not None:
            zi, zo, zf = split_rows(op, before_gates, 3)
            zi, zf = op.Add(zi, op.Mul(c, peepholes[0])), op.Add(zf, op.Mul(c, peepholes[2]))
            early, early_slope = activate(op, f, op.Concat(zi, zf, axis=0))
            i, forget = split_rows(op, early, 2)
        else:
            gates, gates_slope = activate(op, f, before_gates)
            i, _, forget = split_rows(op, gates, 3)
        if d.flag:
            forget = op.Sub(1.0, i)
        candidate, candidate_slope = activate(op, g, before_candidate)
        after = op.Add(op.Mul(forget, c), op.Mul(i, candidate))
        if peepholes is not None:
            output, output_slope = activate(op, f, op.Add(zo, op.Mul(after, peepholes[1])))
            gates = op.Concat(i, output, forget, axis=0)
            gates_slope = None
            if early_slope is not None and output_slope is not None:
                of_i, of_f = split_rows(op, early_slope, 2)
                gates_slope = op.Concat(of_i, output_slope, of_f, axis=0)
        slopes = {"gates_slope": gates_slope, "candidate_slope": candidate_slope}
        made = {"gates": gates, "candidate": candidate}
        return {**made, **{key: value for key, value in slopes.items() if value is not None}}, after

    return compute


def backward(op: Builder, d: Direction, run: Run, dy: Upstream) -> Gradient:
    """Emit the loop back through time; the cell after a step is the one before the next and is carried."""
    assert run.c is not None
    assert dy.c is not None
    across = turned(op, d.r)
    compute = None if "gates" in run.kept else _cell(op, d)
    peepholes = None if d.peepholes is None else split_rows(op, d.peepholes, 3)

    def step(op: Builder, states: States, at: Mapping[str, ir.Value]) -> tuple[States, Values]:
        c, before = states[2], at["previous_c"]
        if compute is not None:
            at = {**at, **compute(op, at["x"], at["previous_h"], before)[0]}
        dh, skipping = arriving(op, at, states[0])
        dc, dc_skipping = states[1], None
        if "valid" in at:
            dc, dc_skipping = op.Where(at["valid"], dc, 0.0), op.Where(at["valid"], 0.0, dc)
        i, output, forget = split_rows(op, at["gates"], 3)
        if d.flag:
            forget = op.Sub(1.0, i)
        squashed = d.functions[2].apply(op, c)
        of_squashed = d.functions[2].slope_at(op, c, squashed)
        of_gates = slope(op, d.functions[0], at, "gates")
        d_output = op.Mul(dh, squashed)
        dc = op.Add(dc, op.Mul(op.Mul(dh, output), of_squashed))
        if peepholes is not None:
            d_output = op.Mul(d_output, split_rows(op, of_gates, 3)[1])
            dc = op.Add(dc, op.Mul(d_output, peepholes[1]))
        d_i = op.Mul(dc, op.Sub(at["candidate"], before) if d.flag else at["candidate"])
        d_f = zeros_like(op, dc) if d.flag else op.Mul(dc, before)
        dc_before = op.Mul(dc, forget)
        if peepholes is None:
            d_gates = op.Mul(op.Concat(d_i, d_output, d_f, axis=0), of_gates)
        else:
            slope_i, _, slope_f = split_rows(op, of_gates, 3)
            d_i, d_f = op.Mul(d_i, slope_i), op.Mul(d_f, slope_f)
            d_gates = op.Concat(d_i, d_output, d_f, axis=0)
            dc_before = op.Add(dc_before, op.Add(op.Mul(d_i, peepholes[0]), op.Mul(d_f, peepholes[2])))
        d_candidate = op.Mul(op.Mul(dc, i), slope(op, d.functions[1], at, "candidate"))
        d_all = op.Concat(d_gates, d_candidate, axis=0)
        dh_before = leaving(op, op.MatMul(across, d_all), skipping)
        after = [dh_before, leaving(op, dc_before, dc_skipping), before]
        if peepholes is not None:
            after.append(op.Add(states[3], op.Mul(d_gates, op.Concat(before, c, before, axis=0))))
        return after, given_out(op, d, "da", d_all)

    start = [dy.h, dy.c, run.c]
    if d.peepholes is not None:
        hidden, batch = shape_of(run.c)
        start.append(op.zeros((3 * hidden, batch), run.c))
    sequences = backward_sequences(d, run, dy, compute is not None)
    found, made = scan(
        op, f"{d.name}/grad", "backward", step, start, sequences, {"da", "da_sum"}, backwards=not d.backwards
    )
    dp = op.reduce_sum(found[3], [1], keepdims=False) if d.peepholes is not None else None
    return Gradient([made["da"]], [(made["da"], run.kept["previous_h"])], found[0], found[1], dp, sums_of(made))


LSTM = Cell(4, ("Sigmoid", "Tanh", "Tanh"), "input_forget", forward, backward)

"""The GRU's cell, forward and backward: https://onnx.ai/onnx/operators/onnx__GRU.html (Cho et al., 2014)."""

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
)
from ckplan.autodiff.recurrent.time_loop import States, Values, scan


def forward(op: Builder, d: Direction, keep: frozenset[str]) -> Run:
    """Emit the forward loop.

    The gates of a step are z and r, [2 H, N]; there are the candidate and, if the reset gate comes after the product,
    what it is multiplied with, [H, N] each.
    """
    compute = _cell(op, d)

    def step(op: Builder, states: States, at: Mapping[str, ir.Value]) -> tuple[States, Values]:
        h = states[0]
        made = compute(op, at["x"], h)
        update = split_rows(op, made["gates"], 2)[0]
        candidate = made["candidate"]
        state = op.Add(candidate, op.Mul(update, op.Sub(turned(op, h), candidate)))
        after, y = advanced(op, at, turned(op, state), h)
        return [after], {**made, "y": y, "previous_h": h}

    results = {"y"} & keep
    if "states" in keep:
        results |= {"previous_h"}
    if "gates" in keep:
        results |= {"gates", "candidate", "gates_slope", "candidate_slope", "product"}
    states, kept = scan(op, d.name, "forward", step, [d.h], forward_sequences(d), results, backwards=d.backwards)
    return Run(kept.pop("y", None), states[0], None, kept)


def _cell(op: Builder, d: Direction) -> Callable[[Builder, ir.Value, ir.Value], Values]:
    """Return what emits gates and candidate from x and h, [N, I] and [N, H]."""
    hidden = shape_of(d.r)[1]
    parts = np.asarray([2 * hidden, hidden])
    f, g = d.functions
    of_x = of_h = None
    if d.biases is not None:
        of_x, of_h = d.biases
        if not d.flag:
            of_x, of_h = op.Add(of_x, of_h), None
    of_x, of_h = column(op, of_x), column(op, of_h)
    # With the reset gate after the product all of r is multiplied by h, else its last rows by r h.
    across, last = (d.r, None) if d.flag else op.Split(d.r, parts, axis=0, _outputs=2)

    def compute(op: Builder, x: ir.Value, h: ir.Value) -> Values:
        made: Values = {}
        for_gates, for_candidate = op.Split(op.Gemm(d.w, x, of_x, transB=1), parts, axis=0, _outputs=2)
        if last is None:
            product_gates, product = op.Split(op.Gemm(across, h, of_h, transB=1), parts, axis=0, _outputs=2)
            gates, gates_slope = activate(op, f, op.Add(for_gates, product_gates))
            reset = split_rows(op, gates, 2)[1]
            before = op.Add(for_candidate, op.Mul(reset, product))
            made["product"] = product
        else:
            gates, gates_slope = activate(op, f, op.Gemm(across, h, for_gates, transB=1))
            reset = split_rows(op, gates, 2)[1]
            before = op.Gemm(last, op.Mul(reset, turned(op, h)), for_candidate)
        candidate, candidate_slope = activate(op, g, before)
        made |= {"gates": gates, "candidate": candidate}
        slopes = {"gates_slope": gates_slope, "candidate_slope": candidate_slope}
        return made | {key: value for key, value in slopes.items() if value is not None}

    return compute


def backward(op: Builder, d: Direction, run: Run, dy: Upstream) -> Gradient:
    """Emit the loop back through time."""
    hidden = shape_of(d.r)[1]
    again = "gates" not in run.kept
    compute = _cell(op, d) if again else None
    across, last = turned(op, d.r), None
    if not d.flag:
        across, last = (
            turned(op, part) for part in op.Split(d.r, np.asarray([2 * hidden, hidden]), axis=0, _outputs=2)
        )

    def step(op: Builder, states: States, at: Mapping[str, ir.Value]) -> tuple[States, Values]:
        if compute is not None:
            at = {**at, **compute(op, at["x"], at["previous_h"])}
        dh, skipping = arriving(op, at, states[0])
        before, candidate = turned(op, at["previous_h"]), at["candidate"]
        update, reset = split_rows(op, at["gates"], 2)
        through = op.Mul(dh, update)
        d_candidate = op.Mul(op.Sub(dh, through), slope(op, d.functions[1], at, "candidate"))
        d_update = op.Mul(dh, op.Sub(before, candidate))
        of_gates = slope(op, d.functions[0], at, "gates")
        made: Values = {}
        if last is None:
            inner = op.Mul(d_candidate, reset)
            d_gates = op.Mul(op.Concat(d_update, op.Mul(d_candidate, at["product"]), axis=0), of_gates)
            back = op.MatMul(across, op.Concat(d_gates, inner, axis=0))
            made |= given_out(op, d, "inner", inner)
        else:
            inner = op.MatMul(last, d_candidate)
            d_gates = op.Mul(op.Concat(d_update, op.Mul(inner, before), axis=0), of_gates)
            back = op.Add(op.MatMul(across, d_gates), op.Mul(inner, reset))
            made["inner"] = turned(op, op.Mul(reset, before))
        dh_before = leaving(op, op.Add(through, back), skipping)
        made |= given_out(op, d, "gates", d_gates) | given_out(op, d, "candidate", d_candidate)
        return [dh_before], made

    sequences = backward_sequences(d, run, dy, again)
    results = {"inner", "inner_sum", "gates", "gates_sum", "candidate", "candidate_sum"}
    found, made = scan(op, f"{d.name}/grad", "backward", step, [dy.h], sequences, results, backwards=not d.backwards)
    h = run.kept["previous_h"]
    second = (made["inner"], h) if d.flag else (made["candidate"], made["inner"])
    return Gradient([made["gates"], made["candidate"]], [(made["gates"], h), second], found[0], sums=sums_of(made))


GRU = Cell(3, ("Sigmoid", "Tanh"), "linear_before_reset", forward, backward)

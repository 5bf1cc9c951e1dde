"""The plain recurrent cell, forward and backward: https://onnx.ai/onnx/operators/onnx__RNN.html (Elman, 1990)."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
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
    sums_of,
    turned,
)
from ckplan.autodiff.recurrent.time_loop import States, Values, scan


def forward(op: Builder, d: Direction, keep: frozenset[str]) -> Run:
    """Emit the forward loop. Its gate is the state itself; only a slope that the state does not tell is stored."""
    compute = _cell(op, d)

    def step(op: Builder, states: States, at: Mapping[str, ir.Value]) -> tuple[States, Values]:
        made = compute(op, at["x"], states[0])
        h, y = advanced(op, at, turned(op, made.pop("state")), states[0])
        return [h], {**made, "y": y, "previous_h": states[0]}

    results = {"y"} & keep
    if "states" in keep:
        results |= {"previous_h"}
    if "gates" in keep:
        results |= {"slope"}
    states, kept = scan(op, d.name, "forward", step, [d.h], forward_sequences(d), results, backwards=d.backwards)
    return Run(kept.pop("y", None), states[0], None, kept)


def _cell(op: Builder, d: Direction) -> Callable[[Builder, ir.Value, ir.Value], Values]:
    """Return what emits the new state, [H, N], from x and h, [N, I] and [N, H]."""
    joined = op.Concat(d.w, d.r, axis=1)
    bias = column(op, None if d.biases is None else op.Add(*d.biases))

    def compute(op: Builder, x: ir.Value, h: ir.Value) -> Values:
        state, slope = activate(op, d.functions[0], op.Gemm(joined, op.Concat(x, h, axis=1), bias, transB=1))
        return {"state": state} if slope is None else {"state": state, "slope": slope}

    return compute


def backward(op: Builder, d: Direction, run: Run, dy: Upstream) -> Gradient:
    """Emit the loop back through time; the state after a step is the one before the next and is carried."""
    across = turned(op, d.r)
    again = not d.functions[0].told_by_result and "slope" not in run.kept
    compute = _cell(op, d) if again else None

    def step(op: Builder, states: States, at: Mapping[str, ir.Value]) -> tuple[States, Values]:
        dh, skipping = arriving(op, at, states[0])
        if compute is not None:
            at = {**at, **compute(op, at["x"], at["previous_h"])}
        slope = at["slope"] if "slope" in at else d.functions[0].slope(op, turned(op, states[1]))
        da = op.Mul(dh, slope)
        return [leaving(op, op.MatMul(across, da), skipping), at["previous_h"]], given_out(op, d, "da", da)

    sequences = backward_sequences(d, run, dy, again)
    start = [dy.h, run.h]
    found, made = scan(
        op, f"{d.name}/grad", "backward", step, start, sequences, {"da", "da_sum"}, backwards=not d.backwards
    )
    return Gradient([made["da"]], [(made["da"], run.kept["previous_h"])], found[0], sums=sums_of(made))


RNN = Cell(1, ("Tanh",), "", forward, backward)

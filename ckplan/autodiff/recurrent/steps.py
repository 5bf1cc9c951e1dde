"""What the steps of all recurrent cells have in common."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.autodiff.recurrent.activations import Activation
from ckplan.autodiff.recurrent.direction import Direction, Run, Upstream


def column(op: Builder, bias: ir.Value | None) -> ir.Value | None:
    """Return biases as a column, which every sample of the batch gets."""
    return None if bias is None else op.reshape(bias, (shape_of(bias)[0], 1))


def turned(op: Builder, value: ir.Value) -> ir.Value:
    """Transpose a matrix."""
    return op.transpose(value, (1, 0))


def split_rows(op: Builder, value: ir.Value, count: int) -> list[ir.Value]:
    """Split into parts of equal numbers of rows."""
    return list(op.Split(value, axis=0, num_outputs=count, _outputs=count))


def activate(op: Builder, function: Activation, x: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Return a function's result and, where the result does not tell it, its slope."""
    y = function.apply(op, x)
    return y, None if function.told_by_result else function.slope_at(op, x, y)


def slope(op: Builder, function: Activation, at: Mapping[str, ir.Value], name: str) -> ir.Value:
    """Return the slope of what was kept, or recomputed, under this name."""
    found = at.get(f"{name}_slope")
    return function.slope(op, at[name]) if found is None else found


def forward_sequences(d: Direction) -> dict[str, ir.Value]:
    """What the forward loop reads of each step."""
    return {"x": d.x} if d.valid is None else {"x": d.x, "valid": d.valid}


def backward_sequences(d: Direction, run: Run, dy: Upstream, again: bool) -> dict[str, ir.Value]:
    """What the loop back through time reads of each step; ``again``: it computes the gates again."""
    sequences = dict(run.kept)
    if again:
        sequences["x"] = d.x
    if dy.y is not None:
        sequences["dy"] = dy.y
    if d.valid is not None:
        sequences["valid"] = d.valid
    return sequences


def advanced(op: Builder, at: Mapping[str, ir.Value], h: ir.Value, before: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the state after a step and what the step gives out.

    A sample that takes no part keeps its state and gives zeros.

    Args:
        op: builder of the loop's body.
        at: the step, ``valid`` [1, N] in it if not all samples take part.
        h: the state that the cell computed, [N, H].
        before: the state before the step.
    """
    if "valid" not in at:
        return h, h
    valid = op.reshape(at["valid"], (shape_of(h)[0], 1))
    return op.Where(valid, h, before), op.Where(valid, h, 0.0)


def arriving(op: Builder, at: Mapping[str, ir.Value], dh: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Return the gradient of the state after a step, and the part that skips the step, of samples that take no part.

    Args:
        op: builder of the loop's body.
        at: the step; ``dy`` is the gradient of what it gave out, [N, H].
        dh: gradient from the later steps, [H, N].
    """
    total = op.Add(dh, turned(op, at["dy"])) if "dy" in at else dh
    if "valid" not in at:
        return total, None
    return op.Where(at["valid"], total, 0.0), op.Where(at["valid"], 0.0, dh)


def leaving(op: Builder, gradient: ir.Value, skipping: ir.Value | None) -> ir.Value:
    """Return the gradient of the state before a step."""
    return gradient if skipping is None else op.Add(gradient, skipping)


def zeros_like(op: Builder, value: ir.Value) -> ir.Value:
    """Return a constant of zeros of a value's shape."""
    return op.constant(np.zeros(shape_of(value), dtype_of(value)))


def given_out(op: Builder, d: Direction, name: str, gradient: ir.Value) -> dict[str, ir.Value]:
    """Return what a step back in time gives out of a gradient, [rows, N]: its transpose and, for the biases, its sum.

    Summed here, the biases' gradient costs no second reading of all steps, and is rounded less.
    """
    made = {name: turned(op, gradient)}
    return made if d.biases is None else {**made, f"{name}_sum": op.reduce_sum(gradient, [1], keepdims=False)}


def sums_of(made: Mapping[str, ir.Value]) -> dict[ir.Value, ir.Value]:
    """Return the sums by what they are sums of."""
    return {value: made[f"{name}_sum"] for name, value in made.items() if f"{name}_sum" in made}

"""Gradient of Pad: the border is cut off, or added to where it came from, by slices alone."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_str, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.placement.shape import cut, pad
from ckplan.operators.matching import input_of


@rule("Pad", since=11, fixed=[1, 3])
def pad_rule(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The gradient without the border, which is that of the constant; other modes add it where it came from.

    An axis with a negative pad is cropped first, and what is left is padded.
    """
    g = dy[0]
    assert g is not None
    shape = shape_of(required_input(node, 0))
    pads = op.constant_ints(node, 1, "pads")
    axes = op.constant_ints(node, 3, "axes")
    assert pads is not None
    axes = tuple(range(len(shape))) if axes is None else tuple(axis % len(shape) for axis in axes)
    before, after = [0] * len(shape), [0] * len(shape)
    for index, axis in enumerate(axes):
        before[axis], after[axis] = pads[index], pads[index + len(axes)]
    mode = attr_str(node, "mode", "constant")
    value, dvalue = input_of(node, 2), None
    if value is not None and op.wants(value) and mode == "constant":
        dvalue = op.reshape(_border_sum(op, g, before, after), shape_of(value))
    left = [n + min(b, 0) + min(a, 0) for n, b, a in zip(shape, before, after, strict=True)]
    if 0 in shape_of(g) or 0 in left:
        return [None, None, dvalue]
    for axis in axes:
        g = _without_border(op, g, axis, max(before[axis], 0), max(after[axis], 0), mode)
    return [pad(op, g, [max(-b, 0) for b in before], [max(-a, 0) for a in after]), None, dvalue]


def _border_sum(op: Builder, g: ir.Value, before: Sequence[int], after: Sequence[int]) -> ir.Value:
    """Sum what stands in a border, slab by slab."""
    parts = []
    for axis in range(len(before)):
        first, last = max(before[axis], 0), shape_of(g)[axis] - max(after[axis], 0)
        for start, end in ((0, first), (last, shape_of(g)[axis])):
            if end > start:
                slab = cut(op, g, axis, start, end)
                parts.append(op.reduce_sum(slab, range(len(before)), keepdims=False))
        g = cut(op, g, axis, first, last)
    return op.Sum(*parts) if parts else op.zeros([], g)


def _without_border(op: Builder, g: ir.Value, axis: int, before: int, after: int, mode: str) -> ir.Value:
    """Take the border off an axis and, unless its elements were constants, add it to the elements they were copies of.

    Args:
        op: the builder.
        g: gradient of the padded tensor.
        axis: one of its axes.
        before: elements that were put before the first one, not negative.
        after: elements that were put behind the last one.
        mode: of the Pad.
    """
    if not before and not after:
        return g
    size = shape_of(g)[axis] - before - after
    if mode == "constant":
        return cut(op, g, axis, before, before + size)
    if size == 1:
        return op.reduce_sum(g, [axis])
    if mode == "edge":
        return _onto_ends(op, g, axis, before, after)
    period = size if mode == "wrap" else 2 * (size - 1)
    most = size if mode == "wrap" else size - 1
    if before > most or after > most:
        # The border goes round more than once: first one turn is made of all of them.
        g = _one_turn(op, g, axis, before, period)
        before, after = 0, period - size
    total = cut(op, g, axis, before, before + size)
    for start, count in ((0, before), (before + size, after)):
        if not count:
            continue
        first = not start
        if mode == "wrap":
            piece, offset = cut(op, g, axis, start, start + count), size - count if first else 0
        else:
            # Backwards; an end that lies before the first element says "up to and with the first one".
            last = start - 1 if start else -(2**62)
            piece, offset = cut(op, g, axis, start + count - 1, last, -1), 1 if first else size - 1 - count
        lead, rest = [0] * len(shape_of(g)), [0] * len(shape_of(g))
        lead[axis], rest[axis] = offset, size - count - offset
        total = op.Add(total, pad(op, piece, lead, rest))
    return total


def _onto_ends(op: Builder, g: ir.Value, axis: int, before: int, after: int) -> ir.Value:
    """Add what stands before the first element to it, and what stands behind the last one likewise."""
    length = shape_of(g)[axis]
    bounds = [(0, before + 1, True), (before + 1, length - after - 1, False), (length - after - 1, length, True)]
    pieces = []
    for start, end, summed in bounds:
        if end > start:
            piece = cut(op, g, axis, start, end)
            pieces.append(op.reduce_sum(piece, [axis]) if summed else piece)
    return op.Concat(*pieces, axis=axis)


def _one_turn(op: Builder, g: ir.Value, axis: int, before: int, period: int) -> ir.Value:
    """Add up what lies a period apart; the result begins with what stands ``before`` elements behind the first."""
    shape = shape_of(g)
    lead, rest = [0] * len(shape), [0] * len(shape)
    lead[axis] = -before % period
    rest[axis] = -(lead[axis] + shape[axis]) % period
    whole = pad(op, g, lead, rest)
    turns = [*shape[:axis], shape_of(whole)[axis] // period, period, *shape[axis + 1 :]]
    return op.reduce_sum(op.reshape(whole, turns), [axis], keepdims=False)

"""Gradients of products along an axis, without a division: zeros among the factors need no exception in any order."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_int, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.placement.shape import cut, pad
from ckplan.autodiff.rules.reductions.reduction import as_one_axis, from_one_axis, kept


@rule("ReduceProd", since=18, fixed=[1])
def reduce_prod(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative: the product of the other elements, by halves: that of one half times the elements of the other."""
    x = required_input(node, 0)
    axes, (g,) = kept(op, node, dy[0])
    if not axes:
        return [g]
    if 0 in shape_of(x):
        return [None]
    merged, axis = as_one_axis(op, x, axes)
    g, _ = as_one_axis(op, g, axes)
    return [from_one_axis(op, _others(op, merged, g, axis), x, axes)]


def _others(op: Builder, x: ir.Value, g: ir.Value, axis: int) -> ir.Value:
    """Return for each element of an axis the product of the others times g, of which the axis has one element.

    Takes twice the memory of x: the products of pairs, of pairs of pairs, ... are each half as long.
    """
    size = shape_of(x)[axis]
    if size == 1:
        return g
    half = (size + 1) // 2
    if size % 2:
        after = [0] * len(shape_of(x))
        after[axis] = 1
        x = op.Pad(x, np.asarray([*[0] * len(after), *after], dtype=np.int64), 1.0)
    first, second = op.Split(x, np.asarray([half, half], dtype=np.int64), axis=axis, _outputs=2)
    outside = g if half == 1 else _others(op, op.Mul(first, second), g, axis)
    return cut(op, op.Concat(op.Mul(outside, second), op.Mul(outside, first), axis=axis), axis, 0, size)


@rule("CumProd", since=26, fixed=[1])
def cumprod(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The product of the elements before times ``r[i] = dy[i] + x[i+1] r[i+1]``, which is found by doubling.

    In the exclusive form an element is in the products from the next one on, and dy[i+1] stands for dy[i].
    """
    x, axis, r = required_input(node, 0), op.constant_ints(node, 1, "axis"), dy[0]
    assert axis is not None
    assert r is not None
    if 0 in shape_of(x):
        return [None]
    along, reverse = axis[0] % len(shape_of(x)), bool(attr_int(node, "reverse", 0))
    size = shape_of(x)[along]
    if attr_int(node, "exclusive", 0):
        r = _next(op, r, along, 1, reverse)
    factor, step = _next(op, x, along, 1, reverse), 1
    while step < size:
        r = op.Add(r, op.Mul(factor, _next(op, r, along, step, reverse)))
        step *= 2
        if step < size:
            factor = op.Mul(factor, _next(op, factor, along, step // 2, reverse))
    before = op.CumProd(x, node.inputs[1], exclusive=1, reverse=int(reverse))
    return [op.Mul(before, r)]


def _next(op: Builder, value: ir.Value, axis: int, step: int, reverse: bool) -> ir.Value:
    """Return for each element the one that is ``step`` further on, zero behind the end; back with ``reverse``."""
    size = shape_of(value)[axis]
    step = min(step, size)
    lead, rest = [0] * len(shape_of(value)), [0] * len(shape_of(value))
    (lead if reverse else rest)[axis] = step
    left = cut(op, value, axis, 0, size - step) if reverse else cut(op, value, axis, step, size)
    return pad(op, left, lead, rest)

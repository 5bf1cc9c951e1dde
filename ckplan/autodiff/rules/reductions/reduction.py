"""Gradients of reductions. In opset 18 and later all of them take their axes as an input."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_int, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import rule


def kept(op: Builder, node: ir.Node, *values: ir.Value | None) -> tuple[tuple[int, ...], list[ir.Value]]:
    """Return the reduced axes, and the values in the shape they have with keepdims=1."""
    shape = shape_of(required_input(node, 0))
    axes = op.constant_ints(node, 1, "axes")
    if axes:
        reduced = tuple(sorted({axis % len(shape) for axis in axes}))
    else:
        reduced = () if attr_int(node, "noop_with_empty_axes", 0) else tuple(range(len(shape)))
    whole = [1 if axis in reduced else dim for axis, dim in enumerate(shape)]
    return reduced, [op.reshape(value, whole) for value in values if value is not None]


def as_one_axis(op: Builder, value: ir.Value, axes: Sequence[int]) -> tuple[ir.Value, int]:
    """Put some axes, at least one, in the place of the first of them and make one of them; return its number too."""
    shape, rest = shape_of(value), [axis for axis in range(len(shape_of(value))) if axis not in axes]
    first = min(axes)
    sizes = [shape[axis] for axis in rest]
    merged = [*sizes[:first], math.prod(shape[axis] for axis in axes), *sizes[first:]]
    return op.reshape(op.transpose(value, [*rest[:first], *sorted(axes), *rest[first:]]), merged), first


def from_one_axis(op: Builder, value: ir.Value, like: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Undo :func:`as_one_axis`: bring a value back to the shape of ``like``."""
    shape, rest = shape_of(like), [axis for axis in range(len(shape_of(like))) if axis not in axes]
    order = [*rest[: min(axes)], *sorted(axes), *rest[min(axes) :]]
    apart = op.reshape(value, [shape[axis] for axis in order])
    return op.transpose(apart, [order.index(axis) for axis in range(len(shape))])


@rule("ReduceSum", since=13, fixed=[1])
def reduce_sum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1."""
    _, (g,) = kept(op, node, dy[0])
    return [op.expand(g, shape_of(required_input(node, 0)))]


@rule("ReduceMean", since=18, fixed=[1])
def reduce_mean(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1/n."""
    axes, (g,) = kept(op, node, dy[0])
    shape = shape_of(required_input(node, 0))
    count = math.prod(shape[axis] for axis in axes)
    return [op.expand(op.scale(g, 1 / max(count, 1)), shape)]


@rule("ReduceMax", since=18, fixed=[1])
@rule("ReduceMin", since=18, fixed=[1])
def reduce_extreme(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 by the extreme element, shared equally among equals."""
    x = required_input(node, 0)
    axes, (g, y) = kept(op, node, dy[0], node.outputs[0])
    if not axes:
        return [g]
    chosen = op.Cast(op.Equal(x, y), to=x.dtype)
    return [op.Mul(chosen, op.Div(g, op.reduce_sum(chosen, axes)))]


@rule("ReduceL1", since=18, fixed=[1])
def reduce_l1(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative sign(x)."""
    _, (g,) = kept(op, node, dy[0])
    return [op.Mul(op.Sign(required_input(node, 0)), g)]


@rule("ReduceL2", since=18, fixed=[1])
def reduce_l2(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative x / y, and 0 where y = 0."""
    x = required_input(node, 0)
    _, (g, y) = kept(op, node, dy[0], node.outputs[0])
    safe = op.Where(op.Equal(y, 0.0), np.ones((), dtype_of(y)), y)
    return [op.Mul(x, op.Div(g, safe))]


@rule("ReduceLogSum", since=18, fixed=[1])
def reduce_log_sum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative exp(-y)."""
    _, (g, y) = kept(op, node, dy[0], node.outputs[0])
    return [op.expand(op.Div(g, op.Exp(y)), shape_of(required_input(node, 0)))]


@rule("ReduceLogSumExp", since=18, fixed=[1])
def reduce_log_sum_exp(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative softmax(x). That is exp(x - y) too, but a large y is too coarse a number to subtract."""
    x = required_input(node, 0)
    axes, (g,) = kept(op, node, dy[0])
    if not axes or 0 in shape_of(x):
        return [g if not axes else None]
    merged, axis = as_one_axis(op, x, axes)
    return [op.Mul(from_one_axis(op, op.Softmax(merged, axis=axis), x, axes), g)]


@rule("ReduceSumSquare", since=18, fixed=[1])
def reduce_sum_square(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 2 x."""
    _, (g,) = kept(op, node, dy[0])
    return [op.Mul(required_input(node, 0), op.scale(g, 2))]

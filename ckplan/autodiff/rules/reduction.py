"""Gradients of reductions. In opset 18 and later all of them take their axes as an input."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, attr_int, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import rule


def _kept(op: Builder, node: ir.Node, *values: ir.Value | None) -> tuple[tuple[int, ...], list[ir.Value]]:
    """Return the reduced axes, and the values in the shape they have with keepdims=1."""
    shape = shape_of(required_input(node, 0))
    axes = op.constant_ints(node, 1, "axes")
    if axes:
        reduced = tuple(sorted({axis % len(shape) for axis in axes}))
    else:
        reduced = () if attr_int(node, "noop_with_empty_axes", 0) else tuple(range(len(shape)))
    kept = [1 if axis in reduced else dim for axis, dim in enumerate(shape)]
    return reduced, [op.reshape(value, kept) for value in values if value is not None]


@rule("ReduceSum", since=13, fixed=[1])
def reduce_sum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1."""
    _, (g,) = _kept(op, node, dy[0])
    return [op.expand(g, shape_of(required_input(node, 0)))]


@rule("ReduceMean", since=18, fixed=[1])
def reduce_mean(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1/n."""
    axes, (g,) = _kept(op, node, dy[0])
    shape = shape_of(required_input(node, 0))
    count = math.prod(shape[axis] for axis in axes)
    return [op.expand(op.scale(g, 1 / max(count, 1)), shape)]


@rule("ReduceMax", since=18, fixed=[1])
@rule("ReduceMin", since=18, fixed=[1])
def reduce_extreme(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 by the extreme element, shared equally among equals."""
    x = required_input(node, 0)
    axes, (g, y) = _kept(op, node, dy[0], node.outputs[0])
    if not axes:
        return [g]
    chosen = op.Cast(op.Equal(x, y), to=x.dtype)
    return [op.Mul(chosen, op.Div(g, op.reduce_sum(chosen, axes)))]


@rule("ReduceProd", since=18, fixed=[1])
def reduce_prod(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative: the product of the other elements, also where some are zero."""
    x = required_input(node, 0)
    axes, (g,) = _kept(op, node, dy[0])
    if not axes:
        return [g]
    zero = op.Cast(op.Equal(x, 0.0), to=x.dtype)
    nonzero = op.Add(x, zero)
    product = op.ReduceProd(nonzero, np.asarray(axes, dtype=np.int64), keepdims=1)
    others_nonzero = op.Cast(op.Equal(op.Sub(op.reduce_sum(zero, axes), zero), 0.0), to=x.dtype)
    return [op.Mul(op.Div(others_nonzero, nonzero), op.Mul(product, g))]


@rule("ReduceL1", since=18, fixed=[1])
def reduce_l1(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative sign(x)."""
    _, (g,) = _kept(op, node, dy[0])
    return [op.Mul(op.Sign(required_input(node, 0)), g)]


@rule("ReduceL2", since=18, fixed=[1])
def reduce_l2(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative x / y, and 0 where y = 0."""
    x = required_input(node, 0)
    _, (g, y) = _kept(op, node, dy[0], node.outputs[0])
    safe = op.Where(op.Equal(y, 0.0), np.ones((), dtype_of(y)), y)
    return [op.Mul(x, op.Div(g, safe))]


@rule("ReduceLogSum", since=18, fixed=[1])
def reduce_log_sum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative exp(-y)."""
    _, (g, y) = _kept(op, node, dy[0], node.outputs[0])
    return [op.expand(op.Div(g, op.Exp(y)), shape_of(required_input(node, 0)))]


@rule("ReduceLogSumExp", since=18, fixed=[1])
def reduce_log_sum_exp(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative exp(x - y)."""
    _, (g, y) = _kept(op, node, dy[0], node.outputs[0])
    return [op.Mul(op.Exp(op.Sub(required_input(node, 0), y)), g)]


@rule("ReduceSumSquare", since=18, fixed=[1])
def reduce_sum_square(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 2 x."""
    _, (g,) = _kept(op, node, dy[0])
    return [op.Mul(required_input(node, 0), op.scale(g, 2))]

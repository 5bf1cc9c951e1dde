"""Gradients of sums and products along an axis."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, attr_int, dtype_of, required_input
from ckplan.autodiff.registry import rule


@rule("CumSum", fixed=[1])
def cumsum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The cumulative sum from the other end."""
    exclusive, reverse = attr_int(node, "exclusive", 0), attr_int(node, "reverse", 0)
    return [op.CumSum(dy[0], node.inputs[1], exclusive=exclusive, reverse=1 - reverse)]


@rule("CumProd", since=26, fixed=[1])
def cumprod(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """With dy y summed from the other end, that sum divided by x; also where some x are zero.

    All products from the first zero on are zero, so the sums are right for every element but that zero. Its own
    derivative is what the products would be with a one in its place, and behind it everything stays zero.
    """
    x, axis, y = required_input(node, 0), required_input(node, 1), node.outputs[0]
    exclusive, reverse = attr_int(node, "exclusive", 0), attr_int(node, "reverse", 0)
    one, dtype = np.ones((), dtype_of(x)), x.dtype
    assert dtype is not None
    zero = op.Equal(x, 0.0)
    count = op.CumSum(op.Cast(zero, to=dtype), axis, reverse=reverse)
    first = op.And(zero, op.Equal(count, 1.0))
    without = op.CumProd(op.Where(first, one, x), axis, exclusive=exclusive, reverse=reverse)
    own = op.CumSum(op.Mul(without, dy[0]), axis, exclusive=exclusive, reverse=1 - reverse)
    others = op.CumSum(op.Mul(y, dy[0]), axis, exclusive=exclusive, reverse=1 - reverse)
    return [op.Where(first, own, op.Div(others, op.Where(zero, one, x)))]

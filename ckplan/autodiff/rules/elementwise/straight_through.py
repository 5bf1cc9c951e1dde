"""Gradients that pass straight through quantisation; see :mod:`ckplan.autodiff.quantisation`."""

from __future__ import annotations

import math

import ml_dtypes
import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN
from ckplan.autodiff.reading import attr_int, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.operators.matching import input_of


@rule("StraightThrough", domain=DOMAIN, leading=1)
def straight_through(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1: of rounding, and of a dynamic quantisation, whose range fits the numbers."""
    return [dy[0]]


@rule("QuantizeDequantize", domain=DOMAIN, leading=1)
def quantize_dequantize(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the input, the scale and the zero point: derivative 1 within the range of the quantised type, else 0."""
    x, upstream = required_input(node, 0), dy[0]
    bounds = _range(node)
    if bounds is None or upstream is None:
        return [upstream]
    lower, upper = (_limit(op, node, bound) for bound in bounds)
    inside = op.And(op.Greater(x, lower), op.Less(x, upper))
    return [op.Mul(upstream, op.Cast(inside, to=x.dtype))]


def _range(node: ir.Node) -> tuple[float, float] | None:
    """Return the numbers between which nothing is cut off, in steps of the scale; None for a type without saturation.

    Numbers up to half a step behind the last one of an integer type, or that a Clip leaves of it, are rounded to it.
    """
    kind = ir.DataType(attr_int(node, "to", ir.DataType.UINT8))
    dtype = kind.numpy()
    if kind.is_floating_point():
        if not attr_int(node, "saturate", 1):
            return None
        limit = float(ml_dtypes.finfo(dtype).max)  # type: ignore[no-untyped-call]
        return math.nextafter(-limit, -math.inf), math.nextafter(limit, math.inf)
    info = ml_dtypes.iinfo(dtype)  # type: ignore[no-untyped-call]
    lower, upper = attr_int(node, "lower", info.min), attr_int(node, "upper", info.max)  # of a Clip
    return max(lower, info.min) - 0.5, min(upper, info.max) + 0.5


def _limit(op: Builder, node: ir.Node, bound: float) -> ir.Value:
    """Emit (bound - zero point) * scale, broadcast to the shape of x."""
    x, scale, zero = required_input(node, 0), required_input(node, 1), input_of(node, 2)
    known, offset = op.constant_of(scale), op.constant_of(zero)
    dtype = dtype_of(x)
    if known is not None and (zero is None or offset is not None):
        steps = bound - (0.0 if offset is None else offset.astype(np.float64))
        return _aligned(op, node, op.constant((steps * known.astype(np.float64)).astype(dtype)))
    scale = op.cast(scale, x.dtype)
    if zero is None:
        return _aligned(op, node, op.Mul(scale, bound))
    return _aligned(op, node, op.Mul(op.Sub(bound, op.Cast(zero, to=x.dtype)), scale))


def _aligned(op: Builder, node: ir.Node, limit: ir.Value) -> ir.Value:
    """Give a limit per tensor, axis or block a shape that broadcasts to x."""
    shape, have = shape_of(required_input(node, 0)), shape_of(limit)
    if math.prod(have) == 1 and not attr_int(node, "block_size", 0):
        return op.reshape(limit, ())
    axis = attr_int(node, "axis", 1) % len(shape)
    block = attr_int(node, "block_size", 0)
    if not block:
        return op.reshape(limit, [size if i == axis else 1 for i, size in enumerate(shape)])
    rows = np.arange(shape[axis], dtype=np.int64) // block
    return op.Gather(limit, rows, axis=axis)

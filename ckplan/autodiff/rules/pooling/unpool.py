"""Gradient of MaxUnpool."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.idioms.slices import stretch
from ckplan.autodiff.reading import attr_ints, dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import NoGradientError, rule

#: Whole numbers up to this are exact in float32.
_EXACT = 2**24


@rule("MaxUnpool", since=9, fixed=[1, 2])
def max_unpool(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The elements of dy that x was put to; where two were put to one place, the last of them stays and takes it all.

    Given a size that does not follow from the window, onnxruntime counts indices in the output and onnx's evaluator in
    the smaller one that would follow. So positions are not computed then: MaxUnpool is run on numbers from 1 on.
    """
    x, indices, g = required_input(node, 0), required_input(node, 1), dy[0]
    assert g is not None
    count, total = size_of(x), size_of(g)
    if not count or not total:
        return [None]
    kernel = attr_ints(node, "kernel_shape") or ()
    strides, pads = attr_ints(node, "strides") or (1,) * len(kernel), attr_ints(node, "pads") or (0,) * 2 * len(kernel)
    spans = zip(shape_of(x)[2:], kernel, strides, pads, pads[len(kernel) :], strict=False)
    if shape_of(g)[2:] != tuple((n - 1) * s + k - b - e for n, k, s, b, e in spans):
        return [_by_numbers(op, node, x, g)]
    flat = op.reshape(indices, [count])
    taken = op.Gather(op.reshape(g, [total]), flat)
    if not _apart(indices):
        numbers = _numbers(op, count, g)
        last = op.ScatterElements(op.zeros([total], numbers), flat, numbers)
        stays = op.Equal(op.Gather(last, flat), numbers)
        taken = op.Mul(taken, op.Cast(stays, to=x.dtype))
    return [op.reshape(taken, shape_of(x))]


def _apart(indices: ir.Value) -> bool:
    """Say whether indices come from a MaxPool whose windows do not overlap."""
    pool = indices.producer()
    if pool is None or pool.op_type != "MaxPool":
        return False
    kernel = attr_ints(pool, "kernel_shape") or ()
    ones = (1,) * len(kernel)
    strides, dilations = attr_ints(pool, "strides") or ones, attr_ints(pool, "dilations") or ones
    return all(s > (k - 1) * d for s, k, d in zip(strides, kernel, dilations, strict=True))


def _numbers(op: Builder, count: int, after: ir.Value) -> ir.Value:
    """Return 1, 2, ... up to ``count``, made when ``after`` is there."""
    one = op.Cast(there(op, after), to=ir.DataType.INT32)
    return op.CumSum(op.expand(op.reshape(one, [1]), [count]), np.asarray(0))


def _by_numbers(op: Builder, node: ir.Node, x: ir.Value, g: ir.Value) -> ir.Value:
    """Learn which element each place of the output got by unpooling the elements' numbers."""
    count = size_of(x)
    if count >= _EXACT:
        raise NoGradientError("its 'output_shape' is not the size that follows from the window, and x is too large")
    dtype = x.dtype if dtype_of(x).itemsize >= 4 else ir.DataType.FLOAT
    numbers = op.reshape(op.Cast(_numbers(op, count, g), to=dtype), shape_of(x))
    attributes = {name: attr_ints(node, name) for name in ("kernel_shape", "strides", "pads")}
    source = op.MaxUnpool(numbers, *node.inputs[1:], **attributes, _shape=shape_of(g))
    flat = op.Cast(op.reshape(source, [size_of(g)]), to=ir.DataType.INT64)
    # Number 0 stands for places that got nothing.
    sums = op.ScatterElements(op.zeros([count + 1], g), flat, op.reshape(g, [size_of(g)]), reduction="add")
    return op.reshape(stretch(op, sums, 0, 1, count + 1), shape_of(x))

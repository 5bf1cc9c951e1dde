"""Gradient of MaxRoiPool."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.slices import stretch
from ckplan.autodiff.reading import attr_float, attr_ints, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.sampling import between_elements


@rule("MaxRoiPool", fixed=[1])
def max_roi_pool(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Looks for the maxima again, in the columns of each bin and then in its rows; of equal ones the first takes all.

    Regions are rounded to whole elements, so nothing depends on them smoothly. How many elements a bin has is known
    where the regions are; where they are computed, a bin may be the whole image, and all of it is looked at for each.
    """
    x, rois, g = required_input(node, 0), required_input(node, 1), dy[0]
    assert g is not None
    if 0 in shape_of(x) or 0 in shape_of(g):
        return [None]
    images, channels, height, width = shape_of(x)
    count, places = shape_of(g)[0], math.prod(shape_of(g)[2:])
    known = op.constant_of(rois)
    moved = between_elements.gated(op, rois, g)
    rows, columns = (_elements(op, node, moved, known, axis) for axis in (0, 1))
    each = shape_of(rows)[2] * shape_of(columns)[2]
    # -1 stands for an element that a bin does not have.
    row = op.reshape(rows, [count, shape_of(rows)[1], 1, shape_of(rows)[2], 1])
    column = op.reshape(columns, [count, 1, shape_of(columns)[1], 1, shape_of(columns)[2]])
    exists = op.reshape(op.GreaterOrEqual(op.Min(row, column), 0.0), [count * places * each])
    image = op.reshape(stretch(op, moved, 1, 0, 1), [count, 1, 1, 1, 1])
    inside = op.Add(op.Mul(op.Relu(row), float(width)), op.Relu(column))
    index = op.Cast(inside, to=ir.DataType.INT64)
    index = op.Add(index, op.Mul(op.Cast(image, to=ir.DataType.INT64), height * width))
    index = op.reshape(index, [count * places * each])
    pixels = op.reshape(op.transpose(x, (1, 0, 2, 3)), [channels, images * height * width])
    lowest = np.asarray(np.finfo(dtype_of(x)).min, dtype_of(x))
    read = op.Where(exists, op.Gather(pixels, index, axis=1), lowest)
    best = op.ArgMax(op.reshape(read, [channels, count * places, each]), axis=2, keepdims=0)
    chosen = op.Add(best, np.arange(count * places, dtype=np.int64) * each)
    upstream = op.reshape(op.transpose(g, (1, 0, 2, 3)), [channels, count * places])
    # Bins without elements are 0 whatever x is.
    updates = op.Mul(upstream, op.Cast(op.Gather(exists, chosen), to=x.dtype))
    into = op.zeros(shape_of(pixels), g)
    found = op.ScatterElements(into, op.Gather(index, chosen), updates, axis=1, reduction="add")
    return [op.transpose(op.reshape(found, [channels, images, height, width]), (1, 0, 2, 3))]


def _elements(op: Builder, node: ir.Node, rois: ir.Value, known: np.ndarray | None, axis: int) -> ir.Value:
    """List the rows (axis 0) or columns of each bin, (R, bins, most), -1 where there are fewer.

    The arithmetic is the kernel's: float, in this order (onnxruntime's ``RoiPool``).
    """
    dtype = dtype_of(rois)
    size = shape_of(required_input(node, 0))[2 + axis]
    bins = (attr_ints(node, "pooled_shape") or (1, 1))[axis]
    scale = attr_float(node, "spatial_scale", 1.0)
    edges = (stretch(op, rois, 1, column, column + 1) for column in (2 - axis, 4 - axis))
    start, end = (_rounded(op, op.scale(edge, scale)) for edge in edges)
    length = op.Max(op.Add(op.Sub(end, start), 1.0), np.ones((), dtype))
    bin_size = op.Div(length, float(bins))
    numbers = np.arange(bins, dtype=dtype).reshape(1, -1)
    limits = np.zeros((), dtype), np.asarray(size, dtype)
    first = op.Clip(op.Add(op.Floor(op.Mul(bin_size, numbers)), start), *limits)
    last = op.Clip(op.Add(op.Ceil(op.Mul(bin_size, numbers + 1)), start), *limits)
    most = size
    if known is not None:
        longest = float((known[:, 4 - axis] - known[:, 2 - axis]).max()) * scale + 3
        most = min(size, max(1, math.ceil(longest / bins) + 2))
    count = shape_of(rois)[0]
    element = op.Add(op.reshape(first, [count, bins, 1]), np.arange(most, dtype=dtype))
    return op.Where(op.Less(element, op.reshape(last, [count, bins, 1])), element, op.constant(np.asarray(-1, dtype)))


def _rounded(op: Builder, value: ir.Value) -> ir.Value:
    """Round to the nearest whole number; halves away from zero."""
    return op.Mul(op.Sign(value), op.Floor(op.Add(op.Abs(value), 0.5)))

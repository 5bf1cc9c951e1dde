"""Gradient of RoiAlign.

An average over samples that lie on a grid is separable: with ``A`` of shape (regions, bins, rows) that says what share
each row has in each bin, and ``B`` likewise for columns, the output is ``A x B^T`` for each region. The gradients are
matrix products with the same two, which are small. Regions share one product each way: with the image that a region
lies in marked in ``B``, its contribution goes to the right image by itself, and nothing is scattered.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.slices import stretch
from ckplan.autodiff.reading import attr_float, attr_int, attr_str, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.autodiff.rules.sampling import between_elements

#: Samples of one bin, at least half an element apart, that can lie within one element of a row, and two for rounding.
_NEAR = 6


@dataclass(frozen=True)
class _Axis:
    """Where the samples of each region lie along one axis.

    Attributes:
        size: elements of the axis.
        start: where regions begin, in elements, (R, 1, 1, 1).
        extent: how long they are, (R, 1, 1, 1).
        free: 1 where the end of the region moves the samples, 0 where its length is held at 1; None stands for 1.
        samples: how many samples a bin has, (R, 1, 1, 1) or a number.
        bins: how many bins.
        scale: elements per unit of the regions.
    """

    size: int
    start: ir.Value
    extent: ir.Value
    free: ir.Value | None
    samples: ir.Value | int
    bins: int
    scale: float


@dataclass(frozen=True)
class _Shares:
    """What share each row has in each bin, (R, bins, size), and the derivatives by the region's start and end."""

    weights: ir.Value
    by_start: ir.Value | None
    by_end: ir.Value | None


@rule("RoiAlign", since=16)
def roi_align(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Averages: products with the shares of rows and columns. Maxima: dy goes to the corner that was the largest.

    ONNX takes the maximum over the weighted corners, before they are added up. Of equal ones the first takes all.
    """
    x, rois, batches, g = required_input(node, 0), required_input(node, 1), required_input(node, 2), dy[0]
    assert g is not None
    if 0 in shape_of(x) or 0 in shape_of(g):
        return [None, None, None]
    regions = op.cast(between_elements.gated(op, rois, g), x.dtype)
    axes = [_axis(op, node, regions, axis) for axis in (0, 1)]
    if attr_str(node, "mode", "avg").lower() == "max":
        dx, drois = _maximum(op, axes, (x, rois, batches), g)
    else:
        dx, drois = _average(op, axes, (x, rois, batches), g)
    if drois is not None and rois.dtype != drois.dtype:
        drois = op.Cast(drois, to=rois.dtype)
    return [dx, drois, None]


def _axis(op: Builder, node: ir.Node, rois: ir.Value, axis: int) -> _Axis:
    """Read rows (axis 0) or columns (axis 1) of all regions: they are given as x1, y1, x2, y2."""
    count = shape_of(rois)[0]
    half = attr_str(node, "coordinate_transformation_mode", "half_pixel").lower() == "half_pixel"
    scale = attr_float(node, "spatial_scale", 1.0)
    ends = []
    for column in (1 - axis, 3 - axis):
        end = op.reshape(stretch(op, rois, 1, column, column + 1), [count, 1, 1, 1])
        end = op.scale(end, scale)
        ends.append(op.Sub(end, 0.5) if half else end)
    extent = op.Sub(ends[1], ends[0])
    free = None
    if not half:
        free = op.Cast(op.Greater(extent, 1.0), to=rois.dtype)
        extent = op.Max(extent, np.ones((), dtype_of(rois)))
    bins = attr_int(node, ("output_height", "output_width")[axis], 1)
    samples: ir.Value | int = attr_int(node, "sampling_ratio", 0)
    if samples == 0:
        samples = op.Ceil(op.Div(extent, float(bins)))
    size = shape_of(required_input(node, 0))[2 + axis]
    return _Axis(size, ends[0], extent, free, samples, bins, scale)


def _fractions(op: Builder, axis: _Axis, sample: ir.Value | np.ndarray) -> ir.Value:
    """Return where samples lie in their region, from 0 to 1; ``sample`` is a number within the bin, (..., n)."""
    dtype = dtype_of(axis.start)
    bins = op.constant(np.arange(axis.bins, dtype=dtype).reshape(1, -1, 1, 1))
    if isinstance(axis.samples, int):
        assert isinstance(sample, np.ndarray)
        within: ir.Value = op.constant(((sample + 0.5) / axis.samples).astype(dtype))
    else:
        within = op.Div(op.Add(sample, 0.5), op.Max(axis.samples, np.ones((), dtype)))
    return op.Mul(op.Add(bins, within), 1.0 / axis.bins)


def _places(op: Builder, axis: _Axis, fractions: ir.Value) -> ir.Value:
    return op.Add(op.Mul(axis.extent, fractions), axis.start)


def _shares(op: Builder, axis: _Axis, slopes: bool) -> _Shares:
    """Emit the shares of rows in bins.

    With as many samples as a bin is long, only those next to a row are looked at, so that nothing depends on how long
    bins may become.
    """
    dtype = dtype_of(axis.start)
    rows = op.constant(np.arange(axis.size, dtype=dtype).reshape(1, 1, -1, 1))
    exists: ir.Value | None = None
    if isinstance(axis.samples, int):
        fractions = _fractions(op, axis, np.arange(axis.samples).reshape(1, 1, 1, -1))
        divisor: ir.Value | None = None
    else:
        divisor = op.Max(axis.samples, np.ones((), dtype))
        apart = op.Div(op.Mul(axis.extent, 1.0 / axis.bins), divisor)
        apart = op.Where(op.Greater(apart, 0.0), apart, np.ones((), dtype))
        first = _places(op, axis, _fractions(op, axis, op.constant(np.zeros((1, 1, 1, 1), dtype))))
        nearest = op.Floor(op.Div(op.Sub(op.Sub(rows, 1.0), first), apart))
        nearest = op.Max(op.Min(nearest, op.Sub(axis.samples, 1.0)), np.zeros((), dtype))
        sample = op.Add(nearest, np.arange(_NEAR, dtype=dtype))
        exists = op.Cast(op.Less(sample, axis.samples), to=axis.start.dtype)
        fractions = _fractions(op, axis, sample)
    place = _places(op, axis, fractions)
    held = op.Clip(place, np.zeros((), dtype), np.asarray(axis.size - 1, dtype))
    beyond = op.Sub(place, held)
    # Samples more than one element outside do not count.
    counted = op.And(op.GreaterOrEqual(place, -1.0), op.LessOrEqual(place, float(axis.size)))
    factor = between_elements.product(op, op.Cast(counted, to=axis.start.dtype), exists)
    assert factor is not None
    factor = op.Mul(factor, 1.0 / axis.samples) if isinstance(axis.samples, int) else op.Div(factor, divisor)
    distance = op.Sub(rows, held)
    near = op.Relu(op.Sub(1.0, op.Abs(distance)))
    weights = op.reduce_sum(op.Mul(near, factor), [3], keepdims=False)
    if not slopes:
        return _Shares(weights, None, None)
    inside = op.Cast(op.Equal(beyond, 0.0), to=axis.start.dtype)
    slope = op.Mul(op.Mul(op.Mul(op.Sign(near), op.Sign(distance)), inside), factor)
    part = op.Mul(fractions, axis.free) if axis.free is not None else fractions
    by_end = op.Mul(slope, part)
    by_start = op.Sub(slope, by_end)
    return _Shares(weights, op.reduce_sum(by_start, [3], keepdims=False), op.reduce_sum(by_end, [3], keepdims=False))


def _average(
    op: Builder, axes: list[_Axis], inputs: tuple[ir.Value, ir.Value, ir.Value], g: ir.Value
) -> tuple[ir.Value | None, ir.Value | None]:
    x, rois, batches = inputs
    images, channels, height, width = shape_of(x)
    count, _, _, bins = shape_of(g)
    rows, columns = (_shares(op, axis, op.wants(rois)) for axis in axes)
    # Rows are summed up first, a product per region: (R, height, bins) times (R, bins, C x bins).
    lined = op.reshape(op.transpose(g, (0, 2, 1, 3)), [count, axes[0].bins, channels * bins])
    tall = op.reshape(op.MatMul(op.transpose(rows.weights, (0, 2, 1)), lined), [count, height, channels, bins])
    spread = op.reshape(op.transpose(tall, (2, 1, 0, 3)), [channels * height, count * bins])
    marked = None
    if images > 1:
        marked = op.OneHot(batches, np.asarray(images), np.asarray([0, 1], dtype_of(x)))
        marked = op.reshape(marked, [count, 1, images, 1])
    side = op.reshape(columns.weights, [count, bins, 1, width])
    placed = op.reshape(between_elements.product(op, side, marked) or side, [count * bins, images * width])
    dx = None
    if op.wants(x):
        dx = op.reshape(op.MatMul(spread, placed), [channels, height, images, width])
        dx = op.transpose(dx, (2, 0, 1, 3))
    if not op.wants(rois):
        return dx, None
    pixels = op.reshape(op.transpose(x, (1, 2, 0, 3)), [channels * height, images * width])
    read = op.MatMul(pixels, op.transpose(placed, (1, 0)))
    per_region = op.transpose(op.reshape(read, [channels, height, count, bins]), (2, 0, 3, 1))
    drows = op.MatMul(lined, op.reshape(per_region, [count, channels * bins, height]))
    found = op.reshape(op.MatMul(op.transpose(spread, (1, 0)), pixels), [count, bins, images, width])
    dcolumns = op.reduce_sum(op.Mul(found, marked) if marked is not None else found, [2], keepdims=False)
    return dx, _joined(op, axes, [(drows, rows), (dcolumns, columns)])


def _joined(op: Builder, axes: list[_Axis], found: list[tuple[ir.Value, _Shares]]) -> ir.Value:
    """Emit the gradients of regions as (R, 4), from those of the shares of rows and of columns."""
    starts, ends = [], []
    for gradient, shares in reversed(found):
        assert shares.by_start is not None
        assert shares.by_end is not None
        starts.append(op.reduce_sum(op.Mul(gradient, shares.by_start), [1, 2], keepdims=False))
        ends.append(op.reduce_sum(op.Mul(gradient, shares.by_end), [1, 2], keepdims=False))
    return _columns(op, axes, [*starts, *ends])


def _columns(op: Builder, axes: list[_Axis], parts: list[ir.Value]) -> ir.Value:
    """Put the gradients of x1, y1, x2, y2 side by side, in the regions' own unit."""
    count = shape_of(axes[0].start)[0]
    joined = op.Concat(*(op.reshape(part, [count, 1]) for part in parts), axis=1)
    return op.scale(joined, axes[0].scale)


@dataclass(frozen=True)
class _Candidates:
    """The elements along one axis that a maximum is taken over, (R, bins, 2 samples).

    Attributes:
        index: which element, int64.
        weight: its share in a sample, 0 where the sample does not count.
        missing: 1 where a bin has no such sample; None if it always has.
        by_start: derivative of the weight by the region's start.
        by_end: derivative of the weight by the region's end.
    """

    index: ir.Value
    weight: ir.Value
    missing: ir.Value | None
    by_start: ir.Value
    by_end: ir.Value


def _candidates(op: Builder, axis: _Axis, most: int) -> _Candidates:
    """List the elements that samples are made of, each sample's lower one before its upper one."""
    dtype = dtype_of(axis.start)
    missing = None
    if isinstance(axis.samples, int):
        fractions = _fractions(op, axis, np.arange(most).reshape(1, 1, 1, -1))
    else:
        sample = op.constant(np.arange(most, dtype=dtype).reshape(1, 1, 1, -1))
        fractions = _fractions(op, axis, sample)
        missing = op.Cast(op.GreaterOrEqual(sample, axis.samples), to=axis.start.dtype)
    place = _places(op, axis, fractions)
    held = op.Clip(place, np.zeros((), dtype), np.asarray(axis.size - 1, dtype))
    counted = op.And(op.GreaterOrEqual(place, -1.0), op.LessOrEqual(place, float(axis.size)))
    factor = op.Cast(counted, to=axis.start.dtype)
    if missing is not None:
        factor = op.Mul(factor, op.Sub(1.0, missing))
    slope = op.Mul(op.Cast(op.Equal(place, held), to=axis.start.dtype), factor)
    part = op.Mul(fractions, axis.free) if axis.free is not None else fractions
    by_end = op.Mul(slope, part)
    by_start = op.Sub(slope, by_end)
    low = op.Floor(held)
    high = op.Min(op.Add(low, 1.0), np.asarray(axis.size - 1, dtype))
    share = op.Mul(op.Sub(held, low), factor)

    def both(lower: ir.Value, upper: ir.Value) -> ir.Value:
        """Interleave (R, bins, 1, samples) to (R, bins, 2 samples)."""
        shape = (shape_of(axis.start)[0], axis.bins, most)
        lower, upper = (op.reshape(op.expand(v, (*shape[:2], 1, most)), (*shape, 1)) for v in (lower, upper))
        return op.reshape(op.Concat(lower, upper, axis=3), (*shape[:2], 2 * most))

    return _Candidates(
        op.Cast(both(low, high), to=ir.DataType.INT64),
        both(op.Sub(factor, share), share),
        both(missing, missing) if missing is not None else None,
        both(op.Neg(by_start), by_start),
        both(op.Neg(by_end), by_end),
    )


def _maximum(
    op: Builder, axes: list[_Axis], inputs: tuple[ir.Value, ir.Value, ir.Value], g: ir.Value
) -> tuple[ir.Value | None, ir.Value | None]:
    x, rois, batches = inputs
    images, channels, height, width = shape_of(x)
    count = shape_of(g)[0]
    places = math.prod(shape_of(g)[2:])
    rows, columns = (_candidates(op, axis, _most(op, rois, axis, number)) for number, axis in enumerate(axes))
    each = shape_of(rows.index)[2] * shape_of(columns.index)[2]

    def crossed(kind: str, row: ir.Value, column: ir.Value) -> ir.Value:
        """Combine every row of a bin with every column, flat."""
        high, wide = shape_of(row)[1:], shape_of(column)[1:]
        row = op.reshape(row, [count, high[0], 1, high[1], 1])
        column = op.reshape(column, [count, 1, wide[0], 1, wide[1]])
        return op.reshape(op.emit(kind, row, column), [count * places * each])

    start = op.Mul(op.Cast(batches, to=ir.DataType.INT64), height * width)
    first = op.Add(op.Mul(rows.index, width), op.reshape(start, [count, 1, 1]))
    index, weight = crossed("Add", first, columns.index), crossed("Mul", rows.weight, columns.weight)
    pixels = op.reshape(op.transpose(x, (1, 0, 2, 3)), [channels, images * height * width])
    read = op.Mul(op.Gather(pixels, index, axis=1), weight)
    if rows.missing is not None and columns.missing is not None:
        lowest = float(np.finfo(dtype_of(x)).min)
        read = op.Where(op.Greater(crossed("Max", rows.missing, columns.missing), 0.0), lowest, read)
    best = op.ArgMax(op.reshape(read, [channels, count * places, each]), axis=2, keepdims=0)
    chosen = op.Add(best, np.arange(count * places, dtype=np.int64) * each)
    element = op.Gather(index, chosen)
    upstream = op.reshape(op.transpose(g, (1, 0, 2, 3)), [channels, count * places])
    dx = drois = None
    if op.wants(x):
        updates = op.Mul(upstream, op.Gather(weight, chosen))
        into = op.zeros(shape_of(pixels), g)
        dx = op.reshape(
            op.ScatterElements(into, element, updates, axis=1, reduction="add"), [channels, images, height, width]
        )
        dx = op.transpose(dx, (1, 0, 2, 3))
    if op.wants(rois):
        upstream = op.Mul(upstream, op.GatherElements(pixels, element, axis=1))
        slopes = [
            crossed("Mul", rows.weight, columns.by_start),
            crossed("Mul", rows.by_start, columns.weight),
            crossed("Mul", rows.weight, columns.by_end),
            crossed("Mul", rows.by_end, columns.weight),
        ]
        parts = []
        for slope in slopes:
            moved = op.reshape(op.Mul(upstream, op.Gather(slope, chosen)), [channels, count, places])
            parts.append(op.reduce_sum(moved, [0, 2], keepdims=False))
        drois = _columns(op, axes, parts)
    return dx, drois


def _most(op: Builder, rois: ir.Value, axis: _Axis, number: int) -> int:
    """Return the largest number of samples of a bin."""
    if isinstance(axis.samples, int):
        return axis.samples
    known = op.constant_of(rois)
    if known is None:
        raise NoGradientError("mode='max' with sampling_ratio=0 and regions computed at run time")
    extents = (known[:, 3 - number] - known[:, 1 - number]).astype(np.float64) * axis.scale
    return max(1, math.ceil(max(float(extents.max(initial=0.0)), 1.0) / axis.bins))

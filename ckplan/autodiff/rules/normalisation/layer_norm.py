"""Gradients of LayerNormalization, RMSNormalization, LpNormalization and LRN."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_float, attr_int, dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.elementwise.activations import is_kept
from ckplan.autodiff.rules.normalisation.batch_norm import affine, inverse_deviation
from ckplan.operators.matching import input_of

_EPSILON = 1e-5

#: Matrices of up to this many elements are no burden in any case.
_SMALL_BAND = 4096

#: Rows of up to this many numbers are short, where all rows together have so many: onnxruntime starts anew at each row
#: that a number is subtracted from, or that is multiplied by one or by a row, which takes as long as 32 numbers do.
_SHORT_ROW, _MANY = 64, 2**18

#: Short rows are multiplied side by side, up to this many numbers at a time.
_SIDE_BY_SIDE = 1024


@rule("LayerNormalization", since=17)
def layer_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads x and, in float32, the mean and inverse deviation of each row, two outputs that the node is made to give.

    Rows that are neither scaled nor shifted, and kept for something else, are read in the place of x and the mean.
    In other types those two would be less exact than x (double) or are made in float32 (half), so they are made anew.
    """
    x = required_input(node, 0)
    axes = _axes(node, x)
    if x.dtype == ir.DataType.FLOAT and attr_int(node, "stash_type", 1) == 1:
        mean, inverse = _statistics(op, node)
        if dy[0] is not None and not any(dy[1:]) and _is_plain(op, node) and is_kept(op, node.outputs[0]):
            return [_of_rows(op, node.outputs[0], dy[0], inverse, axes), None]
        return _normalization(op, node, dy, x, mean, inverse, axes)
    x, dy = op.wide(x), [None if g is None else op.wide(g) for g in dy]
    count = math.prod(shape_of(x)[axis] for axis in axes)
    mean = op.Mul(op.reduce_sum(x, axes), 1.0 / count)
    centred = op.Sub(x, mean)
    square = op.reduce_sum(op.Mul(centred, centred), axes)
    inverse = inverse_deviation(op, op.Mul(square, 1.0 / count), attr_float(node, "epsilon", _EPSILON))
    return _normalization(op, node, dy, x, mean, inverse, axes)


@rule("RMSNormalization", since=23)
def rms_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads x; the inverse root mean square of each row is recomputed from it."""
    x = required_input(node, 0)
    axes = _axes(node, x)
    x, dy = op.wide(x), [None if g is None else op.wide(g) for g in dy]
    square = op.ReduceMean(op.Mul(x, x), np.asarray(axes, dtype=np.int64), keepdims=1)
    inverse = inverse_deviation(op, square, attr_float(node, "epsilon", _EPSILON))
    return _normalization(op, node, dy, x, None, inverse, axes)


def _is_plain(op: Builder, node: ir.Node) -> bool:
    """Say whether rows, of which there are some, are neither scaled nor shifted."""
    scale, some = op.constant_of(node.inputs[1]), size_of(node.outputs[0]) > 0
    return some and len(node.inputs) == 2 and scale is not None and bool((scale == 1).all())


def _of_rows(op: Builder, y: ir.Value, dy: ir.Value, inverse: ir.Value, axes: Sequence[int]) -> ir.Value:
    """Emit the gradient of x of the normalised rows: ``inverse (dy - mean(dy) - y mean(dy y))``.

    Args:
        op: the builder.
        y: the rows.
        dy: their gradient.
        inverse: the inverse deviation of each row of x.
        axes: of a row.
    """
    shape = shape_of(y)
    count, rows = math.prod(shape[axis] for axis in axes), size_of(inverse)
    means = op.constant(np.full([1, count], -1.0 / count, dtype_of(y)))
    products = (op.reshape(value, [rows, count]) for value in (op.Mul(dy, y), dy))
    along, offset = (op.reshape(op.Gemm(means, value, transB=1), shape_of(inverse)) for value in products)
    total = op.Add(dy, _rest(op, y, along, offset))
    if count <= _SHORT_ROW and size_of(y) >= _MANY:
        return op.reshape(affine(op, _in_rows(op, total, rows), _in_rows(op, inverse, rows), None), shape)
    return op.Mul(total, inverse)


def _axes(node: ir.Node, x: ir.Value) -> list[int]:
    rank = len(shape_of(x))
    return list(range(attr_int(node, "axis", -1) % rank, rank))


def _statistics(op: Builder, node: ir.Node) -> tuple[ir.Value, ir.Value]:
    """Return a LayerNormalization's mean and inverse deviation, which are made outputs of the node if they are not."""
    if len(node.outputs) < 3:
        node.resize_outputs(3)
    for output, name in zip(node.outputs[1:], ("mean", "inverse_deviation"), strict=True):
        if not output.name:
            output.name = op.unique_name(f"{node.name}/{name}")
    op.infer(node)
    return node.outputs[1], node.outputs[2]


def _normalization(
    op: Builder,
    node: ir.Node,
    dy: Gradients,
    x: ir.Value,
    mean: ir.Value | None,
    inverse: ir.Value,
    axes: Sequence[int],
) -> Gradients:
    """Differentiate y = h scale + bias with h = (x - mean) inverse; without a mean, h = x inverse.

    dx = inverse (g - mean(g) - h mean(g h)) with g = dy scale, over rows of n elements. Mean and inverse deviation may
    have gradients themselves, as outputs 1 and 2 of the node; they join the two means.
    """
    source, scale, bias = required_input(node, 0), required_input(node, 1), input_of(node, 2)
    kind = source.dtype
    count = math.prod(shape_of(x)[axis] for axis in axes)
    vectors = all(shape_of(value) == (count,) for value in (scale, bias) if value is not None)
    short = vectors and len(axes) == 1 and count <= _SHORT_ROW and size_of(x) >= _MANY
    if short:
        rows = size_of(x) // count
        x, inverse, axes = _in_rows(op, x, rows), _in_rows(op, inverse, rows), [2]
        mean, *dy = (None if value is None else _in_rows(op, value, rows) for value in (mean, *dy))
    g, dmean, dinverse = (*dy, None, None)[:3]
    centred = x if mean is None else affine(op, x, None, op.Neg(mean)) if short else op.Sub(x, mean)
    dx = dscale = dbias = along = offset = scaled = None
    if g is not None:
        wide_scale, by_place = op.wide(scale), _is_by_place(shape_of(scale), shape_of(x), axes)
        dbias = op.sum_to_shape(g, shape_of(bias)) if bias is not None and op.wants(bias) else None
        product = op.Mul(g, centred)
        dscale = _by_scale(op, product, inverse, scale, by_place) if op.wants(scale) else None
    if op.wants(source):
        if g is not None:
            along = _negative_row_means(op, product, wide_scale, axes, count, by_place)
            scaled = _by_columns(op, g, wide_scale, count) if short else op.Mul(g, wide_scale)
            offset = None if mean is None else op.Mul(op.reduce_sum(scaled, axes), -1.0 / count)
        if dinverse is not None:
            along = _plus(op, along, op.Mul(dinverse, -1.0 / count))
        if dmean is not None:
            offset = _plus(op, offset, op.Mul(op.Div(dmean, inverse), 1.0 / count))
        slope = None if along is None else op.Mul(along, op.Mul(inverse, inverse))
        rest = _rest(op, centred, slope, offset)
        total = _plus(op, scaled, rest)
        if total is not None:
            dx = affine(op, total, inverse, None) if short else op.Mul(total, inverse)
            dx = op.reshape(dx, shape_of(source))
    results = [dx, dscale, dbias][: len(node.inputs)]
    return [None if result is None else op.cast(result, kind) for result in results]


def _is_by_place(scale: Sequence[int], x: Sequence[int], axes: Sequence[int]) -> bool:
    """Whether a scale has a number for each place in a row, the same for all rows; others are stretched over both."""
    return (*[1] * (len(x) - len(scale)), *scale) == tuple(n if axis in axes else 1 for axis, n in enumerate(x))


def _by_scale(op: Builder, product: ir.Value, inverse: ir.Value, scale: ir.Value, by_place: bool) -> ir.Value:
    """Emit the gradient of the scale, the sum over the rows of ``dy (x - mean)`` times ``inverse``.

    Args:
        op: the builder.
        product: ``dy (x - mean)``.
        inverse: a number for each row.
        scale: for its shape.
        by_place: see `_is_by_place`.
    """
    if by_place:
        # A product with a row of numbers weighs and adds in one pass.
        rows = size_of(inverse)
        sums = op.MatMul(op.reshape(inverse, [1, rows]), op.reshape(product, [rows, size_of(scale)]))
        return op.reshape(sums, shape_of(scale))
    return op.sum_to_shape(op.Mul(product, inverse), shape_of(scale))


def _rest(op: Builder, centred: ir.Value, slope: ir.Value | None, start: ir.Value | None) -> ir.Value | None:
    """Emit ``slope centred + start``, where one or both may be missing, with a number for each row."""
    if slope is None:
        return None if start is None else op.expand(start, shape_of(centred))
    if start is None:
        return op.Mul(centred, slope)
    shape, rows = shape_of(centred), size_of(slope)
    if 0 in shape:
        return op.Add(op.Mul(centred, slope), start)
    centred, slope, start = (_in_rows(op, value, rows) for value in (centred, slope, start))
    return op.reshape(affine(op, centred, slope, start), shape)


def _in_rows(op: Builder, value: ir.Value, rows: int) -> ir.Value:
    """Emit (1, rows, numbers) of what has numbers for each of the rows."""
    return op.reshape(value, [1, rows, size_of(value) // rows])


def _by_columns(op: Builder, value: ir.Value, scale: ir.Value, count: int) -> ir.Value:
    """Emit ``value * scale`` of a number for each of ``count`` columns, several rows side by side."""
    rows = size_of(value) // count
    together = next(number for number in range(_SIDE_BY_SIDE // count, 0, -1) if rows % number == 0)
    repeated = op.reshape(op.expand(op.reshape(scale, [1, count]), [together, count]), [together * count])
    product = op.Mul(op.reshape(value, [rows // together, together * count]), repeated)
    return op.reshape(product, shape_of(value))


def _negative_row_means(
    op: Builder, value: ir.Value, scale: ir.Value, axes: Sequence[int], count: int, by_place: bool
) -> ir.Value:
    """Emit less the mean over the axes of ``value * scale``: a product with a vector, no activation in between."""
    shape = shape_of(value)
    kept = [1 if axis in axes else size for axis, size in enumerate(shape)]
    if by_place:
        # The row on the left takes two thirds of the time of a column on the right.
        row = op.reshape(op.Mul(scale, -1.0 / count), [1, count])
        return op.reshape(op.Gemm(row, op.reshape(value, [math.prod(kept), count]), transB=1), kept)
    return op.Mul(op.reduce_sum(op.Mul(value, scale), axes), -1.0 / count)


def _plus(op: Builder, first: ir.Value | None, second: ir.Value | None) -> ir.Value | None:
    return second if first is None else first if second is None else op.Add(first, second)


@rule("LpNormalization")
def lp_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Is (dy - f sum(dy y)) / norm with f = y for p = 2, sgn(x) for p = 1; rows of zeros count as having norm 1."""
    x, upstream = required_input(node, 0), dy[0]
    assert upstream is not None
    axes = op.constant([attr_int(node, "axis", -1) % len(shape_of(x))])
    euclidean = attr_int(node, "p", 2) == 2
    norm = op.ReduceL2(x, axes) if euclidean else op.ReduceL1(x, axes)
    norm = op.Where(op.Equal(norm, 0.0), np.ones((), dtype_of(x)), norm)
    y = op.Div(x, norm)
    along = op.ReduceSum(op.Mul(upstream, y), axes)
    return [op.Div(op.Sub(upstream, op.Mul(y if euclidean else op.Sign(x), along)), norm)]


@rule("LRN")
def local_response_normalization(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """With d = bias + alpha / size * S x^2: dx = dy d^-beta - 2 alpha beta / size * x * S' (dy x d^-beta / d).

    S sums over neighbouring channels, and S' likewise the other way round. Squares do not fit into half precision.
    """
    x, upstream = required_input(node, 0), dy[0]
    assert upstream is not None
    shape, dtype = shape_of(x), x.dtype
    if 0 in shape:
        return [None]
    size = attr_int(node, "size", 1)
    alpha, beta = attr_float(node, "alpha", 1e-4), attr_float(node, "beta", 0.75)
    before, after = (size - 1) // 2, size // 2
    flat = [*shape[:2], math.prod(shape[2:])]
    x, upstream = (op.reshape(op.wide(value), flat) for value in (x, upstream))
    base = _among_neighbours(op, op.Mul(x, x), before, after, alpha / size)
    base = op.Add(base, attr_float(node, "bias", 1.0))
    direct = op.Mul(upstream, op.Pow(base, -beta))
    shared = _among_neighbours(op, op.Div(op.Mul(direct, x), base), after, before, 2 * alpha * beta / size)
    return [op.cast(op.reshape(op.Sub(direct, op.Mul(shared, x)), shape), dtype)]


def _among_neighbours(op: Builder, value: ir.Value, before: int, after: int, factor: float) -> ir.Value:
    """Sum each channel with some before it and some after it, times a factor.

    By a product with a matrix, or where that would be larger than the tensor, by pooling along the channels.

    Args:
        op: the builder.
        value: (N, C, places).
        before: how many channels before it.
        after: how many after it.
        factor: multiplies the sums.
    """
    samples, channels, places = shape_of(value)
    if channels**2 <= max(_SMALL_BAND, size_of(value)):
        offset = np.arange(channels)[None, :] - np.arange(channels)[:, None]
        band = ((offset >= -before) & (offset <= after)).astype(dtype_of(value))
        return op.MatMul(band * band.dtype.type(factor), value)
    size = before + after + 1
    image = op.reshape(value, [samples, 1, channels, places])
    mean = op.AveragePool(image, kernel_shape=[size, 1], pads=[before, 0, after, 0], count_include_pad=1)
    return op.reshape(op.Mul(mean, factor * size), [samples, channels, places])

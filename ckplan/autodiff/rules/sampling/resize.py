"""Gradient of Resize.

Resize is linear and acts on one axis after the other: along each it is a matrix with few entries per row, which is
known when the graph is built. The gradient is a product with the transposed matrices, and reads no forward value.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.scattering import scatter_add
from ckplan.autodiff.reading import attr_float, attr_int, attr_ints, attr_str, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.autodiff.rules.sampling.resampling import Entries, Sampling, sampling_matrix
from ckplan.operators.matching import input_of

_SMALL = 4096
"""Matrices of up to this many elements are no burden in any case."""
_UNEVEN = 4
"""How many times more would be read than there is, if every column were given as many rows as the fullest one has."""


@rule("Resize", since=13, fixed=[1, 2, 3])
def resize(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads no forward value. A nearest upscale by whole numbers is summed by an AveragePool, in one pass."""
    value = dy[0]
    assert value is not None
    if 0 in shape_of(value) or 0 in shape_of(required_input(node, 0)):
        return [None]
    if shape_of(value) == shape_of(required_input(node, 0)):  # onnxruntime copies, whatever the scales are
        return [value]
    samplings = _samplings(op, node)
    matrices = {axis: sampling_matrix(sampling) for axis, sampling in samplings.items()}
    matrices = {axis: matrix for axis, matrix in matrices.items() if not matrix.is_identity}
    repeats = {axis: matrix.repeats for axis, matrix in matrices.items()}
    rank = len(shape_of(value))
    if repeats and all(repeats.values()) and min(repeats) >= 2 and rank in (3, 4, 5):
        kernel = [repeats.get(axis, 1) for axis in range(2, rank)]
        mean = op.AveragePool(value, kernel_shape=kernel, strides=kernel)
        return [op.Mul(mean, float(math.prod(kernel)))]
    # What shrinks most goes first, so that less is left to do.
    for axis in sorted(matrices, key=lambda axis: matrices[axis].shape[1] / matrices[axis].shape[0]):
        value = _times_transposed(op, value, axis, matrices[axis])
    return [op.reshape(value, shape_of(required_input(node, 0)))]


def _times_transposed(op: Builder, value: ir.Value, axis: int, matrix: Entries) -> ir.Value:
    """Multiply along one axis with the transpose of a (result, size) matrix.

    A product with the whole matrix is fastest; but the matrix grows with the square of the length, and is not to be
    larger than the tensors that it is about.
    """
    shape = shape_of(value)
    size, before, after = matrix.shape[1], math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    result = [*shape[:axis], size, *shape[axis + 1 :]]
    if matrix.repeats:
        apart = op.reshape(value, [before, size, matrix.repeats, after])
        return op.reshape(op.reduce_sum(apart, [2], keepdims=False), result)
    if math.prod(matrix.shape) > max(_SMALL, before * after * max(matrix.shape)):
        sums = _gathered(op, op.reshape(value, [before, shape[axis], after]), matrix)
        return op.reshape(sums, result)
    dense = matrix.dense.astype(dtype_of(value))
    if after == 1:
        return op.reshape(op.MatMul(op.reshape(value, [before, shape[axis]]), dense), result)
    left = np.ascontiguousarray(dense.T)
    return op.reshape(op.MatMul(left, op.reshape(value, [before, shape[axis], after])), result)


def _gathered(op: Builder, value: ir.Value, matrix: Entries) -> ir.Value:
    """Multiply the middle one of three axes with the transpose of a matrix by reading, for each column, its rows."""
    before, _, after = shape_of(value)
    size = matrix.shape[1]
    counts = np.bincount(matrix.columns, minlength=size)
    most = int(counts.max(initial=1))
    if most * size > _UNEVEN * (len(matrix.rows) + size):
        return _scattered(op, value, matrix)
    order = np.argsort(matrix.columns, kind="stable")
    columns = matrix.columns[order]
    turn = np.arange(len(columns)) - (np.cumsum(counts) - counts)[columns]
    rows, weights = np.zeros((size, most), np.int32), np.zeros((size, most))
    rows[columns, turn], weights[columns, turn] = matrix.rows[order], matrix.weights[order]
    read = op.reshape(op.Gather(value, rows.reshape(-1), axis=1), [before, size, most, after])
    if (weights != 1).any():
        read = op.Mul(read, weights.reshape(size, most, 1).astype(dtype_of(value)))
    return op.reduce_sum(read, [2], keepdims=False)


def _scattered(op: Builder, value: ir.Value, matrix: Entries) -> ir.Value:
    """Do the same by adding each entry where it belongs: for matrices of which a few columns hold nearly everything."""
    before, _, after = shape_of(value)
    read = op.Gather(value, matrix.rows.astype(np.int32), axis=1)
    read = op.Mul(read, matrix.weights.reshape(-1, 1).astype(dtype_of(value)))
    into = op.zeros([before, matrix.shape[1], after], value)
    return scatter_add(op, into, 1, op.constant(matrix.columns.astype(np.int32)), read)


def _samplings(op: Builder, node: ir.Node) -> dict[int, Sampling]:
    """Read a Resize node; return how each axis it names is resampled."""
    before, after = shape_of(required_input(node, 0)), shape_of(node.outputs[0])
    rank = len(before)
    axes = [axis % rank for axis in attr_ints(node, "axes") or range(rank)]  # none named: all, to onnxruntime
    scales = op.constant_of(input_of(node, 2))
    ratios = {axis: after[axis] / before[axis] for axis in axes}
    if scales is not None and scales.size:
        ratios = dict(zip(axes, map(float, scales), strict=True))
    elif scales is None and input_of(node, 2) is not None:
        raise NoGradientError("its input 'scales' is computed at run time")
    elif attr_str(node, "keep_aspect_ratio_policy", "stretch") != "stretch":
        wanted = op.constant_of(input_of(node, 3))
        if wanted is None:
            raise NoGradientError("its input 'sizes' is computed at run time")
        each = [float(size) / before[axis] for axis, size in zip(axes, wanted, strict=True)]
        chosen = (min if attr_str(node, "keep_aspect_ratio_policy", "") == "not_larger" else max)(each)
        ratios = dict.fromkeys(axes, chosen)
    coordinates = attr_str(node, "coordinate_transformation_mode", "half_pixel")
    regions = dict.fromkeys(axes, (0.0, 1.0))
    if coordinates == "tf_crop_and_resize":
        roi = op.constant_of(input_of(node, 1))
        if roi is None:
            raise NoGradientError("its input 'roi' is computed at run time")
        starts, ends = roi[: len(axes)], roi[len(axes) :]
        regions = {axis: (float(s), float(e)) for axis, s, e in zip(axes, starts, ends, strict=True)}
    return {
        axis: Sampling(
            before[axis],
            after[axis],
            ratios[axis],
            coordinates,
            attr_str(node, "mode", "nearest"),
            attr_str(node, "nearest_mode", "round_prefer_floor"),
            attr_float(node, "cubic_coeff_a", -0.75),
            bool(attr_int(node, "exclude_outside", 0)),
            bool(attr_int(node, "antialias", 0)),
            regions[axis],
        )
        for axis in axes
    }

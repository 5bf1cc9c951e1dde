"""Gradient of Resize.

Resize is linear and acts on one axis after the other: along each it is a matrix with few entries per row, which is
known when the graph is built. The gradient is a product with the transposed matrices, and reads no forward value.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import (
    Builder,
    attr_float,
    attr_int,
    attr_ints,
    attr_str,
    dtype_of,
    input_of,
    required_input,
    shape_of,
)
from ckplan.autodiff.registry import NoGradientError, rule

Gradients = Sequence[ir.Value | None]


@dataclass(frozen=True)
class Sampling:
    """How one axis is resampled; the attributes of Resize and its numbers for that axis.

    Attributes:
        size: elements before.
        result: elements after.
        scale: ratio of the two, as the node gives it (it need not be exact).
        coordinates: the node's ``coordinate_transformation_mode``.
        mode: ``nearest``, ``linear`` or ``cubic``.
        nearest: the node's ``nearest_mode``.
        cubic: the node's ``cubic_coeff_a``.
        exclude_outside: weights of elements that do not exist go to the others rather than to the border.
        antialias: filters are stretched where the axis shrinks.
        roi: start and end of the region, in lengths of the axis.
    """

    size: int
    result: int
    scale: float
    coordinates: str = "half_pixel"
    mode: str = "nearest"
    nearest: str = "round_prefer_floor"
    cubic: float = -0.75
    exclude_outside: bool = False
    antialias: bool = False
    roi: tuple[float, float] = (0.0, 1.0)


def sampling_matrix(axis: Sampling) -> np.ndarray:
    """Return the matrix, (result, size) and float64, that resamples an axis."""
    # Nearest in single precision, as onnxruntime: it decides which of two equally near elements is taken.
    where = _positions(axis, np.dtype(np.float32 if axis.mode == "nearest" else np.float64))
    if axis.mode == "nearest":
        columns = _rounded(axis.nearest, where).astype(np.int64)[:, None]
        weights = np.ones((axis.result, 1))
    else:
        columns, weights = _filter(axis, where)
    if axis.exclude_outside:
        weights = np.where((columns < 0) | (columns >= axis.size), 0.0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    matrix = np.zeros((axis.result, axis.size))
    rows = np.broadcast_to(np.arange(axis.result)[:, None], columns.shape)
    np.add.at(matrix, (rows, columns.clip(0, axis.size - 1)), weights)
    if axis.coordinates == "tf_crop_and_resize":
        # There stands extrapolation_value, whatever x is.
        matrix[(where < 0) | (where > axis.size - 1)] = 0.0
    return matrix


def _positions(axis: Sampling, dtype: np.dtype[Any]) -> np.ndarray:
    """Return where in the axis before each element after lies."""
    index: np.ndarray = np.arange(axis.result, dtype=dtype)
    last = axis.size - 1
    scale: np.ndarray = np.asarray(axis.scale, dtype)
    match axis.coordinates:
        case "asymmetric":
            return np.asarray(index / scale)
        case "align_corners":
            return np.asarray(index * (last / (axis.result - 1) if axis.result > 1 else 0.0))
        case "tf_half_pixel_for_nn":  # of opset 11 and 12
            return np.asarray((index + 0.5) / scale)
        case "tf_crop_and_resize":
            start, end = axis.roi
            if axis.result == 1:
                return np.full(1, 0.5 * (start + end) * last)
            return np.asarray(start * last + index * ((end - start) * last / (axis.result - 1)))
        case "pytorch_half_pixel" if axis.result == 1:
            return np.zeros(1)
        case "half_pixel_symmetric":
            shift = (1 - axis.result / (scale * axis.size)) * (axis.size / 2)
            return np.asarray(shift + (index + 0.5) / scale - 0.5)
        case "half_pixel" | "pytorch_half_pixel":
            return np.asarray((index + 0.5) / scale - 0.5)
    raise NoGradientError(f"its coordinate_transformation_mode '{axis.coordinates}' is not known")


def _rounded(mode: str, where: np.ndarray) -> np.ndarray:
    if mode in ("floor", "round_prefer_ceil"):
        return np.asarray(np.floor(where + (0.5 if mode == "round_prefer_ceil" else 0)))
    return np.asarray(np.ceil(where - (0.5 if mode == "round_prefer_floor" else 0)))


def _filter(axis: Sampling, where: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return which elements each result is made of, and with which weights."""
    if axis.mode == "linear" and not axis.antialias:
        where = where.clip(0, axis.size - 1)
    reach = 1 if axis.mode == "linear" else 2
    stretch = min(axis.scale, 1.0) if axis.antialias else 1.0
    first = math.floor(-reach / stretch) + 1
    base = np.floor(where)
    columns = base[:, None].astype(np.int64) + np.arange(first, 1 - first + 1)
    distance = np.abs(columns - where[:, None]) * stretch
    if axis.mode == "linear":
        weights = (1 - distance).clip(0, 1)
    else:
        a = axis.cubic
        near = ((a + 2) * distance - (a + 3)) * distance**2 + 1
        far = ((distance - 5) * distance + 8) * distance * a - 4 * a
        weights = np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))
    return columns, weights / weights.sum(axis=1, keepdims=True) if axis.antialias else weights


@rule("Resize", since=13, fixed=[1, 2, 3])
def resize(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads no forward value. A nearest upscale by whole numbers is summed by an AveragePool, in one pass."""
    value = dy[0]
    assert value is not None
    if 0 in shape_of(value) or 0 in shape_of(required_input(node, 0)):
        return [None]
    samplings = _samplings(op, node)
    matrices = {axis: sampling_matrix(sampling) for axis, sampling in samplings.items()}
    matrices = {axis: m for axis, m in matrices.items() if m.shape[0] != m.shape[1] or (m != np.eye(len(m))).any()}
    repeats = {axis: _repeats(matrix) for axis, matrix in matrices.items()}
    rank = len(shape_of(value))
    if repeats and all(repeats.values()) and min(repeats) >= 2 and rank in (3, 4, 5):
        kernel = [repeats.get(axis, 1) for axis in range(2, rank)]
        mean = op.AveragePool(value, kernel_shape=kernel, strides=kernel)
        return [op.Mul(mean, float(math.prod(kernel)))]
    # What shrinks most goes first, so that less is left to do.
    for axis in sorted(matrices, key=lambda axis: matrices[axis].shape[1] / matrices[axis].shape[0]):
        value = _times_transposed(op, value, axis, matrices[axis].astype(dtype_of(value)))
    return [op.reshape(value, shape_of(required_input(node, 0)))]


def _times_transposed(op: Builder, value: ir.Value, axis: int, matrix: np.ndarray) -> ir.Value:
    """Multiply along one axis with the transpose of a (result, size) matrix."""
    shape = shape_of(value)
    before, after = math.prod(shape[:axis]), math.prod(shape[axis + 1 :])
    result = [*shape[:axis], matrix.shape[1], *shape[axis + 1 :]]
    if after == 1:
        return op.reshape(op.MatMul(op.reshape(value, [before, shape[axis]]), matrix), result)
    left = np.ascontiguousarray(matrix.T)
    return op.reshape(op.MatMul(left, op.reshape(value, [before, shape[axis], after])), result)


def _repeats(matrix: np.ndarray) -> int:
    """Return how often each element is repeated if that is all the matrix does, else 0."""
    result, size = matrix.shape
    times, rest = divmod(result, size)
    if rest or times < 1:
        return 0
    return times if (matrix == np.repeat(np.eye(size), times, axis=0)).all() else 0


def _samplings(op: Builder, node: ir.Node) -> dict[int, Sampling]:
    """Read a Resize node; return how each axis it names is resampled."""
    before, after = shape_of(required_input(node, 0)), shape_of(node.outputs[0])
    rank = len(before)
    axes = [axis % rank for axis in attr_ints(node, "axes", range(rank)) or ()]
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

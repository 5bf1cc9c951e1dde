"""What Resize does along one axis: a matrix with few numbers in each row, known when the graph is built."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from ckplan.autodiff.registry import NoGradientError


@dataclass(frozen=True)
class Sampling:
    """How one axis is resampled; the attributes of Resize and its numbers for that axis.

    Attributes:
        size: elements before.
        result: elements after.
        scale: ratio of the two, as the node gives it (it need not be exact).
        coordinates: the node's ``coordinate_transformation_mode``.
        mode: ``nearest``, ``linear`` or ``cubic``.
        nearest: the node's ``nearest_mode``; empty: towards the end where the axis shrinks, else the beginning.
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


@dataclass(frozen=True)
class Entries:
    """What a sparse matrix holds, sorted by row; no entry is zero and none stands twice.

    Attributes:
        rows: of each entry.
        columns: likewise.
        weights: the numbers, float64.
        shape: rows and columns of the matrix.
    """

    rows: np.ndarray
    columns: np.ndarray
    weights: np.ndarray
    shape: tuple[int, int]

    @property
    def is_identity(self) -> bool:
        """Whether the matrix changes nothing."""
        return self.shape[0] == self.shape[1] and self.repeats == 1

    @property
    def repeats(self) -> int:
        """How often each element is repeated if that is all the matrix does, else 0."""
        result, size = self.shape
        times, rest = divmod(result, size)
        if rest or times < 1 or len(self.rows) != result or (self.weights != 1).any():
            return 0
        each = np.arange(result)
        return times if (self.rows == each).all() and (self.columns == each // times).all() else 0

    @property
    def dense(self) -> np.ndarray:
        """The matrix, float64."""
        matrix = np.zeros(self.shape)
        matrix[self.rows, self.columns] = self.weights
        return matrix


def sampling_matrix(axis: Sampling) -> Entries:
    """Return the matrix, (result, size), that resamples an axis: few numbers in a row, however long the axis is."""
    # Nearest in single precision, as onnxruntime: it decides which of two equally near elements is taken.
    where = _positions(axis, np.dtype(np.float32 if axis.mode == "nearest" else np.float64))
    if axis.mode == "nearest":
        columns = _rounded(axis, where).astype(np.int64)[:, None]
        weights = np.ones((axis.result, 1))
    else:
        columns, weights = _filter(axis, where)
    if axis.exclude_outside:
        weights = np.where((columns < 0) | (columns >= axis.size), 0.0, weights)
        weights = weights / weights.sum(axis=1, keepdims=True)
    if axis.coordinates == "tf_crop_and_resize":
        # Outside stands extrapolation_value, whatever x is.
        weights = np.where(((where < 0) | (where > axis.size - 1))[:, None], 0.0, weights)
    places = np.arange(axis.result)[:, None] * axis.size + columns.clip(0, axis.size - 1)
    found, inverse = np.unique(places, return_inverse=True)
    sums = np.bincount(inverse.reshape(-1), weights.reshape(-1), len(found))
    found, sums = found[sums != 0], sums[sums != 0]
    return Entries(found // axis.size, found % axis.size, sums, (axis.result, axis.size))


def _positions(axis: Sampling, dtype: np.dtype[Any]) -> np.ndarray:
    """Return where in the axis before each element after lies: onnxruntime leaves alone what it scales by 1."""
    index: np.ndarray = np.arange(axis.result, dtype=dtype)
    if axis.scale == 1:
        return index
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


def _rounded(axis: Sampling, where: np.ndarray) -> np.ndarray:
    mode = axis.nearest
    if not mode:  # to onnxruntime it is what operator sets without the attribute did
        mode = "ceil" if axis.scale < 1 else "floor"
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

"""Whether the values of a tensor follow a formula: masks, tables of sines, identities, steps.

Trained weights are as good as random: hardly two of their values are equal, and no value follows from those before it.
What a program computes is told apart by that. Only a sample is looked at, so that a tensor in another file is not read:
some thousand values anywhere, and a few lines along each axis.

That one rule holds for sines, cosines, straight lines and powers alike: along an axis each value is a fixed linear
combination of the few before it, ``x[t] = c1 x[t-1] + ... + cr x[t-r]``. (One sine needs two terms, a Hann window
three.) Then a matrix of shifted copies of the line, a Hankel matrix, does not have full rank.

Lines of fewer values are too short for that. Sines, cosines and straight lines obey ``x[t] = c x[t-1] - x[t-2]``, which
four values show where several lines do; and a sine beside its cosine lies on a circle.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Any

import ml_dtypes
import numpy as np
import onnx_ir as ir

#: A value at or below this is minus infinity for a softmax.
_MASKED = -1e4
#: How many values are looked at, at most.
_SAMPLE = 4096
#: How many of them lie side by side.
_RUN = 128
#: Lines that are tried along an axis, and how long they are.
_LINES, _LENGTH = 6, 64
#: The shortest line that a formula can be seen in, and the most terms of one that is looked for.
_SHORTEST, _TERMS = 8, 6
#: How far from a formula values of float32 may lie where a few are looked at, relative to the largest.
_CLOSE = 1e-5
#: The shortest lines in which sines are seen, and how many of them it takes.
_SHORT, _SEVERAL = 4, 4
#: The share of the sample that one value must have for a tensor to be filled with it but for a few places.
_MOSTLY = 0.9


class Kind(Enum):
    """What kind of formula the values of a tensor follow; each is the words that say so."""

    EQUAL = "all {value:.6g}"
    MASK = "a mask"
    FEW_VALUES = "of {count} values"
    MOSTLY = "mostly {value:.6g}"
    TABLE = "a table of a formula"  # of sines, straight lines and the like


@dataclass(frozen=True)
class Formula:
    """What the values of a tensor follow; as text, a few words.

    Attributes:
        kind: what kind of formula it is.
        value: what all elements are, or most of them; 0 for kinds that have none.
        count: how many different values were seen.
    """

    kind: Kind
    value: float = 0.0
    count: int = 0

    def __str__(self) -> str:
        return self.kind.value.format(value=self.value, count=self.count)


def structure_of(tensor: ir.TensorProtocol) -> Formula | None:
    """Say what formula the values of a floating-point tensor follow.

    Args:
        tensor: of any shape and size; one in another file is mapped, and only what is sampled is read.

    Returns:
        The formula; None if there is none to be seen, or if there are too few values to tell.
    """
    array = np.asarray(tensor.numpy())
    if array.size == 0:
        return None
    sample = _sampled(array)
    common, counts = np.unique(sample, return_counts=True)
    if len(common) == 1:
        return Formula(Kind.EQUAL, value=float(common[0]) + 0.0, count=1)  # zero has no sign
    if common[0] <= _MASKED and (common[1:] > _MASKED).all() and len(common) <= 3:
        return Formula(Kind.MASK, count=len(common))
    if array.size < _SHORTEST:
        return None
    if len(common) <= max(2, sample.size // 24):
        return Formula(Kind.FEW_VALUES, count=len(common))
    most = int(counts.argmax())
    if counts[most] >= _MOSTLY * sample.size:
        return Formula(Kind.MOSTLY, value=float(common[most]), count=len(common))
    narrow = array.dtype.itemsize < 4
    tolerance = 1e-2 if narrow else 1e-4
    if any(_follows_formula(array, axis, tolerance) or _are_short_sines(array, axis) for axis in range(array.ndim)):
        return Formula(Kind.TABLE, count=len(common))
    return Formula(Kind.TABLE, count=len(common)) if _is_on_circles(array) else None


def is_rounded(tensor: ir.TensorProtocol, levels: int) -> bool:
    """Whether the values of a tensor are many multiples of one step, in no order: weights that were quantised once.

    Args:
        tensor: of any shape and size.
        levels: how many different values there are at least.
    """
    array = np.asarray(tensor.numpy())
    common = np.unique(_sampled(array))
    if len(common) < levels:
        return False
    steps = np.diff(common)
    counts = steps / steps.min()
    tolerance = 1e-2 if array.dtype.itemsize < 4 else 1e-4
    in_steps = bool((np.abs(counts - np.round(counts)) <= 1e-2 * np.round(counts)).all())
    return in_steps and not any(_follows_formula(array, axis, tolerance) for axis in range(array.ndim))


def _sampled(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """All values of a small tensor; of a large one a few thousand, in float64."""
    if array.size <= _SAMPLE:
        return np.asarray(array, dtype=np.float64).reshape(-1)
    return np.asarray(array[_places(array.shape)], dtype=np.float64)


def _places(shape: tuple[int, ...]) -> tuple[np.ndarray[Any, Any], ...]:
    """Where a large tensor is looked at: runs of neighbours, as each page of a file costs time."""
    size = math.prod(shape)
    starts = np.random.default_rng(0).integers(0, size - _RUN, _SAMPLE // _RUN)
    return np.unravel_index(np.add.outer(starts, np.arange(_RUN)).reshape(-1), shape)


def _follows_formula(array: np.ndarray[Any, Any], axis: int, tolerance: float) -> bool:
    """Whether every line that is tried along an axis obeys a linear recurrence, and one of them is not constant."""
    length = array.shape[axis]
    if length < _SHORTEST:
        return False
    # The middle: tables often begin or end with rows of zeros.
    taken = min(length, _LENGTH)
    part = slice((length - taken) // 2, (length - taken) // 2 + taken)
    generator = np.random.default_rng(0)
    narrow = array.dtype.itemsize < 4
    unit = float(ml_dtypes.finfo(array.dtype).eps) if narrow else None  # type: ignore[no-untyped-call]
    changing = 0
    for _ in range(_LINES):
        place: list[int | slice] = [int(generator.integers(size)) for size in array.shape]
        place[axis] = part
        line = np.asarray(array[tuple(place)], dtype=np.float64)
        if not np.isfinite(line).all():
            return False
        if np.ptp(line) > tolerance * np.abs(line).max():
            changing += 1
            if not _recurs(line, tolerance, unit):
                return False
    return changing > 0


def _are_short_sines(array: np.ndarray[Any, Any], axis: int) -> bool:
    """Whether all lines along a short axis that change, and those are several, are sines or straight, and one a sine.

    Slow sines are straight as far as single precision tells. Numbers that are counted, as people write them for
    weights, are straight throughout; of powers each is less than half of what its neighbours add up to.
    """
    if not _SHORT <= array.shape[axis] < _SHORTEST or array.size > _SAMPLE:
        return False
    lines = np.moveaxis(np.asarray(array, np.float64), axis, 0).reshape(array.shape[axis], -1)
    if not np.isfinite(lines).all():
        return False
    lines = lines[:, np.ptp(lines, axis=0) > _CLOSE * np.abs(lines).max()]
    sums, middle = lines[2:] + lines[:-2], lines[1:-1]
    largest = np.abs(lines).max(axis=0, initial=0)
    crossed = np.abs(sums[1:] * middle[:-1] - sums[:-1] * middle[1:])
    agree = (crossed <= _CLOSE * largest**2).all() and (np.abs(middle) > _CLOSE * largest).all()
    bent = np.abs(sums) - 2 * np.abs(middle)
    sines = (bent <= _CLOSE * largest).all() and (bent < -_CLOSE * largest).any()
    return lines.shape[1] >= _SEVERAL and bool(agree) and bool(sines)


def _is_on_circles(array: np.ndarray[Any, Any]) -> bool:
    """Whether each column has another with which it lies on one circle, as a sine and its cosine do.

    Positions along one axis have them side by side or in two halves, positions in images in halves of halves. Squares
    that are added up over rows with a weight for each tell it: the largest and the smallest give what the next two do.
    """
    width = array.shape[-1]
    if array.ndim < 2 or width % 2 or width < _SEVERAL:
        return False
    rows = array.reshape(-1, width)
    taken = np.unique(np.linspace(0, len(rows) - 1, _LENGTH).astype(np.int64))
    squares = np.asarray(rows[taken], dtype=np.float64) ** 2
    squares = squares[squares.any(axis=1)]  # a class token has zeros
    radii = squares.sum(axis=1)
    if not 0 < radii.max(initial=0) <= (1 + _CLOSE) * radii.min(initial=np.inf):
        return False
    weighted = np.sort((0.5 + np.random.default_rng(0).random(len(squares))) @ squares)
    sums = weighted + weighted[::-1]
    return bool(sums.max() <= (1 + _CLOSE) * sums.min())


def _recurs(line: np.ndarray[Any, Any], tolerance: float, unit: float | None) -> bool:
    """Whether a line obeys a linear recurrence: in half precision, as far as values are rounded and no further.

    Scales of a normalisation lie near one, and a hundredth of that is as much as they differ by.
    """
    terms = min(_TERMS, (len(line) - 4) // 2)
    matrix = np.lib.stride_tricks.sliding_window_view(line, terms + 1)
    sizes = np.linalg.svd(matrix, compute_uv=False)
    return bool(sizes[-1] <= (tolerance * sizes[0] if unit is None else unit * np.abs(line).max() * len(matrix) ** 0.5))


def are_equal(one: ir.TensorProtocol, other: ir.TensorProtocol, order: tuple[int, ...] | None = None) -> bool:
    """Whether two tensors hold the same unstructured values, judged by a sample where they are large.

    Args:
        one: a tensor.
        other: one of the same shape once its axes are permuted.
        order: the permutation; None leaves the axes as they are.
    """
    first, second = np.asarray(one.numpy()), np.asarray(other.numpy())
    if order is not None:
        second = second.transpose(order)
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.size > _SAMPLE:
        places = _places(first.shape)
        first, second = first[places], second[places]
    return bool(np.array_equal(first, second))


def is_unstructured(value: ir.Value) -> bool:
    """Whether an initializer holds numbers that may come from a parameter's: zeros in its shape do not.

    A parameter of a few numbers that stands there for each place makes a tensor of few values, as masks are.
    """
    tensor = value.const_value
    if tensor is None or not tensor.dtype.is_floating_point() or tensor.size <= 1:
        return False
    formula = structure_of(tensor)
    if formula is None or formula.kind is not Kind.FEW_VALUES:
        return formula is None
    once = without_repeats(np.asarray(tensor.numpy()))
    return once.size < tensor.size and structure_of(ir.Tensor(once)) is None


def repeated_axes(array: np.ndarray[Any, Any]) -> tuple[int, ...]:
    """The axes longer than one along which an array holds the same again and again."""
    return tuple(axis for axis, size in enumerate(array.shape) if size > 1 and (array == array.take([0], axis)).all())


def without_repeats(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """An array with one place of each axis along which it holds the same again and again."""
    return first_along(array, repeated_axes(array))


def first_along(array: np.ndarray[Any, Any], axes: Iterable[int]) -> np.ndarray[Any, Any]:
    """The first place of an array along some axes, which it keeps."""
    for axis in axes:
        array = array.take([0], axis)
    return array


def has_one_value(tensor: ir.TensorProtocol) -> bool:
    """Whether all elements are equal, as those of scales and biases are at first."""
    formula = structure_of(tensor)
    return formula is not None and formula.kind is Kind.EQUAL


def is_one_number(value: ir.Value) -> bool:
    """Whether an initializer holds one number that is neither zero nor one, as what `zeros_like` makes is."""
    tensor = value.const_value
    if tensor is None or not tensor.dtype.is_floating_point() or tensor.size != 1:
        return False
    return float(tensor.numpy().reshape(())) not in (0.0, 1.0)

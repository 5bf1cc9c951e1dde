"""Reading a tensor between its elements, and the way back: what GridSample and DeformConv share.

A sample is a weighted sum over a few elements around a position. Along each axis there are a few taps (two for linear
interpolation, four for cubic), each with an index, a weight and the weight's slope; a corner is one tap of each axis.
Corners are gone through one after the other, so that no tensor is larger than the samples themselves.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.reading import dtype_of, shape_of

_CUBIC = -0.75


@dataclass(frozen=True)
class Tap:
    """One of the elements along one axis that a sample is made of; all of shape (B, 1, L).

    Attributes:
        index: which element, int32, always one that exists.
        weight: its share in the sample, 0 where there is no such element; None stands for 1.
        slope: derivative of the weight by the position; None where it is 0 everywhere.
    """

    index: ir.Value
    weight: ir.Value | None
    slope: ir.Value | None


@dataclass(frozen=True)
class Position:
    """Where samples lie along one axis.

    Attributes:
        place: in elements from the first one, (B, 1, L).
        slope: derivative of the place by what it was computed from; of that shape or (1, 1, 1).
    """

    place: ir.Value
    slope: ir.Value


@dataclass(frozen=True)
class Corner:
    """One tap of each axis."""

    index: ir.Value
    weight: ir.Value | None
    slopes: tuple[ir.Value | None, ...]


def gated(op: Builder, value: ir.Value, after: ir.Value) -> ir.Value:
    """Return a copy of a small forward value that is made once ``after`` is there.

    What is computed from it would else be computed when the step begins, and lie there.
    """
    return op.Where(there(op, after), value, value)


def product(op: Builder, *factors: ir.Value | None) -> ir.Value | None:
    """Multiply; None stands for 1."""
    result: ir.Value | None = None
    for factor in factors:
        if factor is not None:
            result = factor if result is None else op.Mul(result, factor)
    return result


def _inside(op: Builder, whole: ir.Value, size: int) -> ir.Value:
    """Emit 1 where 0 <= whole < size and 0 elsewhere; ``whole`` holds whole numbers."""
    clipped = _clip(op, whole, size)
    return op.Cast(op.Equal(whole, clipped), to=whole.dtype)


def _clip(op: Builder, place: ir.Value, size: int) -> ir.Value:
    dtype = dtype_of(place)
    return op.Clip(place, np.zeros((), dtype), np.asarray(size - 1, dtype))


def _index(op: Builder, whole: ir.Value, size: int) -> ir.Value:
    """Turn whole numbers into indices that exist."""
    return op.Cast(_clip(op, whole, size), to=ir.DataType.INT32)


def bordered(op: Builder, position: Position, size: int) -> Position:
    """Move positions before the first element onto it, and those behind the last likewise; there the slope is 0."""
    between = op.And(op.Greater(position.place, 0.0), op.Less(position.place, float(size - 1)))
    slope = op.Mul(position.slope, op.Cast(between, to=position.place.dtype))
    return Position(_clip(op, position.place, size), slope)


def reflected(op: Builder, position: Position, low: float, high: float) -> Position:
    """Fold positions back into [low, high] as between two mirrors."""
    span = high - low
    if span == 0:
        nowhere = op.Mul(position.place, 0.0)
        return Position(nowhere, nowhere)
    shifted = op.Sub(position.place, low)
    distance = op.Abs(shifted)
    turns = op.Floor(op.Div(distance, span))
    rest = op.Sub(distance, op.Mul(turns, span))
    odd = op.Sub(turns, op.Mul(op.Floor(op.Mul(turns, 0.5)), 2.0))
    # 1 on the way there, -1 on the way back
    way = op.Sub(1.0, op.Mul(odd, 2.0))
    place = op.Add(op.Add(op.Mul(way, rest), op.Mul(odd, span)), low)
    return Position(place, op.Mul(position.slope, op.Mul(way, op.Sign(shifted))))


def nearest_taps(op: Builder, position: Position, size: int, zeros: bool) -> list[Tap]:
    """Return the nearest element; of two equally near ones the even one. With ``zeros`` there are zeros outside."""
    whole = op.Round(position.place)
    return [Tap(_index(op, whole, size), _inside(op, whole, size) if zeros else None, None)]


def linear_taps(op: Builder, position: Position, size: int, zeros: bool) -> list[Tap]:
    """Return the elements before and after; with ``zeros`` there are zeros outside."""
    before = op.Floor(position.place)
    after = op.Add(before, 1.0)
    share = op.Sub(position.place, before)
    taps = []
    for whole, weight, falls in ((before, op.Sub(1.0, share), True), (after, share, False)):
        mask = _inside(op, whole, size) if zeros else None
        slope = product(op, op.Neg(position.slope) if falls else position.slope, mask)
        taps.append(Tap(_index(op, whole, size), product(op, weight, mask), slope))
    return taps


def cubic_taps(op: Builder, position: Position, size: int, padding: str, mirrors: tuple[float, float]) -> list[Tap]:
    """Return the two elements before and the two after; each is looked for by itself where it lies outside."""
    first = op.Floor(position.place)
    share = op.Sub(position.place, first)
    taps = []
    for offset in (-1, 0, 1, 2):
        # distance of the tap from the position; it grows with the position for taps before it
        distance = op.Add(share, 1.0) if offset == -1 else share
        if offset > 0:
            distance = op.Sub(float(offset), share)
        weight, slope = _cubic_weight(op, distance, near=offset in (0, 1))
        if offset > 0:
            slope = op.Neg(slope)
        whole = op.Add(first, float(offset)) if offset else first
        mask = None
        if padding == "zeros":
            mask = _inside(op, whole, size)
        elif padding == "reflection":
            whole = reflected(op, Position(whole, position.slope), *mirrors).place
        chained = product(op, slope, mask, position.slope)
        taps.append(Tap(_index(op, whole, size), product(op, weight, mask), chained))
    return taps


def _cubic_weight(op: Builder, x: ir.Value, near: bool) -> tuple[ir.Value, ir.Value]:
    """Emit the cubic convolution kernel at a distance x and its derivative by x (Keys, 1981)."""
    a = _CUBIC
    if near:
        weight = op.Add(op.Mul(op.Mul(op.Sub(op.Mul(x, a + 2), a + 3), x), x), 1.0)
        return weight, op.Mul(op.Sub(op.Mul(x, 3 * (a + 2)), 2 * (a + 3)), x)
    weight = op.Sub(op.Mul(op.Add(op.Mul(op.Sub(op.Mul(x, a), 5 * a), x), 8 * a), x), 4 * a)
    return weight, op.Add(op.Mul(op.Sub(op.Mul(x, 3 * a), 10 * a), x), 8 * a)


def corners(op: Builder, taps: Sequence[Sequence[Tap]], sizes: Sequence[int], slopes: bool) -> Iterator[Corner]:
    """Emit one corner after the other.

    Args:
        op: the builder.
        taps: for each axis.
        sizes: of each axis.
        slopes: emit the derivatives of the corners' weights too.
    """
    strides = [math.prod(sizes[axis + 1 :]) for axis in range(len(sizes))]
    for chosen in itertools.product(*taps):
        index: ir.Value | None = None
        for tap, stride in zip(chosen, strides, strict=True):
            part = op.Mul(tap.index, stride) if stride != 1 else tap.index
            index = part if index is None else op.Add(index, part)
        assert index is not None
        found: list[ir.Value | None] = []
        for axis, tap in enumerate(chosen):
            others = [other.weight for i, other in enumerate(chosen) if i != axis]
            found.append(product(op, tap.slope, *others) if slopes and tap.slope is not None else None)
        yield Corner(index, product(op, *(tap.weight for tap in chosen)), tuple(found))


@dataclass(frozen=True)
class Pullback:
    """What the samples' gradients become; None where not asked for.

    Attributes:
        data: gradient of the tensor that was sampled, (B, C, P).
        places: gradient of the positions along each axis, (B, 1, L); None where it is 0 everywhere.
        gain: gradient of the factor by which the samples were multiplied, (B, 1, L).
        samples: the samples themselves, times the factor, (B, C, L).
    """

    data: ir.Value | None
    places: tuple[ir.Value | None, ...]
    gain: ir.Value | None
    samples: ir.Value | None


def pull_back(
    op: Builder,
    data: ir.Value,
    g: ir.Value,
    taps: Sequence[Sequence[Tap]],
    sizes: Sequence[int],
    *,
    want_data: bool,
    want_places: bool,
    gain: ir.Value | None = None,
    want_gain: bool = False,
    want_samples: bool = False,
) -> Pullback:
    """Differentiate sampling.

    Additions go through ``ScatterElements``, which is exact where indices repeat.

    Args:
        op: the builder.
        data: what was sampled, (B, C, P) with P the product of ``sizes``.
        g: gradient of the samples, (B, C, L).
        taps: for each axis.
        sizes: of each axis.
        want_data: find the gradient of ``data``.
        want_places: find the gradients of the positions.
        gain: a factor of each sample, (B, 1, L); None stands for 1.
        want_gain: find its gradient.
        want_samples: make the samples again.
    """
    shape = shape_of(g)
    into = op.zeros(shape_of(data), g) if want_data else None
    places: list[ir.Value | None] = [None] * len(sizes)
    dgain = samples = None
    for corner in corners(op, taps, sizes, want_places):
        index = op.expand(corner.index, shape)
        weight = product(op, corner.weight, gain)
        if into is not None:
            updates = g if weight is None else op.Mul(g, weight)
            into = op.ScatterElements(into, index, updates, axis=2, reduction="add")
        if not want_samples and not want_gain and all(slope is None for slope in corner.slopes):
            continue
        read = op.GatherElements(data, index, axis=2)
        if want_samples:
            part = read if weight is None else op.Mul(read, weight)
            samples = part if samples is None else op.Add(samples, part)
        if want_gain or any(slope is not None for slope in corner.slopes):
            along = op.reduce_sum(op.Mul(read, g), [1])
            if want_gain:
                dgain = _plus(op, dgain, product(op, along, corner.weight))
            for axis, slope in enumerate(corner.slopes):
                if slope is not None:
                    places[axis] = _plus(op, places[axis], op.Mul(along, slope))
    if gain is not None:
        places = [None if place is None else op.Mul(place, gain) for place in places]
    return Pullback(into, tuple(places), dgain, samples)


def _plus(op: Builder, total: ir.Value | None, part: ir.Value | None) -> ir.Value | None:
    if total is None or part is None:
        return part if total is None else total
    return op.Add(total, part)

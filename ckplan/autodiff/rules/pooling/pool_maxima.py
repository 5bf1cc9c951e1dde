"""Gradients of MaxPool by comparisons, axis by axis.

onnxruntime's MaxPool that tells where the maxima are compares in branches that cannot be foretold: 12 to 25 ns for each
result, where one that only makes them takes 1. Here maxima are made along the last axis first, then along those before
it. On the way back a gradient goes to the first tap that is as large as the maximum, along the first axis, and what is
left of it to the next. Of equal values that is the first, in the order in which they lie in memory. All passes are over
whole rows, in parts of the planes that stay in the processor's cache.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import NamedTuple

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of, size_of
from ckplan.autodiff.recurrent.time_loop import States, Values, scan
from ckplan.autodiff.rules.windows import Window, pad_axes, told_apart

#: Elements of x from which on comparisons are faster: a part takes some 40 small nodes.
MANY_ELEMENTS = 2**17

#: A part has about so many elements of x, but there are at least so many parts: what comparisons work in is then no
#: more than what indices take, eight bytes for each result.
PART_ELEMENTS, LEAST_PARTS = 2**16, 8

#: From so many parts on they are made larger instead, up to so many elements. A CPU is as fast by them (64 x 64 planes
#: of 112 x 112: 161 ms in 128 parts, 156 in 64, 213 in 32), and a GPU starts some 40 kernels for each part.
ENOUGH_PARTS, MOST_ELEMENTS = 24, 2**20

#: Up to this many taps along an axis; each takes four passes.
MOST_TAPS = 3


class _Axis(NamedTuple):
    """Taps along one axis: where they lie among the elements of each residue modulo the stride, and their maximum."""

    places: list[tuple[int, int]]
    taps: list[ir.Value]
    maximum: ir.Value
    width: int


def suits(x: ir.Value, window: Window) -> bool:
    """Say whether comparisons are faster than indices.

    Args:
        x: input of the pooling, (N, C, ...).
        window: geometry.
    """
    return (
        x.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE)
        and size_of(x) >= MANY_ELEMENTS
        and math.prod(shape_of(x)[:2]) >= LEAST_PARTS
        and max(window.kernel) <= MOST_TAPS
        and max(window.strides) <= MOST_TAPS
        and window.places > 0
    )


def gradient(op: Builder, x: ir.Value, dy: ir.Value, window: Window) -> ir.Value:
    """Emit the gradient of x.

    Args:
        op: the builder.
        x: input of the pooling, (N, C, ...).
        dy: gradient of its output, (N, C, ...).
        window: geometry.
    """
    planes, size = math.prod(shape_of(x)[:2]), math.prod(window.inputs)
    small, large = planes * size // PART_ELEMENTS, planes * size // MOST_ELEMENTS
    least = max(LEAST_PARTS, min(small, ENOUGH_PARTS), large)
    parts = next(parts for parts in range(min(least, planes), planes + 1) if planes % parts == 0)
    lead = [parts, planes // parts]
    read = {"x": op.reshape(x, [*lead, *window.inputs]), "dy": op.reshape(dy, [*lead, *window.outputs])}

    def step(inner: Builder, _: States, part: Mapping[str, ir.Value]) -> tuple[States, Values]:
        return [], {"dx": _of_planes(inner, part["x"], part["dy"], window)}

    dx = scan(op, f"{x.name}/max_gradient", "backward", step, [], read, {"dx"}, backwards=False)[1]["dx"]
    return op.reshape(dx, shape_of(x))


def _of_planes(op: Builder, x: ir.Value, dy: ir.Value, window: Window) -> ir.Value:
    """Emit the gradient of x, (planes, ...)."""
    axes: list[_Axis] = []
    for axis in reversed(range(len(window.kernel))):
        axes.append(_maxima(op, axes[-1].maximum if axes else x, window, axis))
    for axis, maxima in enumerate(reversed(axes)):
        dy = _spread(op, maxima, dy, window, axis)
    return dy


def _maxima(op: Builder, value: ir.Value, window: Window, axis: int) -> _Axis:
    size, stride = window.inputs[axis], window.strides[axis]
    at = axis + 1
    low = float("-inf")
    value = pad_axes(op, value, [at], [0], [-size % stride], low)
    width = shape_of(value)[at] // stride
    parts = list(told_apart(op, value, at, stride))
    places = [
        divmod(tap * window.dilations[axis] - window.begin[axis], stride)[::-1] for tap in range(window.kernel[axis])
    ]
    taps = [
        pad_axes(op, parts[residue], [at], [-first], [window.outputs[axis] + first - width], low)
        for residue, first in places
    ]
    return _Axis(places, taps, op.Max(*taps) if len(taps) > 1 else taps[0], width)


def _spread(op: Builder, maxima: _Axis, dy: ir.Value, window: Window, axis: int) -> ir.Value:
    """Emit the gradient of what maxima were made of along an axis."""
    at, stride = axis + 1, window.strides[axis]
    found: dict[int, ir.Value] = {}
    for (residue, first), tap in zip(maxima.places, maxima.taps, strict=True):
        if tap is maxima.taps[-1]:
            part = dy
        else:
            part = op.Mul(dy, op.Cast(op.Equal(tap, maxima.maximum), to=dy.dtype))
            dy = op.Sub(dy, part)
        end = maxima.width - window.outputs[axis] - first
        moved = pad_axes(op, part, [at], [first], [end])
        found[residue] = op.Add(found[residue], moved) if residue in found else moved
    some = next(iter(found.values()))
    each = [found[residue] if residue in found else op.zeros(shape_of(some), some) for residue in range(stride)]
    joined = _joined(op, each, at)
    return pad_axes(op, joined, [at], [0], [window.inputs[axis] - shape_of(joined)[at]])


def _joined(op: Builder, parts: Sequence[ir.Value], axis: int) -> ir.Value:
    """What :func:`told_apart` told apart."""
    if len(parts) == 1:
        return parts[0]
    lead, rest = shape_of(parts[0])[:axis], shape_of(parts[0])[axis + 1 :]
    width = shape_of(parts[0])[axis]
    stacked = op.Concat(*(op.reshape(part, [*lead, width, 1, *rest]) for part in parts), axis=axis + 1)
    return op.reshape(stacked, [*lead, width * len(parts), *rest])

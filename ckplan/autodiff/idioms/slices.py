"""Slices of a tensor."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of


def stretch(op: Builder, value: ir.Value, axis: int, start: int, end: int) -> ir.Value:
    """Emit what stands along an axis from ``start`` to before ``end``, a copy.

    Of several that partition an axis onnxruntime may make one Split: see `slice_axes`.
    """
    return op.Slice(value, *(np.asarray([number], dtype=np.int64) for number in (start, end, axis)))


def slice_axes(
    op: Builder,
    value: ir.Value,
    axes: Sequence[int],
    starts: Sequence[int],
    ends: Sequence[int],
    steps: Sequence[int] | None = None,
) -> ir.Value:
    """Slice some axes; no node if everything is taken.

    onnxruntime turns several Slices that partition one axis of a tensor into a Split, which makes all the parts at
    once; it does not when a Slice names a second axis, so one of those that stay whole is named as well.
    """
    shape = shape_of(value)
    steps = steps or [1] * len(axes)
    if all(a == 0 and e == shape[axis] and s == 1 for axis, a, e, s in zip(axes, starts, ends, steps, strict=True)):
        return value
    axes, starts, ends, steps = list(axes), list(starts), list(ends), list(steps)
    if len(axes) == 1 and len(shape) > 1:
        other = 1 if axes[0] == 0 else 0
        axes, starts, ends, steps = [*axes, other], [*starts, 0], [*ends, shape[other]], [*steps, 1]
    return op.Slice(value, *(np.asarray(part, dtype=np.int64) for part in (starts, ends, axes, steps)))


def part_bounds(count: int, elements: int, most: int, least: int) -> list[int]:
    """Where parts of about the same length begin along an axis, and where the last one ends.

    Args:
        count: the length of the axis.
        elements: of what goes in parts.
        most: parts, at most.
        least: elements of a part, at least, where there is more than one.
    """
    parts = max(1, min(most, count, elements // least))
    return [count * part // parts for part in range(parts + 1)]


def rows_from(op: Builder, table: ir.Value, start: ir.Value, count: int, axis: int = 0) -> ir.Value:
    """Emit a copy of ``count`` rows, or columns, of a table from an integer scalar on."""
    shape = list(shape_of(table))
    shape[axis] = count
    first = op.Cast(op.reshape(start, (1,)), to=ir.DataType.INT64)
    last = op.Add(first, np.asarray([count], dtype=np.int64))
    found: ir.Value = op.emit("Slice", table, first, last, np.asarray([axis], dtype=np.int64), _shape=shape)
    return found

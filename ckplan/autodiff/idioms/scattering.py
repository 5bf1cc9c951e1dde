"""Rows that are added to a table at their places: into memory that is there, or as a small table beside it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.idioms.slices import part_bounds, slice_axes
from ckplan.autodiff.reading import shape_of

_MOST_PLACES = 2**31 - 1
"""Elements that indices of 32 bits tell apart."""

_MOST_PARTS = 8
"""Parts in which rows are added to a table."""

_PART = 2**16
"""Elements that each of these has at least."""

_LONG = 32
"""Diagonals are added up one by one where rows and columns have so many numbers: below, more nodes cost as much."""


@dataclass(frozen=True)
class Updates:
    """What is added to rows of a table.

    Attributes:
        places: to which rows it is added [n], of any integer type, maybe counted from the end.
        values: what is added [n, width].
    """

    places: ir.Value
    values: ir.Value


@dataclass(frozen=True)
class Added:
    """The same from the side of the table.

    Attributes:
        table: what is added [n + 1, width], a row of zeros first.
        places: which of these is added to each row of the table [rows], int32.
    """

    table: ir.Value
    places: ir.Value


def scatter_add(
    op: Builder, into: ir.Value, axis: int, rows: ir.Value, updates: ir.Value, reduction: str = "add"
) -> ir.Value:
    """Add slices of ``updates`` along an axis of ``into`` at the positions ``rows`` (rank 1); or reduce otherwise.

    Along the first axis both go as one row of numbers: onnxruntime's kernel counts through all axes of each index, and
    takes a third to a half of the time where there is one. Many rows go in parts, since an element has 12 bytes of
    indices for a while, as they are given and as the kernel copies them; that takes 0.8 to 1.0 of the time. Elements
    are added in the same order.

    Args:
        op: the builder.
        into: what is added to.
        axis: of both tensors, counted from the front.
        rows: integers; negative ones count from the end.
        updates: as ``into``, with as many slices as there are rows.
        reduction: as of ScatterElements.
    """
    shape, whole = shape_of(updates), shape_of(into)
    short = op.cast(rows, ir.DataType.INT32)
    # Nothing else ties the indices to the backward pass: expanded to the size of the updates when the step begins, they
    # would lie there until its end.
    short = op.Where(there(op, updates), short, short)
    width = math.prod(shape[1:])
    if axis == 0 and width > 1 and math.prod(whole) <= _MOST_PLACES:
        starts = op.reshape(op.Mul(short, np.int32(width)), (shape[0], 1))  # from the end as well as from the start
        flat, added = op.reshape(into, (math.prod(whole),)), op.reshape(updates, (shape[0], width))
        return op.reshape(_scatter_rows(op, flat, starts, added, reduction), whole)
    column = [1] * len(shape)
    column[axis] = shape[axis]
    indices = op.expand(op.reshape(short, column), shape)
    return op.ScatterElements(into, indices, updates, axis=axis, reduction=reduction)


def _scatter_rows(op: Builder, into: ir.Value, starts: ir.Value, updates: ir.Value, reduction: str) -> ir.Value:
    """Add rows to a table that is a row of numbers itself, in parts.

    Args:
        op: the builder.
        into: the table, of rank 1.
        starts: the place of the first element of each row [n, 1], int32.
        updates: the rows [n, width].
        reduction: as of ScatterElements.
    """
    count, width = shape_of(updates)
    bounds = part_bounds(count, count * width, _MOST_PARTS, _PART)
    parts = len(bounds) - 1
    split = [starts] if parts == 1 else op.Split(starts, np.diff(bounds), axis=0, _outputs=parts)
    for first, (begin, end) in zip(split, pairwise(bounds), strict=True):
        size = (end - begin) * width
        places = op.reshape(op.Add(first, np.arange(width, dtype=np.int32)), (size,))
        added = op.reshape(slice_axes(op, updates, [0], [begin], [end]), (size,))
        into = op.ScatterElements(into, places, added, axis=0, reduction=reduction)
    return into


def scatter_columns(op: Builder, rows: ir.Value, columns: ir.Value, size: int) -> ir.Value:
    """Add numbers [width, n] to the columns of a table of zeros at rows [n], none of which counts from the end.

    Of a narrow table that takes three fifths of what :func:`scatter_add` takes with the transpose: places are made in
    long rows. Elements are added in the same order.

    Args:
        op: the builder.
        rows: integers.
        columns: what is added.
        size: rows of the table.
    """
    width, count = shape_of(columns)
    short = op.cast(rows, ir.DataType.INT32)
    short = op.reshape(op.Where(there(op, columns), short, short), (1, count))  # as in scatter_add
    places = op.reshape(op.Add(short, np.arange(width, dtype=np.int32)[:, None] * np.int32(size)), (width * count,))
    into, added = op.zeros((width * size,), columns), op.reshape(columns, (width * count,))
    table = op.ScatterElements(into, places, added, axis=0, reduction="add")
    return op.transpose(op.reshape(table, (width, size)), (1, 0))


def rows_of_diagonals(rows: np.ndarray) -> np.ndarray | None:
    """The row of a table for each diagonal of a plane, from the lowest to the highest, if each diagonal has one alone.

    Args:
        rows: integers [..., n, m], of one plane.

    Returns:
        Integers [n + m], the last of them a zero for :func:`diagonal_sums`; None as well where the plane is small.
    """
    if rows.ndim < 2 or min(rows.shape[-2:]) < _LONG or rows.size != math.prod(rows.shape[-2:]):
        return None
    plane = rows.reshape(rows.shape[-2:])
    alike = np.array_equal(plane[1:, 1:], plane[:-1, :-1])
    return np.concatenate([plane[:0:-1, 0], plane[0], [0]]) if alike else None


def diagonal_sums(op: Builder, planes: ir.Value) -> ir.Value:
    """Emit the sums along the diagonals of planes, from the lowest to the highest, and a zero [width, n + m].

    Each row gets n - 1 zeros before it. Where rows are then read as if they were a number longer, each begins a place
    earlier than the one before, and diagonals have become columns.

    Args:
        op: the builder.
        planes: [width, n, m].
    """
    width, high, wide = shape_of(planes)
    length = high + wide - 1
    padded = op.Pad(planes, np.asarray([0, 0, high - 1, 0, 0, 0], dtype=np.int64))
    row = op.reshape(padded, [width, high * length])
    longer = op.reshape(op.Pad(row, np.asarray([0, 0, 0, high], dtype=np.int64)), [width, high, length + 1])
    return op.reduce_sum(longer, [1], keepdims=False)


def joined(op: Builder, parts: Sequence[Updates]) -> Updates:
    """All that is added to one table, in this order."""
    if len(parts) == 1:
        return parts[0]
    places = op.Concat(*(op.Cast(part.places, to=ir.DataType.INT64) for part in parts), axis=0)
    return Updates(places, op.Concat(*(part.values for part in parts), axis=0))


def spread(op: Builder, updates: Updates, size: int) -> Added:
    """Put what is added to the same row of a table together; equal rows are added up in their order.

    Args:
        op: the builder.
        updates: what is added to which rows.
        size: rows of the table.
    """
    count, width = shape_of(updates.values)
    nothing = op.expand(op.Cast(op.Not(there(op, updates.values)), to=ir.DataType.INT32), (size,))
    # Of equal rows the last one gives its place to all of them.
    numbers = np.arange(1, count + 1, dtype=np.int32)
    places = op.ScatterElements(nothing, updates.places, numbers, axis=0, reduction="max")
    at = op.Gather(places, updates.places, axis=0)
    table = scatter_add(op, op.zeros((count + 1, width), updates.values), 0, at, updates.values)
    return Added(table, places)

"""Gradients of the weight of a depthwise convolution: products that sum over the places of one channel.

A convolution with ``dy`` as its kernel has an output of a few places, along which onnxruntime gathers its columns;
that takes 2 to 3 times as long as these two forms do.

``dot``  one dot product per tap and channel of a sample. Instead of a copy of x per tap there is one of x per row of
         taps, moved by whole rows, and one of dy per column of taps, moved by columns the other way.
``row``  per row of taps the products of all columns of dy with all columns of x, for planes that are too small for
         dot products to be fast. Those of a tap lie on a diagonal.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, dtype_of, shape_of
from ckplan.autodiff.rules.windows import Window, pad_axes, places_of, slice_axes

#: Places of a channel from which on a dot product is fast enough.
DOT_PLACES = 400

#: Columns of dy by columns of x for each tap in a row, up to which products of all of them are no waste.
ROW_PRODUCTS = 160

#: The most taps along one axis for dot products; each takes a copy.
DOT_TAPS = 5


def form_for(window: Window) -> Literal["dot", "row"] | None:
    """Choose the form for a window; None where a convolution is as good."""
    if window.size == 1 or not is_inside(window):
        return None
    if window.outputs[-1] * window.inputs[-1] <= ROW_PRODUCTS * window.kernel[-1]:
        return "row"
    return "dot" if window.places >= DOT_PLACES and max(window.kernel) <= DOT_TAPS else None


def is_inside(window: Window) -> bool:
    """Say whether every tap reads an element of the input somewhere, along each axis."""
    axes = zip(window.inputs, window.outputs, window.strides, window.reach, window.begin, strict=True)
    return all(s <= size and begin <= (out - 1) * s and reach - begin < size for size, out, s, reach, begin in axes)


def dot(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], window: Window) -> ir.Value:
    """Emit the gradient by dot products.

    Args:
        op: the builder.
        x: input of the convolution, (N, C, ...).
        dy: gradient of its output, (N, C, ...).
        kernel: shape of the weight, (C, 1, ...).
        window: geometry, see :func:`is_inside`.
    """
    samples, channels = shape_of(x)[:2]
    last = len(window.kernel) - 1
    axes = range(2, len(kernel))
    columns: dict[tuple[int, int], ir.Value] = {}
    products: dict[tuple[int, ...], ir.Value] = {}
    splits = [[_split(window, axis, tap) for tap in range(taps)] for axis, taps in enumerate(window.kernel)]
    for residues in itertools.product(*(sorted({residue for residue, _ in of_axis}) for of_axis in splits)):
        # What one residue is needed for comes together, so that few residues are alive at a time.
        groups = [
            [(tap, shift) for tap, (own, shift) in enumerate(of_axis) if own == residue]
            for of_axis, residue in zip(splits, residues, strict=True)
        ]
        part = slice_axes(op, x, axes, residues, window.inputs, window.strides)
        width = shape_of(part)[-1]
        flat = [samples * channels, 1, math.prod(window.outputs[:-1]) * width]
        for outer in itertools.product(*groups[:-1]):
            moved = op.reshape(_rows(op, part, window, [shift for _, shift in outer]), flat)
            for tap, shift in groups[-1]:
                if (width, shift) not in columns:
                    end = width - window.outputs[-1] - shift
                    columns[width, shift] = op.reshape(_moved(op, dy, {last: (shift, end)}), flat)
                # onnxruntime merges the transposition into the product, which then is one of two rows.
                other = op.Transpose(moved, perm=[0, 2, 1])
                products[*(index for index, _ in outer), tap] = op.MatMul(columns[width, shift], other)
    each = op.Concat(*(products[tap] for tap in window.taps), axis=-1)
    sums = op.reduce_sum(op.reshape(each, [samples, kernel[0] * window.size]), [0], keepdims=False)
    return op.reshape(sums, kernel)


def row(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], window: Window, room: int) -> ir.Value:
    """Emit the gradient by products of rows.

    Args:
        op: the builder.
        x: input of the convolution, (N, C, ...).
        dy: gradient of its output, (N, C, ...).
        kernel: shape of the weight, (C, 1, ...).
        window: geometry.
        room: up to this many elements, copies of x for all rows of taps are made at once.
    """
    samples, channels, *sizes = shape_of(x)
    rank = len(sizes)
    width, columns = window.inputs[-1], window.outputs[-1]
    # The samples of a channel lie next to the last axis: (C, ..., N, W), a row of which is read for each tap.
    x = op.transpose(x, [1, *range(2, rank + 1), 0, rank + 1])
    dy = op.transpose(dy, [1, rank + 1, *range(2, rank + 1), 0])
    axes = range(1, rank)
    x = pad_axes(op, x, axes, window.begin[:-1], [max(size, 0) for size in window.end[:-1]])
    outer = shape_of(x)[1:rank]
    x = op.reshape(x, [channels, math.prod(outer), samples, width])
    rows = math.prod(window.outputs[:-1])
    dy = op.reshape(dy, [channels, 1, columns, rows * samples])
    taps = list(itertools.product(*map(range, window.kernel[:-1])))
    together = len(taps) if len(taps) * channels * rows * samples * width <= room else 1
    sums = []
    for first in range(0, len(taps), together):
        read = [places_of(window, tap, outer) for tap in taps[first : first + together]]
        part = x if len(read) == math.prod(outer) == 1 else op.Gather(x, np.concatenate(read), axis=1)
        products = op.MatMul(dy, op.reshape(part, [channels, len(read), rows * samples, width]))
        flat = op.reshape(products, [channels * len(read), columns * width])
        sums.append(op.reshape(op.MatMul(flat, op.constant(_diagonals(op, x, window))), [channels, -1]))
    return op.reshape(op.Concat(*sums, axis=-1) if len(sums) > 1 else sums[0], kernel)


def _diagonals(op: Builder, x: ir.Value, window: Window) -> np.ndarray:
    """Ones where a column of dy meets the column of x that a tap reads, (columns of dy and x, taps)."""
    width, columns = window.inputs[-1], window.outputs[-1]
    diagonals = np.zeros([columns, width, window.kernel[-1]], dtype_of(x))
    for column, index in itertools.product(range(columns), range(window.kernel[-1])):
        place = column * window.strides[-1] + index * window.dilations[-1] - window.begin[-1]
        if 0 <= place < width:
            diagonals[column, place, index] = 1
    return diagonals.reshape(columns * width, -1)


def _split(window: Window, axis: int, tap: int) -> tuple[int, int]:
    """Return what a tap reads along an axis: which residue modulo the stride, and from which element of it on."""
    shift, residue = divmod(tap * window.dilations[axis] - window.begin[axis], window.strides[axis])
    return residue, shift


def _rows(op: Builder, part: ir.Value, window: Window, shifts: Sequence[int]) -> ir.Value:
    """Move a residue to the places of the output, except along the last axis."""
    sizes = shape_of(part)[2:]
    spans = zip(shifts, window.outputs, sizes, strict=False)
    return _moved(op, part, {axis: (-shift, out - size + shift) for axis, (shift, out, size) in enumerate(spans)})


def _moved(op: Builder, value: ir.Value, moves: dict[int, tuple[int, int]]) -> ir.Value:
    """Pad spatial axes at the beginning and at the end, or cut off, in one pass."""
    rank = len(shape_of(value))
    pads = np.zeros([2, rank], dtype=np.int64)
    for axis, ends in moves.items():
        pads[:, 2 + axis] = ends
    return op.Pad(value, pads.reshape(-1), None) if pads.any() else value

"""Gradients of the weight of a depthwise convolution: products that sum over the places of one channel.

A convolution with ``dy`` as its kernel has an output of a few places, along which onnxruntime gathers its columns;
that takes 2 to 3 times as long as these two forms do.

``dot``  one dot product per tap and channel of a sample, those of a column of taps as one matrix product. Instead of a
         copy of x per tap there is one of x per row of taps, moved by whole rows, and one of dy per column of taps,
         moved by columns the other way. Columns that a window steps over are told apart by a Split, which takes
         two fifths of the time of a Slice for each residue.
``row``  per row of taps the products of all columns of dy with all columns of x, for planes that are too small for
         dot products to be fast, see :mod:`ckplan.autodiff.rules.depthwise_rows`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.autodiff.rules import depthwise_rows
from ckplan.autodiff.rules.depthwise_rows import EINSUM_TYPES
from ckplan.autodiff.rules.windows import Window, pad_axes, places_of, told_apart
from ckplan.autodiff.slices import slice_axes

#: Places of a channel from which on a dot product is fast enough.
DOT_PLACES = 400

#: The most taps along one axis for dot products; each takes a copy. For 4 x 96 planes of 56 x 56 and 7 x 7 taps a step
#: of the layer takes 28 ms with them and 42 with a convolution, for 4 x 64 of 64 x 64 and 9 x 9 taps 36 and 55.
DOT_TAPS = 9

#: Channels of a group with one filter, up to which dot products are taken: see :mod:`ckplan.autodiff.columns_apart`.
DOT_CHANNELS = 2


def form_for(wide: int, window: Window) -> Literal["dot", "row"] | None:
    """Choose the form of the gradient, None where a convolution is as good.

    Args:
        wide: channels of a group, which has one filter.
        window: geometry.
    """
    if window.size == 1 or wide > DOT_CHANNELS or not is_inside(window):
        return None
    dots = window.places >= DOT_PLACES and max(window.kernel) <= DOT_TAPS
    if wide == 1 and depthwise_rows.is_narrow(window) and not (dots and window.strides[-1] > 1):
        return "row"
    return "dot" if dots else None


def is_inside(window: Window) -> bool:
    """Say whether every tap reads an element of the input somewhere, along each axis."""
    axes = zip(window.inputs, window.outputs, window.strides, window.reach, window.begin, strict=True)
    return all(s <= size and begin <= (out - 1) * s and reach - begin < size for size, out, s, reach, begin in axes)


def dot(op: Builder, x: ir.Value, dy: ir.Value, kernel: Sequence[int], window: Window) -> ir.Value:
    """Emit the gradient by dot products.

    Args:
        op: the builder.
        x: input of the convolution, (N, W C, ...).
        dy: gradient of its output, (N, C, ...).
        kernel: shape of the weight, (C, W, ...): a group has W channels and one filter.
        window: geometry, see :func:`is_inside`.
    """
    samples, channels, *sizes = shape_of(x)
    groups, wide, last = kernel[0], kernel[1], len(sizes) - 1
    splits = [_split(window, last, tap) for tap in range(window.kernel[-1])]
    residues = sorted({residue for residue, _ in splits})
    end = [max(size, 0) for size in window.end[:-1]]
    spare = -sizes[-1] % window.strides[-1] if len(residues) == window.strides[-1] else 0
    x = pad_axes(op, x, range(2, 3 + last), [*window.begin[:-1], 0], [*end, spare])
    *outer, width = shape_of(x)[2:]
    x = op.reshape(x, [samples, channels, math.prod(outer), width])
    rows = list(itertools.product(*map(range, window.kernel[:-1])))
    read = np.concatenate([places_of(window, tap, outer) for tap in rows])
    products: dict[int, ir.Value] = {}
    for residue, part in zip(residues, _columns(op, x, window.strides[-1], residues), strict=True):
        width = shape_of(part)[-1]
        places = math.prod(window.outputs[:-1]) * width
        if len(read) > 1 or math.prod(outer) > 1:
            part = op.Gather(part, read, axis=2)
        # onnxruntime merges the transposition into the products.
        copies = op.Transpose(op.reshape(part, [samples * groups, wide * len(rows), places]), perm=[0, 2, 1])
        for tap, (own, shift) in enumerate(splits):
            if own == residue:
                moved = _moved(op, dy, {last: (shift, width - window.outputs[-1] - shift)})
                products[tap] = op.MatMul(op.reshape(moved, [samples * groups, 1, places]), copies)
    each = op.Concat(*(products[tap] for tap in range(len(splits))), axis=1) if len(splits) > 1 else products[0]
    taps = [groups, len(splits), wide, *window.kernel[:-1]]
    if each.dtype not in EINSUM_TYPES:
        sums = op.reduce_sum(op.reshape(each, [samples, math.prod(taps)]), [0], keepdims=False)
        return op.transpose(op.reshape(sums, taps), [0, *range(2, 3 + last), 1])
    # The sum over the samples, a product with ones, turns the taps as well.
    ones, outer_taps = op.constant(np.ones([samples], dtype_of(each))), "hd"[:last]
    each = op.reshape(each, [samples, *taps])
    return op.Einsum(ones, each, equation=f"n,ncwa{outer_taps}->ca{outer_taps}w")


def dot_copies(wide: int, window: Window) -> int:
    """Elements that dot products work in for each filter: x and dy for a row of taps each, with what pads them.

    Args:
        wide: channels that a filter reads.
        window: geometry.
    """
    columns = 1 + (max(window.kernel[-1], 2) - 1) // window.strides[-1]
    return (wide * math.prod(window.kernel[:-1]) + 1 + columns) * window.places


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
    return op.reshape(depthwise_rows.weight_gradient(op, x, dy, window, room), kernel)


def _columns(op: Builder, x: ir.Value, stride: int, residues: Sequence[int]) -> Iterator[ir.Value]:
    """Yield the columns of each residue modulo the stride; where all are asked for, one pass tells them apart.

    Args:
        op: the builder.
        x: (..., width), of a width that the stride divides where all residues are asked for.
        stride: step between columns.
        residues: in rising order.
    """
    *lead, width = shape_of(x)
    if 1 < stride == len(residues):
        yield from told_apart(op, x, len(lead), stride)
    else:
        yield from (slice_axes(op, x, [len(lead)], [residue], [width], [stride]) for residue in residues)


def _split(window: Window, axis: int, tap: int) -> tuple[int, int]:
    """Return what a tap reads along an axis: which residue modulo the stride, and from which element of it on."""
    shift, residue = divmod(tap * window.dilations[axis] - window.begin[axis], window.strides[axis])
    return residue, shift


def _moved(op: Builder, value: ir.Value, moves: dict[int, tuple[int, int]]) -> ir.Value:
    """Pad spatial axes at the beginning and at the end, or cut off, in one pass."""
    rank = len(shape_of(value))
    pads = np.zeros([2, rank], dtype=np.int64)
    for axis, ends in moves.items():
        pads[:, 2 + axis] = ends
    return op.Pad(value, pads.reshape(-1), None) if pads.any() else value

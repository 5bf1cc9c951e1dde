"""Gradients of the weight of a depthwise convolution: products that sum over the places of one channel.

A convolution with ``dy`` as its kernel has an output of a few places, along which onnxruntime gathers its columns;
that takes 2 to 3 times as long as these two forms do.

``dot``  one dot product per tap and channel of a sample, those of a column of taps at once. There is a copy of dy per
         column of taps, moved by columns the other way; rows of taps read x from other rows on. In planes they are a
         convolution whose kernel is a plane of dy, as wide as what it reads, of which onnxruntime makes no columns.
         That is 0.7 of the time of a matrix product with a copy of x per row of taps (144 planes of 40 x 40 with 3 x 3
         taps, 96 with 7 x 7), and less where such copies fall out of the cache. Columns that a window steps over are
         told apart by a Split, which takes two fifths of the time of a Slice for each residue.
``row``  per row of taps the products of all columns of dy with all columns of x, for planes that are too small for
         dot products to be fast, see :mod:`ckplan.autodiff.rules.convolution.depthwise_rows`.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Device
from ckplan.autodiff.idioms.slices import slice_axes
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.autodiff.rules.convolution import depthwise_rows
from ckplan.autodiff.rules.convolution.depthwise_rows import EINSUM_TYPES
from ckplan.autodiff.rules.windows import Window, pad_axes, places_of, told_apart

#: Places of a channel from which on a dot product is fast enough.
DOT_PLACES = 400

#: The most taps along one axis for dot products; each takes a copy. For 4 x 96 planes of 56 x 56 and 7 x 7 taps a step
#: of the layer takes 28 ms with them and 42 with a convolution, for 4 x 64 of 64 x 64 and 9 x 9 taps 36 and 55.
DOT_TAPS = 9

#: Taps in a row up to which dot products with x where it lies are faster than products of rows in any plane that has
#: the places for them: with 3 x 3 taps both gradients of 4 x 192 planes of 20 x 20 take 0.75 of the time, with 7 x 7
#: twice as long.
IN_PLACE_TAPS = 4

#: Columns of a plane up to which it is faster to pass over it twice, for zeros where columns leave it and to move all
#: places, than to pad each row: 4 x 192 planes of 20 x 20 take half of the time, of 40 x 40 as long.
MASKED_COLUMNS = 40

#: Channels of a group with one filter, up to which dot products are taken: see
#: :mod:`ckplan.autodiff.rewrites.columns_apart`.
DOT_CHANNELS = 2


def form_for(wide: int, window: Window, device: Device = "cpu") -> Literal["dot", "row"] | None:
    """Choose the form of the gradient, None where a convolution is as good.

    Args:
        wide: channels of a group, which has one filter.
        window: geometry.
        device: whose kernels it is for.
    """
    if window.size == 1 or wide > DOT_CHANNELS or not is_inside(window):
        return None
    dots = window.places >= DOT_PLACES and max(window.kernel) <= DOT_TAPS
    faster = window.strides[-1] > 1 or (_reads_in_place(wide, window, device) and window.kernel[-1] <= IN_PLACE_TAPS)
    if wide == 1 and depthwise_rows.is_narrow(window) and not (dots and faster):
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
    in_place = _reads_in_place(wide, window, op.device)
    spare = -sizes[-1] % window.strides[-1] if len(residues) == window.strides[-1] else 0
    # What is cut off is none of the rows that a plane of dy slides over.
    end = window.end[:-1] if in_place else [max(size, 0) for size in window.end[:-1]]
    # onnxruntime would make a Pad right before a convolution the padding of that, for which it makes columns again.
    padded = in_place and any((window.begin[0], *end, spare))
    lead = [samples * channels] if padded else [samples, channels]
    axes = range(len(lead), len(lead) + 1 + last)
    x = pad_axes(op, op.reshape(x, [*lead, *sizes]), axes, [*window.begin[:-1], 0], [*end, spare])
    *outer, width = shape_of(x)[len(lead) :]
    x = op.reshape(x, [*lead, math.prod(outer), width])
    products: dict[int, ir.Value] = {}
    for residue, part in zip(residues, _columns(op, x, window.strides[-1], residues), strict=True):
        width = shape_of(part)[-1]
        planes = [1, samples * channels, *shape_of(part)[-2:]]
        read = op.reshape(part, planes) if in_place else _copies(op, part, wide, outer, window)
        for tap, (own, shift) in enumerate(splits):
            if own == residue:
                moved = _moved(op, dy, shift, width - window.outputs[-1] - shift)
                plane = (*window.outputs[:-1], width)
                products[tap] = _slide(op, read, moved, plane) if in_place else _multiply(op, read, moved)
    each = op.Concat(*(products[tap] for tap in range(len(splits))), axis=1) if len(splits) > 1 else products[0]
    taps = [groups, len(splits), wide, *window.kernel[:-1]]
    if each.dtype not in EINSUM_TYPES:
        sums = op.reduce_sum(op.reshape(each, [samples, math.prod(taps)]), [0], keepdims=False)
        return op.transpose(op.reshape(sums, taps), [0, *range(2, 3 + last), 1])
    # The sum over the samples, a product with ones, turns the taps as well.
    ones, outer_taps = op.constant(np.ones([samples], dtype_of(each))), "hd"[:last]
    each = op.reshape(each, [samples, *taps])
    return op.Einsum(ones, each, equation=f"n,ncwa{outer_taps}->ca{outer_taps}w")


def _reads_in_place(wide: int, window: Window, device: Device) -> bool:
    """Say whether a plane of dy slides over rows where they lie: rows of taps read them one by one, on the CPU."""
    one_by_one = len(window.kernel) == 2 and window.strides[0] == window.dilations[0] == 1
    return wide == 1 and one_by_one and device == "cpu"


def _slide(op: Builder, planes: ir.Value, dy: ir.Value, plane: Sequence[int]) -> ir.Value:
    """Emit the dot products of planes of dy with those of x from each row on, (N C, 1, rows of taps).

    Args:
        op: the builder.
        planes: those of x, (1, N C, rows, width).
        dy: as many planes.
        plane: their shape, of fewer rows and as many columns.
    """
    _, groups, rows, _ = shape_of(planes)
    # onnxruntime takes a Pad right before a kernel for one of the image: a Reshape stands there, of one channel, too.
    kernel = op.Reshape(dy, np.asarray([groups, 1, *plane], np.int64))
    products = op.Conv(planes, kernel, group=groups, kernel_shape=plane)
    return op.reshape(products, [groups, 1, rows - plane[0] + 1])


def _multiply(op: Builder, rows: ir.Value, dy: ir.Value) -> ir.Value:
    """Emit the dot products of dy with copies of x, (N C, 1, W taps)."""
    groups, places, _ = shape_of(rows)
    return op.MatMul(op.reshape(dy, [groups, 1, places]), rows)


def _copies(op: Builder, x: ir.Value, wide: int, outer: Sequence[int], window: Window) -> ir.Value:
    """Emit a copy of x per row of taps, as columns of a matrix: (N C, places, W taps).

    Args:
        op: the builder.
        x: (N, W C, rows, width).
        wide: W, channels of a group.
        outer: sizes of all axes but the last, whose product is the number of rows.
        window: geometry.
    """
    samples, channels, _, width = shape_of(x)
    rows = list(itertools.product(*map(range, window.kernel[:-1])))
    read = np.concatenate([places_of(window, tap, outer) for tap in rows])
    if len(read) > 1 or math.prod(outer) > 1:
        x = op.Gather(x, read, axis=2)
    places = math.prod(window.outputs[:-1]) * width
    # onnxruntime merges the transposition into the products.
    return op.Transpose(op.reshape(x, [samples * channels // wide, wide * len(rows), places]), perm=[0, 2, 1])


def dot_copies(wide: int, window: Window, device: Device = "cpu") -> int:
    """Elements that dot products work in for each filter: x and dy for a row of taps each, with what pads them.

    Args:
        wide: channels that a filter reads.
        window: geometry.
        device: whose kernels they are for.
    """
    columns = 1 + (max(window.kernel[-1], 2) - 1) // window.strides[-1]
    rows = 1 if _reads_in_place(wide, window, device) else math.prod(window.kernel[:-1])
    return (wide * rows + 1 + columns) * window.places


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


def _moved(op: Builder, value: ir.Value, before: int, behind: int) -> ir.Value:
    """Pad the last axis at the beginning and at the end, or cut off; places of a plane may come as one axis.

    Args:
        op: the builder.
        value: of spatial axes behind the first two.
        before: columns of zeros, cut off where negative.
        behind: the same at the end.
    """
    *lead, width = shape_of(value)
    if not before and not behind:
        return value
    if before + behind or width > MASKED_COLUMNS or op.device == "cuda":
        return op.Pad(value, np.asarray([0] * len(lead) + [before] + [0] * len(lead) + [behind], dtype=np.int64), None)
    planes, places = lead[:2], math.prod(lead[2:]) * width
    come_from = np.arange(width) + before
    stay = np.tile((come_from >= 0) & (come_from < width), math.prod(lead[2:])).astype(dtype_of(value))
    kept = op.Mul(op.reshape(value, [*planes, places]), op.constant(stay))
    return op.Pad(kept, np.asarray([0, 0, before, 0, 0, behind], dtype=np.int64), None)

"""Depthwise convolutions of small planes as products of whole rows.

onnxruntime gathers, for each channel of each sample, the columns that a kernel reads, and multiplies them by a single
row of numbers; a ConvTranspose spreads such columns. Both take as long as the copies do. Here the rows that the rows of
taps read are gathered side by side, one copy for each, and what is made of them are matrix products of a channel:

    y[c, (n h), w] = sum over i, v of x[c, (n h + i), v] band[c, (i v), w]

where the band of a channel has the taps of its kernel on diagonals and zeros elsewhere. The gradient of x is such a
product of rows of dy; that of the weight is the product of the same rows with x, summed along the diagonals. The
narrower the planes beside the kernel, the fewer products with zeros.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.transposes import before_transpose
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.autodiff.rules.windows import Window, pad_axes, places_of

#: Element types for which the CPU has a kernel of Einsum.
EINSUM_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)

Tap = tuple[int, ...]

#: The copies of a convolution, or of its gradients, may be so many times the model's largest tensor.
MOST_COPIES = 2

#: Columns of y by columns of x for each tap in a row, up to which products with all of them are no waste for gradients;
#: and where a window steps over columns, which other forms have to pick one by one.
ROW_PRODUCTS, STRIDED_ROW_PRODUCTS = 240, 1100

#: Elements of the constant that says which column a tap reads for which other: kernels of sound are hundreds of taps
#: wide, and their tables would be larger than the whole model.
LARGEST_TABLE = 2**17


def is_narrow(window: Window) -> bool:
    """Say whether the planes of a window are narrow enough beside its kernel."""
    most = ROW_PRODUCTS if window.strides[-1] == 1 else STRIDED_ROW_PRODUCTS
    products = window.outputs[-1] * window.inputs[-1]
    return products <= most * window.kernel[-1] and products * window.kernel[-1] <= LARGEST_TABLE


def copied(planes: int, window: Window) -> int:
    """Elements of all copies of rows.

    Args:
        planes: samples times channels.
        window: geometry.
    """
    rows = planes * (window.places // window.outputs[-1]) * (window.size // window.kernel[-1])
    return rows * window.inputs[-1]


def rows_of_taps(window: Window) -> list[Tap]:
    """All taps along every axis but the last."""
    return list(itertools.product(*map(range, window.kernel[:-1])))


def adjoint(window: Window) -> Window:
    """The window that slides over dy where the gradient of x is made; its taps go backwards.

    Args:
        window: geometry, with strides of 1.
    """
    begin = tuple(reach - first for reach, first in zip(window.reach, window.begin, strict=True))
    return Window(window.outputs, window.inputs, window.kernel, window.strides, window.dilations, begin)


def by_channel(op: Builder, value: ir.Value) -> ir.Value:
    """Emit (C, N, ...) of (N, C, ...), of a gradient that was transposed before in one step."""
    source, perm = before_transpose(value)
    return op.transpose(source, [perm[1], perm[0], *perm[2:]])


def copies(op: Builder, value: ir.Value, channels: int, window: Window, taps: Sequence[Tap]) -> ir.Value:
    """Emit the rows that rows of taps read, side by side, as (C, N places, taps columns).

    Args:
        op: the builder.
        value: what the window slides over, two axes of C N planes, (C, N, ...) or (1, C N, ...).
        channels: C.
        window: geometry.
        taps: along every axis but the last.
    """
    *planes, width = shape_of(value)[:2] + shape_of(value)[-1:]
    axes = range(2, len(shape_of(value)) - 1)
    padded = pad_axes(op, value, axes, window.begin[:-1], [max(size, 0) for size in window.end[:-1]])
    outer = shape_of(padded)[2:-1]
    rows = op.reshape(padded, [*planes, math.prod(outer), width])
    read = np.stack([places_of(window, tap, outer) for tap in taps], axis=-1)
    if read.size > 1 or math.prod(outer) > 1:
        rows = op.Gather(rows, read.reshape(-1), axis=2)
    return op.reshape(rows, [channels, math.prod(planes) // channels * len(read), len(taps) * width])


def bands(op: Builder, weight: ir.Value, window: Window, *, transposed: bool = False) -> ir.Value:
    """Emit the matrix of each channel, (C, rows of taps by columns that are read, columns that are made).

    Args:
        op: the builder.
        weight: (C, 1, ...).
        window: geometry.
        transposed: whether columns of y are read and those of x are made.
    """
    places = diagonals(window, dtype_of(weight), transposed)
    read, made = places.shape[:2]
    by_tap = np.ascontiguousarray(places.reshape(read * made, -1).T)
    rows = window.size // window.kernel[-1] * read
    return op.reshape(op.MatMul(weight, op.constant(by_tap)), [shape_of(weight)[0], rows, made])


def sums_of_taps(op: Builder, rows: ir.Value, other: ir.Value, window: Window, *, transposed: bool = False) -> ir.Value:
    """Emit a part of the weight's gradient, (C, 1, rows of taps, taps in a row).

    Args:
        op: the builder.
        rows: copies of one side, (C, N places, rows of taps by columns).
        other: the other side, (C, N places, columns).
        window: geometry.
        transposed: whether the rows are of dy.
    """
    channels, _, width = shape_of(rows)
    places = diagonals(window, dtype_of(rows), transposed)
    read, made, taps = places.shape
    # onnxruntime merges the first transposition into the product, which gathers the narrow side column by column then.
    turned = op.MatMul(op.Transpose(other, perm=[0, 2, 1]), rows)
    products = op.Transpose(turned, perm=[0, 2, 1])
    if products.dtype in EINSUM_TYPES:
        products = op.reshape(products, [channels, width // read, read, made])
        return op.Einsum(products, op.constant(places[..., None]), equation="ctvw,vwja->catj")
    flat = op.reshape(products, [channels * (width // read), read * made])
    sums = op.MatMul(flat, op.constant(places.reshape(read * made, taps)))
    return op.reshape(sums, [channels, 1, width // read, taps])


def convolution(op: Builder, x: ir.Value, weight: ir.Value, bias: ir.Value | None, window: Window) -> ir.Value:
    """Emit the convolution itself, as (C, N, ...).

    Args:
        op: the builder.
        x: (N, C, ...), of two spatial axes or more.
        weight: (C, 1, ...).
        bias: (C,).
        window: geometry.
    """
    samples, channels, *sizes = shape_of(x)
    # Not as the gradients do it: nodes that make the same are merged, and the copies were kept for the backward pass.
    turned = op.transpose(op.reshape(x, [samples, channels, math.prod(sizes)]), [1, 0, 2])
    planes = op.reshape(turned, [1, channels * samples, *sizes])
    rows = copies(op, planes, channels, window, rows_of_taps(window))
    y = op.reshape(op.MatMul(rows, bands(op, weight, window)), [channels, samples, *window.outputs])
    if bias is None:
        return y
    return op.Add(y, op.reshape(bias, [channels, *[1] * (1 + len(window.outputs))]))


def weight_gradient(op: Builder, x: ir.Value, dy: ir.Value, window: Window, room: int) -> ir.Value:
    """Emit the gradient of the weight alone, (C, 1, rows of taps, taps in a row).

    Args:
        op: the builder.
        x: input of the convolution, (N, C, ...).
        dy: gradient of its output, (N, C, ...).
        window: geometry.
        room: up to this many elements, copies of x for all rows of taps are made at once.
    """
    samples, channels = shape_of(x)[:2]
    rows = window.places // window.outputs[-1]
    x = by_channel(op, x)
    dy = op.reshape(by_channel(op, dy), [channels, samples * rows, window.outputs[-1]])
    taps = rows_of_taps(window)
    together = len(taps) if copied(samples * channels, window) <= room else 1
    parts = [
        sums_of_taps(op, copies(op, x, channels, window, taps[first : first + together]), dy, window)
        for first in range(0, len(taps), together)
    ]
    return op.Concat(*parts, axis=2) if len(parts) > 1 else parts[0]


def gradients(op: Builder, x: ir.Value, dy: ir.Value, weight: ir.Value, window: Window) -> tuple[ir.Value, ir.Value]:
    """Emit the gradients of the input and of the weight by the same copies of dy.

    Args:
        op: the builder.
        x: input of the convolution, (N, C, ...).
        dy: gradient of its output, (N, C, ...).
        weight: by which dy is multiplied, (C, 1, ...).
        window: geometry, with strides of 1.
    """
    samples, channels, *sizes = shape_of(x)
    rows = copies(op, by_channel(op, dy), channels, adjoint(window), rows_of_taps(window)[::-1])
    shape = [channels, samples * math.prod(sizes[:-1]), sizes[-1]]
    dw = sums_of_taps(op, rows, op.reshape(by_channel(op, x), shape), window, transposed=True)
    dx = op.MatMul(rows, bands(op, weight, window, transposed=True))
    dx = by_channel(op, op.reshape(dx, [channels, samples, *sizes]))
    return dx, op.reshape(dw, shape_of(weight))


def diagonals(window: Window, dtype: np.dtype, transposed: bool) -> np.ndarray:
    """Ones where a column of x is the one that a tap reads for a column of y, (columns of x, of y, taps in a row).

    Args:
        window: geometry.
        dtype: of the array.
        transposed: whether the columns of y come first.
    """
    columns, taps = np.arange(window.outputs[-1]), np.arange(window.kernel[-1])
    read = window.strides[-1] * columns[:, None] + window.dilations[-1] * taps - window.begin[-1]
    found = (np.arange(window.inputs[-1])[:, None, None] == read).astype(dtype)
    return np.ascontiguousarray(found.swapaxes(0, 1)) if transposed else found

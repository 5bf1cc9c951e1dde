"""Depthwise convolutions of small planes by convolutions that are as wide as a plane.

A kernel that is as wide as what it reads slides over rows alone: onnxruntime reads them where they lie, a few at a
time, as the rows of a matrix, and makes no columns (``core/mlas/lib/convolve.cpp``). With a filter for each column of
y,

    y[c, w, p] = sum over i, v of x[c, p + i, v] band[c, w, i, v],

where the band of a channel has the taps of its kernel on diagonals and zeros elsewhere. That is the product of rows of
:mod:`ckplan.autodiff.rules.convolution.depthwise_rows` without a copy for each row of taps; columns of y come before
its rows.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Device
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.autodiff.rules.convolution.depthwise_rows import diagonals
from ckplan.autodiff.rules.windows import Window, pad_axes

#: Taps along each axis from which on that is faster than a convolution's columns, and up to which it is faster than
#: copies of rows, whose bands have the columns of y last.
LEAST_TAPS, MOST_TAPS = 3, 4

#: Columns of y by columns of x for each tap in a row, up to which it is faster: 4 x 960 planes of 5 x 5 with 3 x 3 taps
#: take 0.75 of the time, 4 x 576 of 10 x 10 0.8, 4 x 192 of 20 x 20 as long.
PLANE_PRODUCTS = 90


def suits(window: Window, device: Device = "cpu") -> bool:
    """Say whether a window reads narrow planes row by row, stops at each, and has few taps; on the CPU alone."""
    if device != "cpu" or len(window.kernel) != 2 or window.strides[0] > 1 or window.dilations[0] > 1:
        return False
    few = all(LEAST_TAPS <= taps <= MOST_TAPS for taps in window.kernel)
    return few and window.outputs[1] * window.inputs[1] <= PLANE_PRODUCTS * window.kernel[1]


def copied(planes: int, window: Window) -> int:
    """Elements of the copies that lie beside each other: padded rows, and what is made of them.

    Args:
        planes: samples times channels.
        window: geometry.
    """
    height, width = window.outputs
    return planes * ((height + window.reach[0]) * window.inputs[1] + height * width)


def convolution(op: Builder, x: ir.Value, weight: ir.Value, bias: ir.Value | None, window: Window) -> ir.Value:
    """Emit the convolution itself, as (N, C columns, rows, 1).

    Args:
        op: the builder.
        x: (N, C, rows, columns).
        weight: (C, 1, ...).
        bias: (C,).
        window: geometry, see :func:`suits`.
    """
    samples, channels, *sizes = shape_of(x)
    if window.begin[0] or window.end[0]:
        # onnxruntime would make a Pad right before a convolution the padding of that, for which it makes columns again.
        padded = pad_axes(op, op.reshape(x, [samples * channels, *sizes]), [1], window.begin[:1], window.end[:1])
        x = op.reshape(padded, [samples, channels, *shape_of(padded)[1:]])
    operands = [x, _bands(op, weight, window)]
    if bias is not None:
        ones = op.constant(np.ones([1, window.outputs[1]], dtype_of(bias)))  # a product takes half of an Expand's time
        operands.append(op.reshape(op.MatMul(op.reshape(bias, [channels, 1]), ones), [channels * window.outputs[1]]))
    made: ir.Value = op.Conv(*operands, group=channels, kernel_shape=[window.kernel[0], window.inputs[1]])
    return made


def _bands(op: Builder, weight: ir.Value, window: Window) -> ir.Value:
    """Emit the bands of all channels, (C columns of y, 1, rows of taps, columns of x).

    Args:
        op: the builder.
        weight: (C, 1, ...).
        window: geometry.
    """
    channels, (rows, columns) = shape_of(weight)[0], window.kernel
    places = diagonals(window, dtype_of(weight), transposed=False)
    # A product with all taps at once makes bands in the order in which they are read.
    by_tap = np.einsum("ki,vwj->kjwiv", np.eye(rows, dtype=places.dtype), places).reshape(rows * columns, -1)
    bands = op.MatMul(op.reshape(weight, [channels, rows * columns]), op.constant(by_tap))
    return op.reshape(bands, [channels * window.outputs[1], 1, rows, window.inputs[1]])

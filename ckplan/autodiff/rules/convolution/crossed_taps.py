"""The gradient of a convolution's weight by one product of its rows of taps with its columns of taps.

A tap (i, j) of a kernel reads x moved by i rows and j columns. In the product of dy with x, rows may as well be moved
in dy, the other way round. With ``rows`` all copies of dy that are moved by rows, and ``columns`` all copies of x that
are moved by columns,

    dW[o, i, j, c] = sum over h, w of rows[o, i, h, w] columns[h, w, j, c].

For K rows and L columns of taps these are K copies of dy and L of x, where all taps side by side are K L copies of x
and a row of them at a time takes K products. Where the window steps over rows, dy would be mostly zeros: then it does
not pay.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.rules.windows import Window, pad_axes


def suits(window: Window) -> bool:
    """Say whether a window has rows and columns of taps, and stops at every row."""
    return len(window.kernel) == 2 and min(window.kernel) > 1 and window.strides[0] == 1


def copies(channels: int, filters: int, window: Window) -> int:
    """Elements of the copies that one sample takes.

    Args:
        channels: of x.
        filters: channels of dy.
        window: geometry.
    """
    rows, columns = window.kernel
    return (rows * filters + columns * channels) * _padded_rows(window) * window.outputs[1]


def of_sample(op: Builder, x: ir.Value, dy: ir.Value, window: Window) -> ir.Value:
    """Emit the gradient by one sample, (O, K, L, C).

    Args:
        op: the builder.
        x: input of the convolution, (C, H, W).
        dy: gradient of its output, (O, ...).
        window: geometry.
    """
    rows, places = _padded_rows(window), np.arange(window.outputs[1])
    last = op.Transpose(x, perm=[1, 2, 0])
    padded = pad_axes(op, last, [0, 1], window.begin, [max(size, 0) for size in window.end])
    read = window.strides[1] * places[:, None] + window.dilations[1] * np.arange(window.kernel[1])
    columns = op.Gather(padded, read, axis=1)
    reach = window.reach[0]
    padded = pad_axes(op, dy, [1], [reach], [rows - window.outputs[0]])
    read = reach + np.arange(rows) - window.dilations[0] * np.arange(window.kernel[0])[:, None]
    return op.Einsum(op.Gather(padded, read, axis=1), columns, equation="oihw,hwjc->oijc")


def _padded_rows(window: Window) -> int:
    return window.inputs[0] + window.begin[0] + max(window.end[0], 0)

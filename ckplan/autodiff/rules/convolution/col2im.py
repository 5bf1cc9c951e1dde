"""Gradient of Col2Im."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_ints, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.autodiff.rules.windows import Window, pad_axes


@rule("Col2Im", fixed=[1, 2])
def col2im(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads each window of dy, with zeros around it, into a column. Reads no forward value.

    Of several channels onnxruntime's kernel for one axis, or three, mixes up the taps of a window with dilations.
    """
    columns, g = required_input(node, 0), dy[0]
    assert g is not None
    if 0 in shape_of(columns) or 0 in shape_of(g):
        return [None]
    block = op.constant_ints(node, 2, "block_shape") or ()
    ones = (1,) * len(block)
    strides, dilations = attr_ints(node, "strides") or ones, attr_ints(node, "dilations") or ones
    pads = attr_ints(node, "pads") or (0,) * 2 * len(block)
    batch, channels, *sizes = shape_of(g)
    begin, end = pads[: len(block)], pads[len(block) :]
    spans = zip(sizes, begin, end, block, strides, dilations, strict=True)
    places = tuple((n + b + e - (k - 1) * d - 1) // s + 1 for n, b, e, k, s, d in spans)
    window = Window(tuple(sizes), places, block, strides, dilations, tuple(begin))
    if window.is_dilated and len(block) != 2 and channels > 1:
        raise NoGradientError("onnxruntime makes other numbers with dilations along one axis, or along three")
    padded = pad_axes(op, g, range(2, 2 + len(block)), window.begin, window.end)
    flat = op.reshape(padded, [batch, channels, math.prod(shape_of(padded)[2:])])
    return [op.reshape(op.Gather(flat, _reads(window, shape_of(padded)[2:]), axis=2), shape_of(columns))]


def _reads(window: Window, padded: tuple[int, ...]) -> np.ndarray:
    """Return which element of the padded input each tap reads at each place, (taps x places)."""
    rank = len(padded)
    total = np.zeros((1,) * 2 * rank, dtype=np.int64)
    for axis, size in enumerate(padded):
        taps = np.arange(window.kernel[axis], dtype=np.int64)[:, None] * window.dilations[axis]
        element = taps + np.arange(window.outputs[axis], dtype=np.int64) * window.strides[axis]
        shape = [1] * 2 * rank
        shape[axis], shape[rank + axis] = element.shape
        total = total * size + element.reshape(shape)
    return total.reshape(-1).astype(np.int32 if math.prod(padded) < 2**31 else np.int64)

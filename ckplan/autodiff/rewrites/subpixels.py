"""Transposed convolutions of large kernels as convolutions whose channels are interleaved.

A ConvTranspose writes all taps of all places into a buffer before it adds them up: K numbers for each place of its
input and each channel of its result, for K taps. Of stride s, the elements of its result at a distance of s are a
convolution of the input with every s-th tap (Shi et al. 2016, arXiv:1609.05158): s * s sets of channels, which
DepthToSpace interleaves. That takes no buffer, and from `_TAPS` taps an element on 0.3 to 0.9 of the time.

The numbers are sums of the same products in another order. It is done when the gradients are there, which read what a
transposed convolution reads and not its result.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.idioms.slices import slice_axes
from ckplan.autodiff.reading import attr_int, required_input, shape_of
from ckplan.autodiff.rules.convolution.conv import transposed_window
from ckplan.autodiff.rules.windows import pad_axes, permuted
from ckplan.keys import PHASE
from ckplan.operators.matching import input_of, is_op

#: Taps that add up to an element of the result, from which on the convolution is faster.
_TAPS = 16

#: Channels of the convolution below which it is not: its product has few rows.
_CHANNELS = 16


@dataclass(frozen=True)
class _Form:
    """How a transposed convolution of two axes becomes a convolution.

    Attributes:
        stride: of both axes.
        taps: of the convolution, by axis.
        first, last: places of the convolution that are calculated, by axis, the last one excluded.
        cut: elements before the first one of the result, by axis.
    """

    stride: int
    taps: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]
    cut: tuple[int, ...]


def interleave_convolutions(op: Builder) -> None:
    """Put convolutions in the place of transposed ones of the forward pass that are slower and take a large buffer.

    Args:
        op: builder of the finished graph.
    """
    for node in list(op.graph):
        if is_op(node, "ConvTranspose") and node.metadata_props.get(PHASE) == "forward":
            form = _form_of(node)
            if form is not None:
                _replace(op, node, form)


def _form_of(node: ir.Node) -> _Form | None:
    """The convolution that a transposed one is, None if it has none that is better."""
    x, weight = required_input(node, 0), required_input(node, 1)
    inputs, result, (_, filters, *kernel) = shape_of(x)[2:], shape_of(node.outputs[0])[2:], shape_of(weight)
    if x.dtype != ir.DataType.FLOAT or len(kernel) != 2 or attr_int(node, "group", 1) > 1 or 0 in shape_of(x):
        return None
    window = transposed_window(node, inputs, result, kernel)
    stride = window.strides[0]
    if window.strides != (stride, stride) or window.dilations != (1, 1):
        return None
    if math.prod(kernel) < _TAPS * stride**2 or filters * stride**2 < _CHANNELS:
        return None
    taps = tuple(-(-size // stride) for size in kernel)
    first = tuple(begin // stride for begin in window.begin)
    last = tuple(-(-(begin + size) // stride) for begin, size in zip(window.begin, result, strict=True))
    inside = all(before < tap for before, tap in zip(first, taps, strict=True))
    if not inside or any(end < size for end, size in zip(last, inputs, strict=True)):
        return None
    return _Form(stride, taps, first, last, tuple(begin % stride for begin in window.begin))


def _replace(op: Builder, node: ir.Node, form: _Form) -> None:
    x, weight, bias = required_input(node, 0), required_input(node, 1), input_of(node, 2)
    stride, (height, width) = form.stride, form.taps
    channels, filters, *kernel = shape_of(weight)
    more = [tap * stride - size for tap, size in zip(form.taps, kernel, strict=True)]
    with op.scope(str(node.name), "forward", before=node):
        # Every s-th tap of each axis is a kernel of its own, and a convolution reads it from the end.
        whole = pad_axes(op, weight, (2, 3), [0, 0], more)
        apart = op.reshape(whole, (channels, filters, height, stride, width, stride))
        sets = permuted(op, apart, [3, 5, 1, 0, 2, 4], (stride**2 * filters, channels, height, width))
        low = np.iinfo(np.int64).min
        flipped = slice_axes(op, sets, (2, 3), [-1, -1], [low, low], [-1, -1])
        before = [tap - 1 - first for tap, first in zip(form.taps, form.first, strict=True)]
        after = [last - size for last, size in zip(form.last, shape_of(x)[2:], strict=True)]
        if bias is not None and stride > 1:
            bias = op.Concat(*[bias] * stride**2, axis=0)
        y = op.Conv(x, flipped, bias, kernel_shape=form.taps, pads=[*before, *after])
        if stride > 1:
            y = op.DepthToSpace(y, blocksize=stride, mode="DCR")
        ends = [cut + size for cut, size in zip(form.cut, shape_of(node.outputs[0])[2:], strict=True)]
        arguments = [op.constant(np.asarray(part, dtype=np.int64)) for part in (form.cut, ends, (2, 3))]
    become(node, ("", "Slice", ""), [y, *arguments], ())

"""Gradients of a convolution's input: the forms they can take, and which one suits a shape.

``transposed``  a ConvTranspose, which takes a buffer of K times one sample's input, for K taps.
``flipped``     a convolution with the flipped kernel, which takes no buffer but copies the kernel twice.
``product``     of kernels of one tap on small planes: one product for all samples, of a copy with the channels last.
                0.6 to 0.9 of the time of ``transposed``, whose product for one sample has too few columns to be fast.
                Strides put zeros in between.

Timings behind the choice come from ``benchmarks/gradient_forms.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Literal

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.slices import slice_axes
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.rules.windows import Window, pad_axes, permuted

Form = Literal["transposed", "flipped", "product"]

#: Below this many result channels a convolution with the flipped kernel is slower than ConvTranspose, if there are more
#: filters than that: its product has few rows, each of them long.
FLIP_CHANNELS = 16

#: From this many places of the output on, of all samples, copies of the kernel are of no account. Those of 4 planes of
#: 10 x 10 are 0.2 of the 72 MB of a MobileNetV2's step, which takes 0.99 of the time.
FLIP_PLACES = 400

#: Up to this many places of a plane one product for all samples is faster than one for each.
SMALL_PLACES = 49


def data_gradient_form(samples: int, kernel: Sequence[int], groups: int, window: Window) -> Form:
    """Choose the form of the gradient of a convolution's input.

    The flipped kernel takes 0.4 to 1.0 of the time, and the time of two copies of the kernel, which are no larger than
    what the weight gradient works in.

    Args:
        samples: batch size.
        kernel: shape of the weight, (O, C / groups, ...).
        groups: number of groups.
        window: geometry.
    """
    if groups == 1 and reads_apart(window) and window.places <= SMALL_PLACES:
        return "product"
    inside = all(reach >= begin for reach, begin in zip(window.reach, window.begin, strict=True))
    if groups > 1 or any(s > 1 for s in window.strides) or not inside or kernel[1] < min(FLIP_CHANNELS, kernel[0]):
        return "transposed"
    copies = (2 if window.size > 1 else 1) * math.prod(kernel)
    few = copies <= window.size * kernel[1] * window.places or samples * window.places >= FLIP_PLACES
    return "flipped" if few else "transposed"


def data_gradient(
    op: Builder, dy: ir.Value, weight: ir.Value, groups: int, window: Window, form: Form | None = None
) -> ir.Value:
    """Emit the gradient of a convolution's input.

    Args:
        op: the builder.
        dy: gradient of the output, (N, O, ...).
        weight: (O, C / groups, ...).
        groups: number of groups.
        window: geometry.
        form: the form; None leaves it to :func:`data_gradient_form`.
    """
    kernel = shape_of(weight)
    form = form or data_gradient_form(shape_of(dy)[0], kernel, groups, window)
    if form == "product":
        return _product(op, dy, weight, window)
    if form == "flipped":
        return _flipped(op, dy, weight, window)
    return op.ConvTranspose(
        dy,
        weight,
        kernel_shape=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        group=groups,
        **window.transposed_padding,
    )


def reads_apart(window: Window) -> bool:
    """Say whether a window is of one tap, without padding: then each place reads an element of its own."""
    return window.size == 1 and not any(window.begin) and max(window.end) <= 0


def _product(op: Builder, dy: ir.Value, weight: ir.Value, window: Window) -> ir.Value:
    kernel = shape_of(weight)
    last = len(kernel) - 1
    product = op.MatMul(op.transpose(dy, [0, *range(2, last + 1), 1]), op.reshape(weight, kernel[:2]))
    if any(stride > 1 for stride in window.strides):
        product = _at_strides(op, product, window)
    return op.transpose(product, [0, last, *range(1, last)])


def _at_strides(op: Builder, value: ir.Value, window: Window) -> ir.Value:
    """Emit (N, inputs..., C) of (N, outputs..., C), with zeros in between and behind."""
    samples, *places, channels = shape_of(value)
    each = [size for place in places for size in (place, 1)]
    behind = [size for stride in window.strides for size in (0, stride - 1)]
    value = op.reshape(value, [samples, *each, channels])
    value = op.Pad(value, np.asarray([0] * (len(each) + 2) + [0, *behind, 0], dtype=np.int64), None)
    sizes = [place * stride for place, stride in zip(places, window.strides, strict=True)]
    value = op.reshape(value, [samples, *sizes, channels])
    axes = range(1, 1 + len(sizes))
    ends = [size - have for size, have in zip(window.inputs, sizes, strict=True)]
    return pad_axes(op, value, axes, [0] * len(sizes), ends)


def _flipped(op: Builder, dy: ir.Value, weight: ir.Value, window: Window) -> ir.Value:
    kernel = shape_of(weight)
    spatial = range(2, len(kernel))
    if window.size > 1:
        low = np.iinfo(np.int64).min
        weight = slice_axes(op, weight, spatial, [-1] * len(spatial), [low] * len(spatial), [-1] * len(spatial))
    begin = [reach - first for reach, first in zip(window.reach, window.begin, strict=True)]
    spans = zip(window.inputs, window.outputs, window.reach, begin, strict=True)
    end = [size + reach - out - first for size, out, reach, first in spans]
    flipped = permuted(op, weight, [1, 0, *spatial], [kernel[1], kernel[0], *kernel[2:]])
    return op.Conv(dy, flipped, kernel_shape=window.kernel, dilations=window.dilations, pads=[*begin, *end])

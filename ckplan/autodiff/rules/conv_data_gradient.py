"""Gradients of a convolution's input: the two forms they can take, and which one suits a shape.

``ConvTranspose`` takes a buffer of K times one sample's input, for K taps; a convolution with the flipped kernel takes
none but copies the kernel twice. Timings behind the choice come from ``benchmarks/gradient_forms.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, shape_of
from ckplan.autodiff.rules.windows import Window, permuted
from ckplan.autodiff.slices import slice_axes

#: Below this many result channels a convolution with the flipped kernel is slower than ConvTranspose, if there are more
#: filters than that: its product has few rows, each of them long.
FLIP_CHANNELS = 16

#: From this many places of the output on, of all samples, copies of the kernel are of no account.
FLIP_PLACES = 512


def flips(samples: int, kernel: Sequence[int], groups: int, window: Window) -> bool:
    """Say whether the data gradient of a convolution is best a convolution with the flipped kernel.

    It takes 0.4 to 1.0 of the time, and the time of two copies of the kernel, which are no larger than what the weight
    gradient works in.

    Args:
        samples: batch size.
        kernel: shape of the weight, (O, C / groups, ...).
        groups: number of groups.
        window: geometry.
    """
    inside = all(reach >= begin for reach, begin in zip(window.reach, window.begin, strict=True))
    if groups > 1 or any(s > 1 for s in window.strides) or not inside or kernel[1] < min(FLIP_CHANNELS, kernel[0]):
        return False
    copies = (2 if window.size > 1 else 1) * math.prod(kernel)
    return copies <= window.size * kernel[1] * window.places or samples * window.places >= FLIP_PLACES


def data_gradient(
    op: Builder, dy: ir.Value, weight: ir.Value, groups: int, window: Window, flip: bool | None = None
) -> ir.Value:
    """Emit the gradient of a convolution's input.

    Args:
        op: the builder.
        dy: gradient of the output, (N, O, ...).
        weight: (O, C / groups, ...).
        groups: number of groups.
        window: geometry.
        flip: whether to take the flipped kernel; None decides by :func:`flips`.
    """
    kernel = shape_of(weight)
    if flips(shape_of(dy)[0], kernel, groups, window) if flip is None else flip:
        spatial = range(2, len(kernel))
        if window.size > 1:
            low = np.iinfo(np.int64).min
            weight = slice_axes(op, weight, spatial, [-1] * len(spatial), [low] * len(spatial), [-1] * len(spatial))
        begin = [reach - first for reach, first in zip(window.reach, window.begin, strict=True)]
        spans = zip(window.inputs, window.outputs, window.reach, begin, strict=True)
        end = [size + reach - out - first for size, out, reach, first in spans]
        flipped = permuted(op, weight, [1, 0, *spatial], [kernel[1], kernel[0], *kernel[2:]])
        return op.Conv(dy, flipped, kernel_shape=window.kernel, dilations=window.dilations, pads=[*begin, *end])
    return op.ConvTranspose(
        dy,
        weight,
        kernel_shape=window.kernel,
        strides=window.strides,
        dilations=window.dilations,
        group=groups,
        pads=[*window.begin, *(max(size, 0) for size in window.end)],
        output_padding=[max(-size, 0) for size in window.end],
    )

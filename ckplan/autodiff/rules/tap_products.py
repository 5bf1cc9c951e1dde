"""Products with the taps of a convolution's input, along axes of the taps."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, shape_of
from ckplan.autodiff.rules.windows import Window, pad_axes, places_of


def products_of_taps(
    op: Builder, last: ir.Value, dy: ir.Value, window: Window, together: int, sizes: Sequence[int]
) -> ir.Value:
    """Multiply by each tap, along whose axes the products then lie: nothing is brought into another shape.

    Args:
        op: the builder.
        last: what the window slides over, (samples, ..., channels).
        dy: rows by places, with axes of one element in the place of the taps' if there is a product per sample.
        window: geometry.
        together: how many taps a product reads.
        sizes: samples that have products of their own; samples that a product sums over, if it does; channels.
    """
    rank, (count, *summed, channels) = len(window.kernel), sizes
    padded = pad_axes(op, last, range(1, rank + 1), window.begin, [max(size, 0) for size in window.end])
    plane = shape_of(padded)[1:-1]
    places, depth = math.prod(plane), math.prod(summed)
    lead = [] if summed else [count]
    rows = op.reshape(padded, [*lead, depth * places, channels])
    shape = window.kernel if together == window.size else (*[1] * (rank - 1), together)
    each = []
    for first in range(0, window.size, together):
        read = np.stack([places_of(window, tap, plane) for tap in window.taps[first : first + together]])
        read = (read[:, None] + places * np.arange(depth, dtype=np.int32)[:, None]).reshape(*shape, -1)
        each.append(op.MatMul(dy, op.Gather(rows, read, axis=len(lead))))
    products = op.Concat(*each, axis=len(lead)) if len(each) > 1 else each[0]
    return op.reshape(products, [*lead, *window.kernel, *shape_of(products)[-2:]])

"""Gradient of DeformConv."""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.slices import stretch
from ckplan.autodiff.reading import attr_int, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.autodiff.rules.sampling import between_elements
from ckplan.autodiff.rules.sampling.between_elements import Tap
from ckplan.autodiff.rules.windows import Window, window_of
from ckplan.operators.matching import input_of


@rule("DeformConv", since=19)
def deform_conv(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """A product of the weight with sampled columns, one per tap; both are differentiated, the columns recomputed.

    Four tensors of the size of the columns live at a time: their gradient, an index, what was read, and a product.
    They are of single precision at least: half does not tell where between two elements of many a tap reads.
    """
    x, weight, offset = (required_input(node, index) for index in range(3))
    bias, mask, g = input_of(node, 3), input_of(node, 4), dy[0]
    assert g is not None
    if len(shape_of(x)) != 4:
        raise NoGradientError("only deformable convolutions of images are differentiated")
    if 0 in shape_of(g) or 0 in shape_of(x):
        return [None] * 5
    batch, channels, *sizes = shape_of(x)
    filters, narrow, *kernel = shape_of(weight)
    groups, offset_groups = attr_int(node, "group", 1), attr_int(node, "offset_group", 1)
    window = window_of(node, sizes, shape_of(g)[2:], kernel)
    per_group, count = narrow * window.size, window.size * window.places
    g_rows = op.reshape(g, [batch, groups, filters // groups, window.places])

    wanted = {value for value in (x, offset, mask, weight) if op.wants(value)}
    dx = dweight = doffset = dmask = dbias = None
    if bias is not None and op.wants(bias):
        dbias = op.reduce_sum(g, [0, 2, 3], keepdims=False)
    if wanted:
        sampled = [batch * offset_groups, channels // offset_groups, count]
        rows = op.reshape(weight, [groups, filters // groups, per_group])
        columns = op.MatMul(op.transpose(rows, (0, 2, 1)), g_rows)
        found = between_elements.pull_back(
            op,
            op.wide(op.reshape(x, [*sampled[:2], math.prod(sizes)])),
            op.wide(op.reshape(columns, sampled)),
            _taps(op, offset, g, window, sampled[0]),
            sizes,
            want_data=x in wanted,
            want_places=offset in wanted,
            gain=op.wide(op.reshape(mask, [sampled[0], 1, count])) if mask is not None else None,
            want_gain=mask in wanted,
            want_samples=weight in wanted,
        )
        if found.data is not None:
            dx = op.cast(op.reshape(found.data, shape_of(x)), x.dtype)
        if offset in wanted:
            apart = [op.reshape(p, [sampled[0], window.size, 1, window.places]) for p in found.places if p is not None]
            doffset = op.cast(op.reshape(op.Concat(*apart, axis=2), shape_of(offset)), x.dtype)
        if found.gain is not None and mask is not None:
            dmask = op.cast(op.reshape(found.gain, shape_of(mask)), x.dtype)
        if found.samples is not None:
            again = op.reshape(op.cast(found.samples, x.dtype), [batch, groups, per_group, window.places])
            product = op.MatMul(g_rows, op.transpose(again, (0, 1, 3, 2)))
            dweight = op.reshape(op.reduce_sum(product, [0], keepdims=False), shape_of(weight))
    return [dx, dweight, doffset, dbias, dmask]


def _taps(op: Builder, offset: ir.Value, after: ir.Value, window: Window, images: int) -> list[list[Tap]]:
    """Return the taps along both axes of what each place reads: where a plain convolution would, plus the offset."""
    wide = op.wide(between_elements.gated(op, offset, after))
    apart, dtype = op.reshape(wide, [images, window.size, 2, window.places]), dtype_of(wide)
    taps = []
    for axis, size in enumerate(window.inputs):
        moved = op.reshape(stretch(op, apart, 2, axis, axis + 1), [images, 1, window.size * window.places])
        place = op.Add(moved, _regular(window, axis).astype(dtype))
        one = op.constant(np.ones((1, 1, 1), dtype))
        taps.append(between_elements.linear_taps(op, between_elements.Position(place, one), size, zeros=True))
    return taps


def _regular(window: Window, axis: int) -> np.ndarray:
    """Return what a convolution reads along one axis, (1, 1, taps x places)."""
    starts = np.arange(window.outputs[axis]) * window.strides[axis] - window.begin[axis]
    taps = np.arange(window.kernel[axis]) * window.dilations[axis]
    shape = [1, 1, 1, 1]
    shape[axis], shape[2 + axis] = len(taps), len(starts)
    grid = (taps[:, None] + starts).reshape(shape)
    return np.broadcast_to(grid, (*window.kernel, *window.outputs)).reshape(1, 1, -1)

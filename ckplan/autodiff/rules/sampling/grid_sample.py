"""Gradient of GridSample."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.presence import read_after
from ckplan.autodiff.idioms.slices import part_bounds, slice_axes, stretch
from ckplan.autodiff.reading import attr_int, attr_str, dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.sampling import between_elements
from ckplan.autodiff.rules.sampling.between_elements import Tap

_MOST_PARTS = 4
"""Parts into which a batch goes."""

_PART = 2**16
"""Elements that each of these makes at least."""

_MODES = {"bilinear": "linear", "bicubic": "cubic"}


@rule("GridSample", since=16)
def grid_sample(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Puts dy back onto the elements that each sample was made of; the grid's reads x there and sums over channels.

    Positions on a kink (a whole number, a border) have the derivative of one side; beyond a border it is 0, where the
    sample does not change. Nearest sampling has zero derivative by the grid. A large batch goes in parts: an
    element has 28 bytes for a while, its index as it is given and as the kernel copies it among them. Positions are
    found in single precision: half of it does not tell where between two elements of many a sample lies.
    """
    x, grid, g = required_input(node, 0), required_input(node, 1), dy[0]
    assert g is not None
    if 0 in shape_of(x) or 0 in shape_of(g):
        return [None, None]
    bounds = part_bounds(shape_of(x)[0], size_of(g), _MOST_PARTS, _PART)
    if len(bounds) == 2:
        return _pulled(op, node, x, grid, g)
    late = read_after(op, x, g), read_after(op, grid, g), g
    found = [
        _pulled(op, node, *(slice_axes(op, value, [0], [begin], [end]) for value in late))
        for begin, end in pairwise(bounds)
    ]
    return [None if None in pieces else op.Concat(*pieces, axis=0) for pieces in zip(*found, strict=True)]


def _pulled(op: Builder, node: ir.Node, x: ir.Value, grid: ir.Value, g: ir.Value) -> list[ir.Value | None]:
    """The gradients of some samples of a batch.

    Args:
        op: the builder.
        node: the GridSample, of the whole batch.
        x: of these samples (B, C, *sizes).
        grid: of these samples (B, *places, axes).
        g: the gradient of what they became (B, C, *places).
    """
    batch, channels, *sizes = shape_of(x)
    count = math.prod(shape_of(grid)[1:-1])
    want_data, want_places = op.wants(node.inputs[0]), op.wants(node.inputs[1])
    mode = attr_str(node, "mode", "linear")
    mode = _MODES.get(mode, mode)
    padding = attr_str(node, "padding_mode", "zeros")
    aligned = bool(attr_int(node, "align_corners", 0))
    flat = op.reshape(op.wide(between_elements.gated(op, grid, g)), [batch, count, len(sizes)])
    data, g = op.cast(x, flat.dtype), op.cast(g, flat.dtype)
    taps = [
        _taps(op, _coordinate(op, flat, len(sizes) - 1 - axis), size, mode, padding, aligned)
        for axis, size in enumerate(sizes)
    ]
    found = between_elements.pull_back(
        op,
        op.reshape(data, [batch, channels, math.prod(sizes)]),
        op.reshape(g, [batch, channels, count]),
        taps,
        sizes,
        want_data=want_data,
        want_places=want_places and mode != "nearest",
    )
    dx = None if found.data is None else op.cast(op.reshape(found.data, shape_of(x)), x.dtype)
    if not want_places or mode == "nearest":
        return [dx, None]
    # The grid names its axes from the last to the first.
    columns = [op.reshape(place, [batch, count, 1]) for place in reversed(found.places) if place is not None]
    return [dx, op.cast(op.reshape(op.Concat(*columns, axis=2), shape_of(grid)), grid.dtype)]


def _coordinate(op: Builder, grid: ir.Value, column: int) -> ir.Value:
    """Cut one coordinate out of a grid (B, L, axes), as (B, 1, L)."""
    batch, count, width = shape_of(grid)
    single = stretch(op, grid, 2, column, column + 1) if width > 1 else grid
    return op.reshape(single, [batch, 1, count])


def _taps(op: Builder, coordinate: ir.Value, size: int, mode: str, padding: str, aligned: bool) -> list[Tap]:
    """Return the taps along one axis for coordinates from -1 to 1."""
    scale = (size - 1) / 2 if aligned else size / 2
    mirrors = (0.0, float(size - 1)) if aligned else (-0.5, size - 0.5)
    place = op.Add(op.Mul(coordinate, scale), (size - 1) / 2)
    position = between_elements.Position(place, op.constant(np.full((1, 1, 1), scale, dtype_of(coordinate))))
    if mode == "cubic":
        return between_elements.cubic_taps(op, position, size, padding, mirrors)
    if padding == "reflection":
        position = between_elements.reflected(op, position, *mirrors)
    if padding != "zeros":
        position = between_elements.bordered(op, position, size)
    taps = between_elements.nearest_taps if mode == "nearest" else between_elements.linear_taps
    return taps(op, position, size, padding == "zeros")

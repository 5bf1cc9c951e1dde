"""Gradients of operators that put elements at given places.

``ScatterElements`` and ``ScatterND`` are one thing once the index tuples of the latter are numbers: rows of a matrix
that updates go to. Several updates may go to one row; without a reduction ONNX leaves open which of them stays, so that
the gradient of each is that of the row.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.scattering import scatter_add
from ckplan.autodiff.reading import attr_int, attr_str, dtype_of, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rewrites.spread_rows import spread_rows
from ckplan.autodiff.rules.placement.gather import flat_indices
from ckplan.autodiff.rules.placement.shape import cut
from ckplan.operators.matching import input_of


@dataclass(frozen=True)
class _Places:
    """How to get to the places that updates go to.

    Attributes:
        take: what a tensor like the data has at those places, in the shape of the updates.
        put: combine a tensor like the updates into one like the data, with a reduction.
    """

    take: Callable[[ir.Value], ir.Value]
    put: Callable[[ir.Value, ir.Value, str], ir.Value]


@rule("ScatterElements", fixed=[1])
def scatter_elements(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Updates get the elements they went to; the data get the rest."""
    indices, axis = required_input(node, 1), attr_int(node, "axis", 0)
    spread = spread_rows(op, node)
    if spread is not None:
        rows, along = spread
        slices = _Places(
            lambda value: op.Gather(value, rows, axis=along),
            lambda data, updates, how: scatter_add(op, data, along, rows, updates, how),
        )
        return _scatter(op, node, dy, slices)
    places = _Places(
        lambda value: op.GatherElements(value, indices, axis=axis),
        lambda data, updates, how: op.ScatterElements(data, indices, updates, axis=axis, reduction=how),
    )
    return _scatter(op, node, dy, places)


@rule("ScatterND", since=11, fixed=[1])
def scatter_nd(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Updates get the slices they went to; the data get the rest."""
    data, indices, updates = (required_input(node, i) for i in range(3))
    if 0 in shape_of(updates) or 0 in shape_of(data):
        return [dy[0], None, None]

    def put(into: ir.Value, new: ir.Value, how: str) -> ir.Value:
        return op.ScatterND(into, indices, new) if how == "none" else updated_in_turn(op, into, indices, new, how)

    def take(value: ir.Value) -> ir.Value:
        """One tuple alone is made a list of one: ONNX does not tell the shape of a single number."""
        *lead, depth = shape_of(indices)
        tuples = op.reshape(indices, [math.prod(lead), depth])
        return op.reshape(op.GatherND(value, tuples), shape_of(updates))

    return _scatter(op, node, dy, _Places(take, put))


def updated_in_turn(op: Builder, data: ir.Value, indices: ir.Value, updates: ir.Value, reduction: str) -> ir.Value:
    """Emit what ScatterND makes with a reduction, by ScatterElements, which takes one update after the other.

    onnxruntime's threads race in ScatterND where several updates go to one place, and lose some.

    Args:
        op: the builder.
        data: what is updated.
        indices: [..., tuple]; see ScatterND.
        updates: [..., *rest of the data].
        reduction: ``add``, ``mul``, ``max`` or ``min``.
    """
    *lead, depth = shape_of(indices)
    matrix = math.prod(shape_of(data)[:depth]), math.prod(shape_of(data)[depth:])
    rows = flat_indices(op, indices, shape_of(data), 0)
    new = op.reshape(updates, [math.prod(lead), matrix[1]])
    return op.reshape(scatter_add(op, op.reshape(data, matrix), 0, rows, new, reduction), shape_of(data))


def _scatter(op: Builder, node: ir.Node, dy: Gradients, places: _Places) -> Gradients:
    data, updates, g = required_input(node, 0), required_input(node, 2), dy[0]
    assert g is not None
    if 0 in shape_of(updates) or 0 in shape_of(data):
        return [g, None, None]
    how = attr_str(node, "reduction", "none")
    if how == "mul":
        return _product(op, data, updates, g, places)
    if how in ("max", "min"):
        return _extreme(op, node, g, places)
    ddata = dupdates = None
    if op.wants(data):
        ddata = g if how == "add" else places.put(g, op.zeros(shape_of(updates), g), "none")
    if op.wants(updates):
        dupdates = places.take(g)
    return [ddata, None, dupdates]


def _product(op: Builder, data: ir.Value, updates: ir.Value, g: ir.Value, places: _Places) -> Gradients:
    """Each factor gets the product of the others, also where some are zero."""
    one, dtype = np.ones((), dtype_of(data)), data.dtype
    zeros = [op.Equal(value, 0.0) for value in (data, updates)]
    factors = [op.Where(zero, one, value) for zero, value in zip(zeros, (data, updates), strict=True)]
    flags = [op.Cast(zero, to=dtype) for zero in zeros]
    product = op.Mul(places.put(factors[0], factors[1], "mul"), g)
    count = places.put(flags[0], flags[1], "add")
    found: list[ir.Value | None] = []
    for value, factor, flag in zip((data, updates), factors, flags, strict=True):
        if not op.wants(value):
            found.append(None)
            continue
        whole, zero = (product, count) if value is data else (places.take(product), places.take(count))
        others = op.Cast(op.Equal(op.Sub(zero, flag), 0.0), to=dtype)
        found.append(op.Mul(op.Div(whole, factor), others))
    return [found[0], None, found[1]]


def _extreme(op: Builder, node: ir.Node, g: ir.Value, places: _Places) -> Gradients:
    """Shared equally among those that are the result, as in Max."""
    data, updates, y = required_input(node, 0), required_input(node, 2), node.outputs[0]
    chosen = op.Cast(op.Equal(data, y), to=data.dtype)
    new = op.Cast(op.Equal(updates, places.take(y)), to=data.dtype)
    share = op.Div(g, places.put(chosen, new, "add"))
    ddata = op.Mul(share, chosen) if op.wants(data) else None
    dupdates = op.Mul(places.take(share), new) if op.wants(updates) else None
    return [ddata, None, dupdates]


@rule("TensorScatter", since=24, fixed=[2])
def tensor_scatter(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The update gets what stands where it was written; the cache gets the rest."""
    cache, update, start, g = required_input(node, 0), required_input(node, 1), input_of(node, 2), dy[0]
    assert g is not None
    if 0 in shape_of(update) or 0 in shape_of(cache):
        return [g, None, None]
    rank = len(shape_of(cache))
    axis, mode = attr_int(node, "axis", -2), attr_str(node, "mode", "linear")
    count, length = shape_of(update)[axis], shape_of(cache)[axis]
    dcache = dupdate = None
    if op.wants(cache):
        dcache = op.TensorScatter(g, op.zeros(shape_of(update), g), start, axis=axis, mode=mode)
    if op.wants(update) and start is None:
        dupdate = cut(op, g, axis % rank, 0, count)
    elif op.wants(update) and start is not None:
        column, row = [1] * rank, [1] * rank
        column[0], row[axis] = shape_of(cache)[0], count
        places = op.Add(op.reshape(start, column), np.arange(count).reshape(row))
        if mode == "circular":
            places = op.Mod(places, length)
        dupdate = op.GatherElements(g, op.expand(places, shape_of(update)), axis=axis)
    return [dcache, dupdate, None]

"""Rows that are gathered or scattered element by element, with the index of each row written once for every column.

``torch.gather`` and ``torch.scatter_add`` want an index for each element. Graph networks expand the one of a row, which
costs torch nothing; exporters write the Expand, and onnxruntime makes it: 8 bytes for an element of 4, once more as its
kernel copies them, and once again where a gradient reads them. A Gather takes the index of the row, and what is
scattered goes as `ckplan.autodiff.idioms.scattering` adds rows.
"""

from __future__ import annotations

import math

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.idioms.scattering import scatter_add
from ckplan.autodiff.reading import attr_int, attr_str, required_input, shape_of, size_of
from ckplan.model.traits import is_backward
from ckplan.operators.matching import is_op, made_by

_NO_ROW = 2**40
"""A row that no table has."""


def spread_rows(op: Builder, node: ir.Node) -> tuple[ir.Value, int] | None:
    """The indices of the slices that a GatherElements or ScatterElements goes through element by element, and the axis.

    Args:
        op: builder of the graph, which emits a view of what is there.
        node: one of the two.

    Returns:
        Indices of rank 1; None if they differ within a slice, or only a part of it is read or written.
    """
    data, indices = required_input(node, 0), required_input(node, 1)
    shape = shape_of(indices)
    axis = attr_int(node, "axis", 0) % len(shape)
    whole = (*shape_of(data)[:axis], shape[axis], *shape_of(data)[axis + 1 :])
    if shape != whole or size_of(indices) <= shape[axis] or not size_of(data):
        return None
    known = op.constant_of(indices)
    if known is not None:
        slices = np.moveaxis(known, axis, 0).reshape(shape[axis], -1)
        return (op.constant(slices[:, 0].copy()), axis) if (slices == slices[:, :1]).all() else None
    source = _expanded(indices)
    alone = [1] * len(shape)
    alone[axis] = shape[axis]
    if source is None or _aligned(source, len(shape)) != tuple(alone):
        return None
    return op.reshape(source, (shape[axis],)), axis


def _expanded(value: ir.Value) -> ir.Value | None:
    """What an Expand makes a value of; None if none does."""
    expand = made_by(value, "Expand")
    return None if expand is None else required_input(expand, 0)


def _aligned(value: ir.Value, rank: int) -> tuple[int, ...]:
    """The shape of a value with as many axes as it is expanded to."""
    return (1,) * (rank - len(shape_of(value))) + shape_of(value)


def gather_rows(op: Builder) -> None:
    """Let a Gather take the slices that a GatherElements takes element by element.

    Args:
        op: builder of the forward graph.
    """
    for node in [node for node in op.graph if is_op(node, "GatherElements")]:
        with op.scope(str(node.name), "forward", before=node):
            found = spread_rows(op, node)
            rows = None if found is not None else _numbered_rows(op, node)
        if found is not None:
            become(node, ("", "Gather", ""), [required_input(node, 0), found[0]], [ir.AttrInt64("axis", found[1])])
        elif rows is not None:
            become(node, ("", "Reshape", ""), [rows, op.constant(shape_of(node.outputs[0]))], [])


def _numbered_rows(op: Builder, node: ir.Node) -> ir.Value | None:
    """Emit the rows that a GatherElements takes, each sample its own, such as the neighbours of its points.

    The index is spread over the last axes, and differs along axes before the one that it goes along, or behind it,
    where the data may be copies of each other that an Expand makes. All rows are numbered.

    Returns:
        The rows, of rank 2; None if the index of an element depends on its place in the row, or rows are not whole.
    """
    data, indices = required_input(node, 0), required_input(node, 1)
    source, copied, shape, sizes = _expanded(indices), _expanded(data), shape_of(indices), shape_of(data)
    if source is None or not size_of(indices) or not size_of(data):
        return None
    axis, given = attr_int(node, "axis", 0) % len(shape), _aligned(source, len(shape))
    lead = 1 + max([axis, *(place for place, size in enumerate(given) if size > 1)])
    width = math.prod(shape[lead:])
    if width == 1 or shape[lead:] != sizes[lead:]:
        return None
    own = sizes if copied is None else _aligned(copied, len(shape))
    if copied is not None and (own[axis] != sizes[axis] or own[lead:] != sizes[lead:]):
        own = sizes
    strides = [math.prod(own[place + 1 : lead]) for place in range(lead)]
    first = np.zeros([1] * lead, np.int64)
    for place in range(lead):
        if place != axis and own[place] > 1:
            ahead = [-1 if other == place else 1 for other in range(lead)]
            first = first + strides[place] * np.arange(shape[place]).reshape(ahead)
    index = op.reshape(op.cast(source, ir.DataType.INT64), given[:lead])
    index = op.Where(op.Less(index, np.int64(0)), op.Add(index, np.int64(sizes[axis])), index)
    # The number of no row, at which a Gather fails as well, in the place of one that another sample's row would have.
    index = op.Where(op.Equal(op.Clip(index, np.int64(0), np.int64(sizes[axis] - 1)), index), index, np.int64(_NO_ROW))
    rows = op.expand(op.Add(op.Mul(index, np.int64(strides[axis])), first), shape[:lead])
    table = data if own == sizes or copied is None else copied
    numbers = op.reshape(rows, (math.prod(shape[:lead]),))
    return op.Gather(op.reshape(table, (math.prod(own[:lead]), width)), numbers, axis=0)


def scatter_rows(op: Builder) -> None:
    """Let slices be added to a table as a whole where a ScatterElements adds them element by element.

    That is done when gradients are there: they read the indices of the slices, and not a place for each number.

    Args:
        op: builder of the finished graph.
    """
    for node in [node for node in op.graph if is_op(node, "ScatterElements") and not is_backward(node)]:
        data, updates = required_input(node, 0), required_input(node, 2)
        with op.scope(str(node.name), "forward", before=node):
            found = spread_rows(op, node)
            if found is None:
                continue
            made = scatter_add(op, data, found[1], found[0], updates, attr_str(node, "reduction", "none"))
            shape = op.constant(shape_of(data))
        become(node, ("", "Reshape", ""), [made, shape], [])

"""Rows that are gathered or scattered element by element, with the index of each row written once for every column.

``torch.gather`` and ``torch.scatter_add`` want an index for each element. Graph networks expand the one of a row, which
costs torch nothing; exporters write the Expand, and onnxruntime makes it: 8 bytes for an element of 4, once more as its
kernel copies them, and once again where a gradient reads them. A Gather takes the index of the row, and what is
scattered goes as `ckplan.autodiff.scattering` adds rows.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.reading import attr_int, attr_str, required_input, shape_of, size_of
from ckplan.autodiff.scattering import scatter_add
from ckplan.model.traits import is_backward
from ckplan.operators.matching import is_op, made_by


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
    expand = made_by(indices, "Expand")
    source = None if expand is None else required_input(expand, 0)
    alone = [1] * len(shape)
    alone[axis] = shape[axis]
    if source is None or [*[1] * (len(shape) - len(shape_of(source))), *shape_of(source)] != alone:
        return None
    return op.reshape(source, (shape[axis],)), axis


def gather_rows(op: Builder) -> None:
    """Let a Gather take the slices that a GatherElements takes element by element.

    Args:
        op: builder of the forward graph.
    """
    for node in [node for node in op.graph if is_op(node, "GatherElements")]:
        with op.scope(str(node.name), "forward", before=node):
            found = spread_rows(op, node)
        if found is not None:
            become(node, ("", "Gather", ""), [required_input(node, 0), found[0]], [ir.AttrInt64("axis", found[1])])


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

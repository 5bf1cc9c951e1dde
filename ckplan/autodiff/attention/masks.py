"""Masks of attentions in pieces: a part of a mask is computed of parts of what the mask is computed of.

Files choose a number for each query and key, 0 or the lowest there is, by truth values that take a quarter as much, and
find these of a table that the file fixes and of one row of tokens for each member of the batch. So what is made in a
piece anyway is made of these, where they take less than the mask, and no mask of all queries and keys is there.
"""

from __future__ import annotations

from collections.abc import Callable

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import copy_nodes
from ckplan.autodiff.reading import dtype_of, shape_of, size_of
from ckplan.model.node_reads import fixed_tensor
from ckplan.operators.table import ELEMENTWISE


def part_of_mask(
    inner: Builder,
    mask: ir.Value,
    parts: dict[ir.Value, ir.Value],
    is_cut: Callable[[tuple[int, ...]], bool],
    cut: Callable[[ir.Value], ir.Value],
) -> ir.Value:
    """Emit a part of a mask.

    Args:
        inner: builder of the body that needs the part, or of the graph itself.
        mask: of the graph around a body.
        parts: the parts of values that are known; what is emitted is added.
        is_cut: whether values of a shape have a part for each piece; others are the same in each.
        cut: emits the part of a value.
    """
    if mask in parts:
        return parts[mask]
    node = mask.producer()
    if node is None or not _is_computed_of_less(mask, is_cut):
        parts[mask] = cut(mask)
        return parts[mask]
    for operand in node.inputs:
        if operand is not None and is_cut(shape_of(operand)):
            part_of_mask(inner, operand, parts, is_cut, cut)
    (copy,) = copy_nodes(inner, [node], parts, "forward")
    inner.insert(copy)
    inner.infer(copy)
    return parts[mask]


def _is_computed_of_less(mask: ir.Value, is_cut: Callable[[tuple[int, ...]], bool]) -> bool:
    return _bytes_needed(mask, is_cut) < size_of(mask) * dtype_of(mask).itemsize


def _bytes_needed(value: ir.Value, is_cut: Callable[[tuple[int, ...]], bool]) -> int:
    """Bytes of what a value can be computed of, element by element, at the least; what the file fixes takes none."""
    if fixed_tensor(value) is not None:
        return 0
    whole, node = size_of(value) * dtype_of(value).itemsize, value.producer()
    if node is None or node.domain or node.op_type not in ELEMENTWISE or not is_cut(shape_of(value)):
        return whole
    return min(whole, sum(_bytes_needed(operand, is_cut) for operand in node.inputs if operand is not None))

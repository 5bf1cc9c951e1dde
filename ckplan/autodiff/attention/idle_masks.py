"""Additions of zeros that the file fixes, such as the mask of an attention in which every key is seen.

Exporters write the mask of an attention for each batch, query and key, also where every key is seen: a table of zeros
is chosen by conditions that all hold, and added to the scores of each layer. A sum with zeros is the other operand, and
the table is read by nothing else.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of
from ckplan.operators.matching import is_op

_VIEWS = frozenset({"Cast", "Expand", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"})
_MOST_STEPS = 8
"""Nodes between the numbers that are chosen from and the sum, at most."""


def drop_idle_masks(op: Builder, held: Container[ir.Value]) -> None:
    """Let the readers of sums with fixed zeros read the other operand, where that has the shape of the sum.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated: neither such a sum nor zeros.
    """
    for node in list(op.graph):
        if not is_op(node, "Add") or node.outputs[0].is_graph_output() or node.outputs[0] in held:
            continue
        for other, mask in (node.inputs, node.inputs[::-1]):
            assert other is not None
            if shape_of(other) == shape_of(node.outputs[0]) and is_zero(op, mask, held):
                node.outputs[0].replace_all_uses_with(other)
                op.graph.remove(node, safe=True)
                break


def is_zero(op: Builder, value: ir.Value | None, held: Container[ir.Value], steps: int = _MOST_STEPS) -> bool:
    """Whether all elements of a value are zeros that the file fixes.

    Args:
        op: builder of the forward graph.
        value: what may be zero; None is not.
        held: parameters, which may be zeros for now.
        steps: how many nodes may lie between the numbers that are chosen from and the value.
    """
    if value is None or value in held:
        return False
    known = op.constant_of(value)
    if known is not None:
        return known.size > 0 and not known.any()
    node = value.producer()
    if node is None or node.domain or not steps:
        return False
    if node.op_type == "Where":
        chosen = op.constant_of(node.inputs[0])
        if chosen is None or chosen.any() != chosen.all():
            return False
        return is_zero(op, node.inputs[1 if chosen.all() else 2], held, steps - 1)
    return node.op_type in _VIEWS and is_zero(op, node.inputs[0], held, steps - 1)

"""Keeps onnxruntime from fusing in a planned file what it does not fuse without a plan.

Where a forward node runs again, the backward pass reads the later copy, so that the earlier one may have a single
reader left, as most fusions ask for. A fused kernel rounds otherwise than the nodes that it replaces, and makes none of
the values between them: so the last of them reads one of those through an alias that no optimiser sees through.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.writer.control_edges import ControlEdges, is_control, read_instead

_MOVING = frozenset(
    {"Concat", "Expand", "Gather", "Identity", "Reshape", "Slice", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that only move data: in whose place onnxruntime runs another of them, the values are the same."""


def fence(nodes: Sequence[ir.Node], executed: ir.Model, edges: ControlEdges) -> int:
    """Hide a value inside of each fusion that was not planned, or not planned so.

    Args:
        nodes: the nodes of the file.
        executed: what onnxruntime executes of it.
        edges: maker of the aliases.

    Returns:
        How many values got an alias.
    """
    makers = {str(value.name): node for node in executed.graph for value in node.outputs if value.name}
    before = edges.count
    for node in nodes:
        made = makers.get(str(node.outputs[0].name)) if node.outputs else None
        if made is None or is_control(node):
            continue
        if (made.domain, made.op_type) == (node.domain, node.op_type):
            if node.op_type == "FusedConv" and len(node.inputs) > 3 and _name(node, 1) != _name(made, 1):
                # The summand is a convolution as well, and the addition became part of that one.
                summand = node.inputs[3]
                assert summand is not None
                node.replace_input_with(3, edges.alias(summand, summand))
            continue
        if {made.op_type, node.op_type} <= _MOVING or made.op_type == "Cast":
            continue
        inner = [v for v in node.inputs if v is not None and str(v.name) not in makers and v.producer() is not None]
        if inner:
            read_instead(node, inner[0], edges.alias(inner[0], inner[0]))
    return edges.count - before


def _name(node: ir.Node, place: int) -> str | None:
    value = node.inputs[place]
    return None if value is None else value.name

"""Whether a node is of one of certain operators of ONNX's own domain, and what it reads at a place."""

from __future__ import annotations

from collections.abc import Container
from typing import TypeGuard

import onnx_ir as ir


def is_op(node: ir.Node | None, op_types: str | Container[str]) -> TypeGuard[ir.Node]:
    """Whether there is a node, and its operator is ONNX's own of a name, or of one of some names."""
    if node is None or node.domain:
        return False
    return node.op_type == op_types if isinstance(op_types, str) else node.op_type in op_types


def made_by(value: ir.Value | None, op_types: str | Container[str]) -> ir.Node | None:
    """The node that makes a value, if there is one and it is of such an operator; see `is_op`."""
    node = None if value is None else value.producer()
    return node if is_op(node, op_types) else None


def input_of(node: ir.Node, index: int) -> ir.Value | None:
    """An input of a node, None if it is absent or left out."""
    return node.inputs[index] if index < len(node.inputs) else None

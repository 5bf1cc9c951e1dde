"""Operands that onnxruntime stretches to each other's shapes, and what shape a number has among them to be fast."""

from __future__ import annotations

import math

#: Operators whose operands are stretched to each other's shapes.
BROADCASTING = frozenset(
    {"Add", "Div", "Max", "Min", "Mul", "Pow", "Sub", "Where"}
    | {"Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual"}
)


def shape_of_number(op_type: str, beside: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of a number among the inputs of a node.

    onnxruntime goes through a tensor whose last axis has one element number by number where the other operand has fewer
    axes, and takes 30 times as long as with one of as many.

    Args:
        op_type: of the node.
        beside: shape of the tensor that the number stands beside.
    """
    slow = op_type in BROADCASTING and beside[-1:] == (1,) and math.prod(beside) > 1
    return (1,) * len(beside) if slow else ()

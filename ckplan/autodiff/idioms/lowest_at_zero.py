"""Values that are never negative, so that zero is the lowest: what is cut off there, and sums of squares.

Where such a value is zero it has no slope, and a root of it an infinite one: their product is no number, where the norm
that is meant has the slope 0.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.operators.matching import input_of

_ARRANGING = {"Expand", "Flatten", "Identity", "Reshape", "Squeeze", "Transpose", "Unsqueeze"}

_PASSING = _ARRANGING | {"ReduceMax", "ReduceMean", "ReduceSum"}
"""Operators whose output is never negative if their first input is not."""


def infinite_at_zero(op: Builder, value: ir.Value) -> ir.Value:
    """Return a value with infinity in place of zero: what is divided by it is 0 there."""
    return op.Where(op.Greater(value, 0.0), value, math.inf)


def is_lowest_at_zero(op: Builder, value: ir.Value) -> bool:
    """Whether a value is known to be never negative, and not known to stay above zero."""
    asked, seen = [value], set[ir.Value]()
    while asked:
        value = asked.pop()
        if value not in seen:
            seen.add(value)
            behind = _depends_on(op, value)
            if behind is None:
                return False
            asked.extend(behind)
    return True


def _depends_on(op: Builder, value: ir.Value) -> list[ir.Value] | None:
    """What has to be lowest at zero for a value to be so; None if it is not known to be."""
    node = value.producer()
    if node is None or node.domain:
        return None
    read = [known for known in node.inputs if known is not None]
    fixed = [op.constant_of(known) for known in read]
    computed = [known for known, content in zip(read, fixed, strict=True) if content is None]
    numbers = [content for content in fixed if content is not None]
    positive = all((content > 0).all() for content in numbers)
    match node.op_type:
        case "Abs" | "ReduceL1" | "ReduceL2" | "ReduceSumSquare" | "Relu":
            return []
        case operator if operator in _PASSING:
            return read[:1]
        case "Add" | "Sum":
            return read
        case "Mul" if read[0] is read[1]:
            return []
        case "Mul" | "Div" if positive:
            return computed
        case "Pow" if positive and computed == read[:1]:
            return [] if (numbers[0] % 2 == 0).all() else computed
        case "Clip" if input_of(node, 1) is None:
            return read[:1]
        case "Clip":
            return None if fixed[1] is not None and (fixed[1] > 0).all() else []
        case "Max" if numbers and not positive:
            return []
    return None

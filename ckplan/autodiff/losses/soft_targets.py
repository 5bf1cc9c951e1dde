"""Targets of a softmax as rows of probabilities: one for the label and another for all other classes.

That is how label smoothing is written where losses are sums over the classes, as in T5X.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import attr_int, required_input, shape_of
from ckplan.operators.matching import input_of

_INTEGERS = (ir.DataType.INT32, ir.DataType.INT64)
_ARITHMETIC = ("Add", "Sub", "Mul", "Div")


@dataclass(frozen=True)
class SoftTarget:
    """Rows of numbers, of one class a number more than of the others.

    Attributes:
        labels: the class of each row, of an integer type; one that is none of the classes is no class.
        more: what its number is more than that of the others.
        others: the number of all other classes.
        wraps: whether labels below zero count from the last class.
    """

    labels: ir.Value
    more: float
    others: float
    wraps: bool

    def picks(self, op: Builder, classes: int) -> tuple[ir.Value, ir.Value]:
        """Emit whether there is a class for each label, and which: the first where there is none."""
        first, zero = -classes if self.wraps else 0, np.zeros((), np.dtype(self.labels.dtype.numpy()))  # type: ignore[union-attr]
        there = op.And(op.GreaterOrEqual(self.labels, first), op.Less(self.labels, classes))
        return there, op.Where(there, self.labels, zero)


def soft_target_of(op: Builder, value: ir.Value, classes: int) -> SoftTarget | None:
    """What rows of ``classes`` numbers are, behind the last axis of a value; None if they are not of this form."""
    node = value.producer()
    if node is None or node.domain or shape_of(value)[-1:] != (classes,):
        return None
    if node.op_type == "OneHot":
        return _one_hot(op, node)
    if node.op_type == "Equal":
        return _equal(op, node, classes)
    if node.op_type == "Cast":
        found = soft_target_of(op, required_input(node, 0), classes)
        whole = found is not None and {found.more, found.others} <= {0.0, 1.0}
        return found if whole or value.dtype in (ir.DataType.FLOAT, ir.DataType.DOUBLE) else None
    if node.op_type == "Where":
        return _chosen(op, node, classes)
    return _computed(op, node, classes) if node.op_type in _ARITHMETIC else None


def _one_hot(op: Builder, node: ir.Node) -> SoftTarget | None:
    labels, numbers = required_input(node, 0), op.constant_of(input_of(node, 2))
    rank = len(shape_of(node.outputs[0]))
    if numbers is None or labels.dtype not in _INTEGERS or attr_int(node, "axis", -1) % rank != rank - 1:
        return None
    rest, label = (float(number) for number in numbers.reshape(-1))
    return SoftTarget(labels, label - rest, rest, wraps=True)


def _equal(op: Builder, node: ir.Node, classes: int) -> SoftTarget | None:
    for labels, numbers in (node.inputs, reversed(node.inputs)):
        known = op.constant_of(numbers)
        counted = known is not None and np.array_equal(known.reshape(-1), np.arange(classes))
        if counted and labels is not None and labels.dtype in _INTEGERS and shape_of(labels)[-1:] == (1,):
            return SoftTarget(labels, 1.0, 0.0, wraps=False)
    return None


def _chosen(op: Builder, node: ir.Node, classes: int) -> SoftTarget | None:
    found = soft_target_of(op, required_input(node, 0), classes)
    label, rest = (op.number_of(input_of(node, place)) for place in (1, 2))
    if found is None or label is None or rest is None or (found.more, found.others) != (1.0, 0.0):
        return None
    return replace(found, more=label - rest, others=rest)


def _computed(op: Builder, node: ir.Node, classes: int) -> SoftTarget | None:
    left, right = required_input(node, 0), required_input(node, 1)
    found, number = soft_target_of(op, left, classes), op.number_of(right)
    if found is None and node.op_type in ("Add", "Mul"):
        found, number = soft_target_of(op, right, classes), op.number_of(left)
    if found is None or number is None:
        return None
    if node.op_type in ("Add", "Sub"):
        return replace(found, others=found.others + (number if node.op_type == "Add" else -number))
    factor = number if node.op_type == "Mul" else 1 / number
    return replace(found, more=found.more * factor, others=found.others * factor)

"""What a file fixes of masks, whether it stores them or has them computed."""

from __future__ import annotations

from collections.abc import Callable, Container

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import required_input, shape_of, size_of
from ckplan.model.inference.node_evaluation import evaluated
from ckplan.operators.matching import is_op
from ckplan.operators.table import ELEMENTWISE

Fixed = Callable[[ir.Value | None], np.ndarray | None]
"""Tells what the file fixes a value to; None where anything else counts."""

_MOST_ELEMENTS = 2**26
"""Of a value that is looked at."""
_MOST_STEPS = 24
"""Nodes between what is stored and a mask, at most."""
_NOWHERE = np.zeros((1, 1), dtype=bool)


def fixed_arrays(op: Builder, held: Container[ir.Value]) -> Fixed:
    """Return a function that tells what values are computed of what the file stores, and remembers it.

    Axes before the last two along which all is the same have one element.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated, and parameters: none of them is fixed.
    """
    known: dict[ir.Value, np.ndarray | None] = {}

    def fixed(value: ir.Value | None, steps: int = _MOST_STEPS) -> np.ndarray | None:
        if value is None or value in held or size_of(value) > _MOST_ELEMENTS:
            return None
        if value not in known:
            stored = op.constant_of(value)
            made = computed(value.producer(), steps) if stored is None else stored
            known[value] = None if made is None else _once(made)
        return known[value]

    def computed(node: ir.Node | None, steps: int) -> np.ndarray | None:
        if node is None or node.domain or not steps or len(node.outputs) > 1:
            return None
        operands: list[np.ndarray | None] = []
        for read in node.inputs:
            known_once = fixed(read, steps - 1)
            if read is not None and known_once is None:
                return None
            if read is None or known_once is None or node.op_type in ELEMENTWISE:
                operands.append(known_once)
            else:  # it may take an axis apart, or count along it
                operands.append(np.broadcast_to(known_once, shape_of(read)))
        made = evaluated(node, operands, op.opset_imports[""]) if any(one is not None for one in operands) else None
        return None if made is None else made[0]

    return fixed


def _once(array: np.ndarray) -> np.ndarray:
    """An array of which axes before the last two have one element if all along them is the same."""
    for axis in range(array.ndim - 2):
        first = array.take([0], axis) if array.shape[axis] > 1 else array
        if np.array_equal(np.broadcast_to(first, array.shape), array):
            array = first
    return array


def certainly(condition: ir.Value, fixed: Fixed) -> tuple[np.ndarray, np.ndarray]:
    """Return where a condition is true, and where it is false, whatever is fed.

    Args:
        condition: of truth values.
        fixed: tells what the file fixes.
    """
    known = fixed(condition)
    if known is not None:
        known = np.atleast_2d(known)
        return known, ~known
    node = condition.producer()
    if not is_op(node, ("And", "Not", "Or")):
        return _NOWHERE, _NOWHERE
    parts = [certainly(required_input(node, index), fixed) for index in range(len(node.inputs))]
    if node.op_type == "Not":
        return parts[0][::-1]
    (first_true, first_false), (second_true, second_false) = parts
    if node.op_type == "And":
        return first_true & second_true, first_false | second_false
    return first_true | second_true, first_false & second_false

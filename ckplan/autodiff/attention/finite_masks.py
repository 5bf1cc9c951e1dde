"""Masks of attention without minus infinity: behind them no row of a softmax is 0 / 0.

The lowest number in the place of minus infinity hides a key as well: e to the power of a sum with it is 0. Of a row of
which it hides all keys the softmax is some numbers, so what is left of rows is told beside the mask.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import dtype_of, is_floating, required_input, shape_of
from ckplan.operators.matching import is_op

_PRODUCTS = frozenset({"Conv", "Einsum", "Gemm", "MatMul"})
_BOUNDED = frozenset({"Sigmoid", "Softmax", "Tanh"})
_OF_ALL = frozenset({"Add", "Mul", "Neg", "Sub"})
"""Operators whose results are finite if all that they read is, but for an overflow."""
_OF_FIRST = frozenset(
    {"Cast", "Expand", "Gather", "GatherND", "Identity", "Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that move what they read first."""
_MOST_STEPS = 12
"""Nodes between a mask and a softmax, at most."""


@dataclass(frozen=True)
class Mask:
    """A mask that is added to scores.

    Attributes:
        finite: the mask with the lowest number in the place of minus infinity.
        left: 1 for each row of which something is left, 0 for others; None where something is left of every row.
    """

    finite: ir.Value
    left: ir.Value | None


def is_finite(op: Builder, value: ir.Value | None, steps: int = _MOST_STEPS) -> bool:
    """Whether no element of a value is infinite or not a number, as far as nothing overflows on the way.

    Args:
        op: builder of the forward graph.
        value: scores, or a mask; None for what is left out.
        steps: how many nodes may lie on the way.
    """
    if value is None:
        return True
    if value.const_value is not None and not value.is_graph_input():
        return _holds_numbers(value.const_value.numpy())
    node = value.producer()
    if node is None or node.domain or not steps:
        return False
    if node.op_type in _PRODUCTS | _BOUNDED:
        return True
    read = [operand for operand in _finite_because_of(op, node) if operand is not None]
    return bool(read) and all(not is_floating(operand) or is_finite(op, operand, steps - 1) for operand in read)


def _finite_because_of(op: Builder, node: ir.Node) -> Sequence[ir.Value | None]:
    """Which of a node's inputs are to be finite for its result to be; none where that does not tell."""
    if node.op_type in _OF_ALL:
        return node.inputs
    if node.op_type in _OF_FIRST:
        return node.inputs[:1]
    if node.op_type == "Where":
        return node.inputs[1:]
    divisor = op.constant_of(node.inputs[1]) if node.op_type == "Div" else None
    return node.inputs[:1] if divisor is not None and divisor.all() else ()


def _holds_numbers(array: np.ndarray) -> bool:
    """Whether all elements are finite, and a score that is added makes none infinite.

    The lowest number in half precision takes a score of -16 to get there, that in single precision one of -1e31.
    """
    if not np.issubdtype(array.dtype, np.floating):
        return True
    half = array.dtype == np.float16
    return bool(np.all(np.abs(array) <= np.finfo(array.dtype).max / (2 if half else 1)))


def finite_mask(op: Builder, mask: ir.Value) -> Mask:
    """Make a mask without minus infinity, before the first node that reads the mask.

    Args:
        op: builder of the forward graph.
        mask: (..., queries, keys), or what broadcasts to that; no gradient goes to it.
    """
    lowest = np.finfo(dtype_of(mask)).min
    known = op.constant_of(mask)
    if known is not None:
        some = np.asarray((known > -np.inf).any(axis=-1, keepdims=True))
        return Mask(
            op.constant(np.maximum(known, lowest)), None if some.all() else op.constant(some.astype(known.dtype))
        )
    readers = {use.node for use in mask.uses()}
    first = next(node for node in op.graph if node in readers)
    with op.scope(f"{mask.name}/finite", "forward", before=first):
        return _chosen_mask(op, mask, lowest) or Mask(
            op.Max(mask, float(lowest)), op.Cast(op.Greater(_maxima(op, mask), float("-inf")), to=mask.dtype)
        )


def _chosen_mask(op: Builder, mask: ir.Value, lowest: float) -> Mask | None:
    """The mask without minus infinity where a truth value chooses that or a number, which takes a quarter as much."""
    node = mask.producer()
    if not is_op(node, "Where"):
        return None
    choices = [op.constant_of(choice) for choice in node.inputs[1:]]
    if any(choice is None or choice.size != 1 for choice in choices):
        return None
    numbers = [float(choice.item()) for choice in choices if choice is not None]
    condition, kept = required_input(node, 0), [number > -np.inf for number in numbers]
    if kept[0] == kept[1] or shape_of(condition) != shape_of(mask):
        return None
    finite = op.Where(condition, *(np.full((), max(n, lowest), dtype_of(mask)) for n in numbers))
    seen = op.Cast(condition if kept[0] else op.Not(condition), to=ir.DataType.UINT8)
    return Mask(finite, op.Cast(_maxima(op, seen), to=mask.dtype))


def _maxima(op: Builder, value: ir.Value) -> ir.Value:
    return op.ReduceMax(value, np.asarray([-1], dtype=np.int64), keepdims=1)

"""Which scores of an attention the file hides, whatever is fed.

A mask that the file fixes adds so low a number to a score, or puts it in the place of one, that e to the power of it is
0 beside that of a score that is shown. Where each query is shown a key, the hidden ones could as well not be there.
"""

from __future__ import annotations

from functools import reduce

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.attention.fixed import Fixed
from ckplan.autodiff.attention.pattern import Attention
from ckplan.autodiff.reading import required_input, shape_of
from ckplan.operators.matching import is_op

_HIDES = -9e3
"""What is added to hidden scores, at most: files have -10,000 and less. Scores that differ by so much are none that
anybody trains with."""


def hidden_scores(attention: Attention, fixed: Fixed) -> np.ndarray | None:
    """Return which scores are hidden, [queries, keys], in all heads and samples alike.

    None where that cannot be told, or where a query is shown nothing: its softmax is some numbers then, or none.

    Args:
        attention: the attention.
        fixed: tells what the file fixes.
    """
    queries, keys = shape_of(attention.softmax.outputs[0])[-2:]
    hidden = _hidden(required_input(attention.softmax, 0), attention, fixed)
    if hidden is None or not hidden.any() or not _keeps_zeros(attention, fixed):
        return None
    hidden = np.broadcast_to(hidden, (*hidden.shape[:-2], queries, keys))
    if hidden.all(axis=-1).any():
        return None
    return np.asarray(hidden.reshape(-1, queries, keys).all(axis=0))


def _keeps_zeros(attention: Attention, fixed: Fixed) -> bool:
    """Whether what stands between the softmax and the product with the values leaves zeros what they are."""
    value = required_input(attention.result, 0)
    while (node := value.producer()) is not attention.softmax:
        if is_op(node, "Where") and (other := fixed(node.inputs[1])) is not None and not other.any():
            value = required_input(node, 2)
        elif is_op(node, "Cast"):
            value = required_input(node, 0)
        else:
            return False
    return True


def _hidden(value: ir.Value, attention: Attention, fixed: Fixed) -> np.ndarray | None:
    """Which elements are lower than any score that is shown, as far as the last two axes go; None if nobody knows."""
    node = value.producer()
    if node is None or node not in attention.nodes:
        known = fixed(value)
        return None if known is None else np.atleast_2d(known <= _HIDES)
    if node is attention.scores:
        return np.zeros((1, 1), dtype=bool)
    operands = [required_input(node, index) for index in range(len(node.inputs))]
    match node.op_type:
        case "Add":
            first, second = (_hidden(operand, attention, fixed) for operand in operands)
            return None if first is None or second is None else first | second
        case "Max":
            lows = [low for operand in operands if (low := _hidden(operand, attention, fixed)) is not None]
            return reduce(np.logical_and, lows) if len(lows) == len(operands) else None
        case "Where":
            chosen = fixed(operands[0])
            first, second = (_hidden(operand, attention, fixed) for operand in operands[1:])
            return None if chosen is None or first is None or second is None else np.where(chosen, first, second)
        case "Cast":
            return _hidden(operands[0], attention, fixed)
        case _:  # what any other function makes is shown, if all is that it is made of
            inside = [operand for operand in operands if operand.producer() in attention.nodes]
            parts = [_hidden(operand, attention, fixed) for operand in inside]
            return None if any(part is None or part.any() for part in parts) else np.zeros((1, 1), dtype=bool)

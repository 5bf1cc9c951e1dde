"""Which scores of an attention its mask hides, whatever is fed.

A mask adds so low a number to a score, or puts it in the place of one, that e to the power of it is 0 beside that of a
score that is shown. The file fixes such a mask, or a part of it: a causal one where a mask for padding is fed. Where
each query is shown a key, or the results of others count for nothing, the hidden scores could as well not be there.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import reduce

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.attention.fixed import Fixed, certainly
from ckplan.autodiff.attention.pattern import Attention
from ckplan.autodiff.reading import required_input, shape_of
from ckplan.operators.matching import is_op

_HIDES = -9e3
"""What is added to hidden scores, at most: files have -10,000 and less. Scores that differ by so much are none that
anybody trains with."""
_NOTHING = np.zeros((1, 1), dtype=bool)
_UNDERSTOOD = frozenset({"Add", "Cast", "Div", "Max", "Mul", "Neg", "Sigmoid", "Softplus", "Sqrt", "Tanh", "Where"})
"""Operators between scores and a softmax of which it is known what they leave hidden, or shown."""


@dataclass(frozen=True)
class _Hidden:
    """What is known of scores, or of a mask, as far as the last two axes go.

    Attributes:
        always: what is hidden, whatever is fed.
        sometimes: whether more is hidden, if the right thing is fed.
    """

    always: np.ndarray
    sometimes: bool = False


def hidden_scores(attention: Attention, fixed: Fixed, *, may_show_nothing: bool) -> np.ndarray | None:
    """Return which scores are hidden, [queries, keys], in all heads and samples alike.

    None where that cannot be told, or where a query may be shown nothing: its softmax is some numbers then, or none.

    Args:
        attention: the attention.
        fixed: tells what the file fixes.
        may_show_nothing: whether the results of a query that is shown nothing are multiplied by 0.
    """
    queries, keys = shape_of(attention.softmax.outputs[0])[-2:]
    found = _hidden(required_input(attention.softmax, 0), attention, fixed)
    if found is None or not found.always.any() or not _keeps_zeros(attention, fixed):
        return None
    hidden = np.broadcast_to(found.always, (*found.always.shape[:-2], queries, keys))
    if not may_show_nothing and (found.sometimes or hidden.all(axis=-1).any()):
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


def _hidden(value: ir.Value, attention: Attention, fixed: Fixed) -> _Hidden | None:
    """What is known of a value between the product that makes the scores and the softmax, or of a mask; else None."""
    known = fixed(value)
    if known is not None:
        return _Hidden(np.atleast_2d(known <= _HIDES))
    node = value.producer()
    if node is attention.scores:
        return _Hidden(_NOTHING)
    if node is None or node.domain or node.op_type not in _UNDERSTOOD:
        return None
    operands = [operand for operand in node.inputs if operand is not None]
    if node.op_type == "Where":
        return _hidden_by_choice(node, attention, fixed)
    if node.op_type in ("Div", "Mul"):  # by whatever: of scores that are shown
        operands = operands[:1] if operands[0].producer() in attention.nodes else operands[1:]
    parts = [part for operand in operands if (part := _hidden(operand, attention, fixed)) is not None]
    if len(parts) < len(operands):
        return None
    always, sometimes = [part.always for part in parts], any(part.sometimes for part in parts)
    match node.op_type:
        case "Add":
            return _Hidden(np.logical_or(*always), sometimes)
        case "Max":
            return _Hidden(reduce(np.logical_and, always), sometimes)
        case "Cast":
            return parts[0]
        case _:
            return None if sometimes or always[0].any() else parts[0]


def _hidden_by_choice(node: ir.Node, attention: Attention, fixed: Fixed) -> _Hidden | None:
    condition, *operands = (required_input(node, index) for index in range(3))
    parts = [_hidden(operand, attention, fixed) for operand in operands]
    if parts[0] is None or parts[1] is None:
        return None
    true, false = certainly(condition, fixed)
    first, second = parts[0].always, parts[1].always
    always = (true & first) | (false & second) | (first & second)
    settled = bool((true | false).all())
    possible = not settled and (bool(first.any()) or bool(second.any()))
    return _Hidden(always, possible or parts[0].sometimes or parts[1].sometimes)

"""Gradients of softmax and its logarithm, from the output."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_int, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.softmaxes.attention_scores import scores_gradient


@rule("Softmax", since=13)
def softmax(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Gradient y (dy - sum(dy y))."""
    return [from_probabilities(op, node.outputs[0], dy[0], attr_int(node, "axis", -1))]


def from_probabilities(op: Builder, y: ir.Value, dy: ir.Value | None, axis: int) -> ir.Value:
    """Emit the gradient of a softmax from its result and the gradient of that.

    Attention over a row that is masked as a whole is 0 / 0, and what reads it puts zeros there by a Where. No gradient
    comes back to such a row, and none may come of it: not a number times zero is not zero.
    """
    if _is_replaced_in_places(y):
        y = op.Where(op.IsNaN(y), 0.0, y)
    elif dy is not None and axis in (-1, len(shape_of(y)) - 1) and (found := scores_gradient(op, y, dy)):
        return found
    total = op.reduce_sum(op.Mul(dy, y), [axis])
    return op.Mul(op.Sub(dy, total), y)


def _is_replaced_in_places(value: ir.Value) -> bool:
    """Say whether a Where reads a value, maybe behind conversions of its type."""
    return any(
        reader.op_type == "Where"
        or (reader.op_type in ("Cast", "CastLike", "Identity") and _is_replaced_in_places(reader.outputs[0]))
        for reader in value.consumers()
    )


@rule("LogSoftmax", since=13)
def log_softmax(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Gradient dy - exp(y) sum(dy)."""
    assert dy[0] is not None
    total = op.reduce_sum(dy[0], [attr_int(node, "axis", -1)])
    return [op.Sub(dy[0], op.Mul(op.Exp(node.outputs[0]), total))]

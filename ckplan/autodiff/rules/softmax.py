"""Gradients of softmax and its logarithm, from the output."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, attr_int
from ckplan.autodiff.registry import rule


@rule("Softmax", since=13)
def softmax(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Gradient y (dy - sum(dy y))."""
    y = node.outputs[0]
    total = op.reduce_sum(op.Mul(dy[0], y), [attr_int(node, "axis", -1)])
    return [op.Mul(op.Sub(dy[0], total), y)]


@rule("LogSoftmax", since=13)
def log_softmax(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Gradient dy - exp(y) sum(dy)."""
    assert dy[0] is not None
    total = op.reduce_sum(dy[0], [attr_int(node, "axis", -1)])
    return [op.Sub(dy[0], op.Mul(op.Exp(node.outputs[0]), total))]

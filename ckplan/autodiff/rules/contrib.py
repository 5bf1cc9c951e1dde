"""Gradients of operators of com.microsoft that standard operators cannot say."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, shape_of
from ckplan.autodiff.registry import rule


@rule("Inverse", domain="com.microsoft")
def inverse(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Gradient -Y^T dY Y^T, from the output. The forward node stays what it is: ONNX has no inverse."""
    y = node.outputs[0]
    rank = len(shape_of(y))
    turned = op.Transpose(y, perm=[*range(rank - 2), rank - 1, rank - 2])
    return [op.Neg(op.MatMul(op.MatMul(turned, dy[0]), turned))]

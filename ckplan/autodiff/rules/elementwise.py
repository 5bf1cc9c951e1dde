"""Gradients of elementwise functions of one input."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.registry import rule

Gradients = Sequence[ir.Value | None]


@rule("Tanh")
def tanh(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 - y^2, from the output."""
    y = node.outputs[0]
    return [op.Mul(dy[0], op.Sub(1.0, op.Mul(y, y)))]

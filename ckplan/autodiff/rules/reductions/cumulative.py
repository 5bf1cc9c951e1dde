"""Gradient of the sum along an axis."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_int
from ckplan.autodiff.registry import rule


@rule("CumSum", fixed=[1])
def cumsum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The cumulative sum from the other end."""
    exclusive, reverse = attr_int(node, "exclusive", 0), attr_int(node, "reverse", 0)
    return [op.CumSum(dy[0], node.inputs[1], exclusive=exclusive, reverse=1 - reverse)]

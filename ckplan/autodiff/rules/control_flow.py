"""Gradients of control flow; see :mod:`ckplan.autodiff.control_flow`."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.control_flow.conditional import if_gradient
from ckplan.autodiff.control_flow.loop import loop_gradient
from ckplan.autodiff.control_flow.scan import scan_gradient
from ckplan.autodiff.registry import rule


@rule("If")
def if_(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Differentiate both branches; the condition is the same."""
    return if_gradient(op, node, dy)


@rule("Scan", since=9)
def scan(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Run the gradient of the body from the last step to the first."""
    return scan_gradient(op, node, dy)


@rule("Loop")
def loop(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Run the gradient of the body from the last step to the first."""
    return loop_gradient(op, node, dy)

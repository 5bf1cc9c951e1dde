"""Logarithms of a sigmoid, and of one less a sigmoid, written as the softplus that they are.

Exporters write ``torch.nn.functional.logsigmoid`` as a Sigmoid and a Log, and torch's old one so the cross-entropy of
logits and labels of 0 and 1. onnxruntime's Sigmoid is exactly 0 below -18 and exactly 1 above 18: the logarithm of that
is minus infinity, and the gradient no number. ``-Softplus(-x)`` and ``-Softplus(x)`` are the same, and neither.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.formulas.replacement import TYPES
from ckplan.autodiff.paths import discard
from ckplan.model.torch_files.detached import detached_inputs
from ckplan.operators.matching import is_op


def write_log_sigmoids(op: Builder, held: Container[ir.Value]) -> None:
    """Let a Softplus make the logarithms of a Sigmoid; what else reads the Sigmoid goes on doing so.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated: none of them is inside.
    """
    for last in [node for node in op.graph if is_op(node, "Log")]:
        sigmoid = last.inputs[0].producer() if last.inputs[0] is not None else None
        nodes = [last]
        is_rest = is_op(sigmoid, "Sub") and op.number_of(sigmoid.inputs[0]) == 1
        if is_rest and sigmoid is not None and sigmoid.inputs[1] is not None:
            nodes.insert(0, sigmoid)
            sigmoid = sigmoid.inputs[1].producer()
        x = sigmoid.inputs[0] if sigmoid is not None and is_op(sigmoid, "Sigmoid") else None
        if sigmoid is None or x is None or x.dtype not in TYPES or x.shape != last.outputs[0].shape:
            continue
        nodes.insert(0, sigmoid)
        if any(detached_inputs(node) for node in nodes) or any(node.outputs[0] in held for node in nodes[:-1]):
            continue
        with op.scope(str(last.name), "forward", before=last):
            softened = op.Softplus(x if is_rest else op.Neg(x))
        become(last, ("", "Neg", ""), [softened], [])
        for node in reversed(nodes[:-1]):
            if not node.outputs[0].uses() and not node.outputs[0].is_graph_output():
                discard(op.graph, [node])

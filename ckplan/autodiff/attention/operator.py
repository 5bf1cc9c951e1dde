"""Attention as one node, written out in the operators by which ONNX defines it.

It has no gradient rule, and would be written out when the reverse sweep comes to it
(https://onnx.ai/onnx/operators/onnx__Attention.html). Before that, what is known of attentions that a file writes out
holds for it as well: masks of zeros, guards behind the softmax, pieces, keys that heads share.
"""

from __future__ import annotations

from collections.abc import Collection

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.inline import inline_function
from ckplan.autodiff.paths import depends
from ckplan.autodiff.reading import required_input
from ckplan.operators.matching import is_op


def write_out_attentions(op: Builder, held: Collection[ir.Value]) -> None:
    """Put its definition in the place of each Attention that gradients go through.

    Args:
        op: builder of the forward graph.
        held: values that gradients are asked for, or that are differentiated.
    """
    before, op.wanted = op.wanted, held  # none of them is a constant
    for node in [node for node in op.graph if is_op(node, "Attention")]:
        if depends(node.outputs[0], held):
            known = set(node.outputs)
            for made in inline_function(op, node):
                if known.isdisjoint(made.outputs):
                    _leave_out(op, made)
    op.wanted = before


def _leave_out(op: Builder, node: ir.Node) -> None:
    """Take a node away that changes nothing, or only the type of a number of the definition."""
    if not is_op(node, ("Cast", "CastLike", "Identity")):
        return
    source, result = required_input(node, 0), node.outputs[0]
    number = op.constant_of(source)
    if source.dtype == result.dtype:
        result.replace_all_uses_with(source)
    elif number is not None and result.dtype is not None:
        result.replace_all_uses_with(op.constant(number.astype(result.dtype.numpy())))
    else:
        return
    op.graph.remove(node, safe=True)

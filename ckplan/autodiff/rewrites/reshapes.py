"""A Reshape of a Reshape reads what the first one reads.

onnxruntime merges the two into a new node, which its orders then put behind all nodes of the file: a gradient that ends
so is finished first of all, or last.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import required_input
from ckplan.model.traits import is_backward
from ckplan.operators.matching import is_op


def join_reshapes(op: Builder) -> None:
    """Let Reshapes of the backward pass read past Reshapes before them, which may be left without a reader.

    Args:
        op: builder of the finished graph, in which gradients have been asked for already.
    """
    for node in op.graph:
        if not _is_reshape(node) or not is_backward(node):
            continue
        target = op.constant_of(required_input(node, 1))
        if target is None or (target == 0).any():  # a zero may stand for a dimension of what is read
            continue
        while (maker := required_input(node, 0).producer()) is not None and _is_reshape(maker):
            node.replace_input_with(0, maker.inputs[0])


def _is_reshape(node: ir.Node) -> bool:
    return is_op(node, "Reshape")

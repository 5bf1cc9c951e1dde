"""What kind of operator a node is, where several parts of the program have to agree on it."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.keys import ONCE, PHASE
from ckplan.model.nested_graphs import all_nodes, graphs_in
from ckplan.operators.table import operator_of

LOSS_OPERATORS = frozenset({"NegativeLogLikelihoodLoss", "SoftmaxCrossEntropyLoss"})
"""Operators that compute a cross-entropy."""


def is_heavy(node: ir.Node) -> bool:
    """Whether a node costs far more than its bytes."""
    return operator_of(node).heavy


def is_random(node: ir.Node) -> bool:
    """Whether running the node again would give another result."""
    if node.op_type == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if training is None:
            return False
        constant = training.const_value
        return constant is None or bool(constant.numpy())
    if operator_of(node).random:
        return True
    return any(is_random(inner) for graph in graphs_in(node) for inner in graph)


_ONCE = {
    "mask": "it makes the mask of a Dropout, which the backward pass needs as it was and which takes a byte an element",
    "bits": "it keeps the mask of a Dropout, which the backward pass needs as it was, an element a bit",
    "chunk": "it is part of a loss head that goes through its samples once, in pieces",
}
"""What stands behind the words that nodes are marked with (`ckplan.keys.ONCE`)."""


def why_only_once(node: ir.Node) -> str:
    """Why no plan may run a node again, in words that follow a colon; empty if it may."""
    if ONCE in node.metadata_props:
        mark = node.metadata_props[ONCE]
        return _ONCE.get(mark, f"the graph says that it runs once ({mark})")
    if not is_random(node):
        return ""
    if operator_of(node).random or node.op_type == "Dropout":
        return f"{node.op_type} draws random numbers, and a second run would draw others"
    inner = sorted({member.op_type for graph in graphs_in(node) for member in all_nodes(graph) if is_random(member)})
    return f"{', '.join(inner)} in its body draws random numbers, and a second run would draw others"


def is_backward(node: ir.Node) -> bool:
    """Whether a node of a training graph belongs to the backward pass."""
    return node.metadata_props.get(PHASE) == "backward"

"""What kind of operator a node is, where several parts of the program have to agree on it."""

from __future__ import annotations

import onnx_ir as ir

RANDOM = frozenset(
    {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
)
"""Operators that draw anew each time they run."""

HEAVY = frozenset(
    {
        "Attention",
        "Conv",
        "ConvInteger",
        "ConvTranspose",
        "DeformConv",
        "Einsum",
        "FusedMatMul",
        "GRU",
        "Gemm",
        "LSTM",
        "MatMul",
        "MultiHeadAttention",
        "RNN",
    }
)
"""Operators that cost far more than their bytes."""


def is_random(node: ir.Node) -> bool:
    """Whether running the node again would give another result."""
    if node.op_type == "Dropout":
        training = node.inputs[2] if len(node.inputs) > 2 else None
        if training is None:
            return False
        constant = training.const_value
        return constant is None or bool(constant.numpy())
    if node.op_type in RANDOM:
        return True
    subgraphs = [a.as_graph() for a in node.attributes.values() if a.type == ir.AttributeType.GRAPH]
    return any(is_random(inner) for graph in subgraphs for inner in graph)

"""Decoder of the GPT-2 class: Radford et al., *Language Models are Unsupervised Multitask Learners*, 2019.

Layer normalisation before each branch, learnt positions, the tanh form of GELU, and the token table as the head.
"""

from __future__ import annotations

from math import sqrt

import numpy as np
import onnx
from onnx import TensorProto

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import (
    attention,
    embedding,
    layer_normalization,
    projection,
    transformer_deviation,
)

EPSILON = 1e-5


def gpt(
    *,
    batch: int | None = None,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 50257,
    sequence: int = 1024,
    tied: bool = True,
    seed: int = 0,
) -> onnx.ModelProto:
    """GPT-2 with its training loss: from ``input_ids`` and ``labels``, (batch, sequence), to the scalar ``loss``.

    The labels are the next tokens, shifted by who feeds them; -100 leaves a position out. ``tied`` reads the head's
    weights from the token table, as GPT-2 does. The defaults are GPT-2 small, 124 million parameters.
    """
    deviation = transformer_deviation(width)
    graph = GraphBuilder("gpt", batch=batch, seed=seed)
    tokens = graph.input("input_ids", [graph.batch, sequence], TensorProto.INT64)
    labels = graph.input("labels", [graph.batch, sequence], TensorProto.INT64)
    causal = graph.constant(np.tril(np.ones((1, 1, sequence, sequence), dtype=np.bool_)), "causal_mask")
    with graph.scope("transformer"):
        words = embedding(graph, "wte", tokens, (vocabulary, width), deviation=deviation)
        positions = graph.constant(np.arange(sequence, dtype=np.int64), "position_ids")
        places = embedding(graph, "wpe", positions, (sequence, width), deviation=deviation)
        value = graph.node("Add", words, places)
        for layer in range(layers):
            with graph.scope("h"), graph.scope(layer):
                value = _block(graph, value, width, heads, layers, causal)
        value = layer_normalization(graph, "ln_f", value, width, epsilon=EPSILON)
    with graph.scope("lm_head"):
        table = "transformer.wte.weight"
        if not tied:
            table = graph.parameter("weight", graph.uniform((vocabulary, width), deviation))
        flat = graph.node("Reshape", value, graph.constant([-1, width]))
        logits = graph.node("Gemm", flat, table, transB=1)
    flat_labels = graph.node("Reshape", labels, graph.constant([-1]))
    loss = graph.node("SoftmaxCrossEntropyLoss", logits, flat_labels, ignore_index=-100, reduction="mean")
    graph.output(loss, "loss", [])
    return graph.model()


def _block(graph: GraphBuilder, value: str, width: int, heads: int, layers: int, causal: str) -> str:
    """Attention and feed-forward, each added to what came in; GPT-2 scales the last weights of both by depth."""
    deviation = transformer_deviation(width)
    narrow = deviation / sqrt(2 * layers)
    branch = layer_normalization(graph, "ln_1", value, width, epsilon=EPSILON)
    with graph.scope("attn"):
        joined = projection(graph, "c_attn", branch, (width, 3 * width), deviation=deviation)
        queries, keys, values = graph.nodes("Split", joined, outputs=3, axis=2, num_outputs=3)
        branch = attention(graph, queries, keys, values, width=width, heads=heads, where=causal)
        branch = projection(graph, "c_proj", branch, (width, width), deviation=narrow)
    value = graph.node("Add", value, branch)
    branch = layer_normalization(graph, "ln_2", value, width, epsilon=EPSILON)
    with graph.scope("mlp"):
        branch = projection(graph, "c_fc", branch, (width, 4 * width), deviation=deviation)
        branch = graph.node("Gelu", branch, approximate="tanh")
        branch = projection(graph, "c_proj", branch, (4 * width, width), deviation=narrow)
    return graph.node("Add", value, branch)

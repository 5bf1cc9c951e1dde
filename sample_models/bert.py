"""Encoder of the BERT class: Devlin et al., *BERT*, 2018 (arXiv:1810.04805), with its classification head.

Layer normalisation after each branch, learnt positions and token types, the exact form of GELU, a tanh pooler.
"""

from __future__ import annotations

import numpy as np
import onnx
from onnx import TensorProto

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import (
    attention,
    dense,
    embedding,
    layer_normalization,
    projection,
    transformer_deviation,
)

EPSILON = 1e-12


def bert(
    *,
    batch: int | None = None,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    vocabulary: int = 30522,
    sequence: int = 128,
    classes: int = 2,
    seed: int = 0,
) -> onnx.ModelProto:
    """BERT for sequence classification: three integer inputs (batch, sequence) to logits (batch, classes).

    The inputs are ``input_ids``, ``attention_mask`` (1 where there is a token) and ``token_type_ids`` (0 or 1). The
    table of positions has a row per position of the sequence; the published one has 512.
    """
    deviation = transformer_deviation(width)
    graph = GraphBuilder("bert", batch=batch, seed=seed)
    shape = [graph.batch, sequence]
    tokens, given, types = (
        graph.input(name, shape, TensorProto.INT64) for name in ("input_ids", "attention_mask", "token_type_ids")
    )
    with graph.scope("bert"):
        mask = _additive_mask(graph, given)
        with graph.scope("embeddings"):
            value = embedding(graph, "word_embeddings", tokens, (vocabulary, width), deviation=deviation)
            kinds = embedding(graph, "token_type_embeddings", types, (2, width), deviation=deviation)
            positions = graph.constant(np.arange(sequence, dtype=np.int64)[None], "position_ids")
            places = embedding(graph, "position_embeddings", positions, (sequence, width), deviation=deviation)
            value = graph.node("Add", graph.node("Add", value, kinds), places)
            value = layer_normalization(graph, "LayerNorm", value, width, epsilon=EPSILON)
        for layer in range(layers):
            with graph.scope("encoder"), graph.scope("layer"), graph.scope(layer):
                value = _layer(graph, value, width, heads, mask)
        with graph.scope("pooler"):
            first = graph.node("Gather", value, graph.constant(0), axis=1)
            pooled = graph.node("Tanh", dense(graph, "dense", first, (width, width)))
    logits = dense(graph, "classifier", pooled, (width, classes))
    graph.output(logits, "logits", [graph.batch, classes])
    return graph.model()


def _additive_mask(graph: GraphBuilder, given: str) -> str:
    """Turn ones and zeros (batch, sequence) into zeros and lowest numbers (batch, 1, 1, sequence)."""
    spread = graph.node("Cast", graph.node("Unsqueeze", given, graph.constant([1, 2])), to=TensorProto.FLOAT)
    absent = graph.node("Sub", graph.constant(1.0, "one"), spread)
    return graph.node("Mul", absent, graph.constant(float(np.finfo(np.float32).min), "lowest_score"))


def _layer(graph: GraphBuilder, value: str, width: int, heads: int, mask: str) -> str:
    """Attention and feed-forward, each added to what came in and normalised."""
    deviation = transformer_deviation(width)
    with graph.scope("attention"):
        with graph.scope("self"):
            queries, keys, values = (
                projection(graph, name, value, (width, width), deviation=deviation)
                for name in ("query", "key", "value")
            )
            branch = attention(graph, queries, keys, values, width=width, heads=heads, plus=mask)
        with graph.scope("output"):
            branch = projection(graph, "dense", branch, (width, width), deviation=deviation)
            value = graph.node("Add", branch, value)
            value = layer_normalization(graph, "LayerNorm", value, width, epsilon=EPSILON)
    with graph.scope("intermediate"):
        branch = projection(graph, "dense", value, (width, 4 * width), deviation=deviation)
        branch = graph.node("Gelu", branch, approximate="none")
    with graph.scope("output"):
        branch = projection(graph, "dense", branch, (4 * width, width), deviation=deviation)
        value = graph.node("Add", branch, value)
        return layer_normalization(graph, "LayerNorm", value, width, epsilon=EPSILON)

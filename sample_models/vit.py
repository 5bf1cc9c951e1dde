"""Vision transformer: Dosovitskiy et al., *An Image is Worth 16x16 Words*, 2020 (arXiv:2010.11929)."""

from __future__ import annotations

import onnx

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import (
    attention,
    convolution,
    dense,
    layer_normalization,
    projection,
    transformer_deviation,
)

EPSILON = 1e-6


def vit(
    *,
    batch: int | None = None,
    image: int = 224,
    patch: int = 16,
    layers: int = 12,
    width: int = 768,
    heads: int = 12,
    classes: int = 1000,
    seed: int = 0,
) -> onnx.ModelProto:
    """Vision transformer from an image to logits (batch, classes); the defaults are ViT-B/16, 86.6 million parameters.

    The class token is expanded to the batch by a Shape, as exporters do for a symbolic batch dimension.
    """
    if image % patch:
        raise ValueError(f"an image side of {image} cannot be cut in patches of {patch}")
    patches = (image // patch) ** 2
    deviation = transformer_deviation(width)
    graph = GraphBuilder("vit", batch=batch, seed=seed)
    value = graph.input("input", [graph.batch, 3, image, image])
    many = graph.node("Shape", value, start=0, end=1)
    value = convolution(graph, "conv_proj", value, (3, width), patch, stride=patch, padding=0, bias=True, gain=1.0)
    value = graph.node("Reshape", value, graph.constant([0, width, patches]))
    value = graph.node("Transpose", value, perm=[0, 2, 1])
    token = graph.parameter("class_token", graph.uniform((1, 1, width), deviation))
    tokens = graph.node("Expand", token, graph.node("Concat", many, graph.constant([1, width]), axis=0))
    value = graph.node("Concat", tokens, value, axis=1)
    with graph.scope("encoder"):
        places = graph.parameter("pos_embedding", graph.uniform((1, patches + 1, width), deviation))
        value = graph.node("Add", value, places)
        for layer in range(layers):
            with graph.scope("layers"), graph.scope(layer):
                value = _layer(graph, value, width, heads)
        value = layer_normalization(graph, "ln", value, width, epsilon=EPSILON)
    with graph.scope("heads"):
        first = graph.node("Gather", value, graph.constant(0), axis=1)
        logits = dense(graph, "head", first, (width, classes))
    graph.output(logits, "logits", [graph.batch, classes])
    return graph.model()


def _layer(graph: GraphBuilder, value: str, width: int, heads: int) -> str:
    """Attention and feed-forward behind a layer normalisation each, added to what came in."""
    deviation = transformer_deviation(width)
    branch = layer_normalization(graph, "ln_1", value, width, epsilon=EPSILON)
    with graph.scope("self_attention"):
        joined = projection(graph, "in_proj", branch, (width, 3 * width), deviation=deviation)
        queries, keys, values = graph.nodes("Split", joined, outputs=3, axis=2, num_outputs=3)
        branch = attention(graph, queries, keys, values, width=width, heads=heads)
        branch = projection(graph, "out_proj", branch, (width, width), deviation=deviation)
    value = graph.node("Add", value, branch)
    branch = layer_normalization(graph, "ln_2", value, width, epsilon=EPSILON)
    with graph.scope("mlp"):
        branch = projection(graph, "0", branch, (width, 4 * width), deviation=deviation)
        branch = graph.node("Gelu", branch, approximate="none")
        branch = projection(graph, "3", branch, (4 * width, width), deviation=deviation)
    return graph.node("Add", value, branch)

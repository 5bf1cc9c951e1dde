"""Densely connected networks: Huang et al., 2016 (arXiv:1608.06993), the bottlenecked and compressed variety (BC).

Every layer reads the Concat of all layers before it in its block, so a block's activations, kept one by one, take a
memory quadratic in its depth: the network for which recomputation was first shown (arXiv:1707.06990).
"""

from __future__ import annotations

import onnx

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import batch_normalization, classifier_head, convolution, max_pool

BLOCKS = (6, 12, 24, 16)
"""Layers of the four blocks of DenseNet-121."""


def densenet121(
    *,
    batch: int | None = None,
    image: int = 224,
    growth: int = 32,
    classes: int = 1000,
    training: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """DenseNet-121."""
    return densenet(batch=batch, image=image, growth=growth, classes=classes, training=training, seed=seed)


def densenet(
    *,
    batch: int | None = None,
    image: int = 224,
    growth: int = 32,
    blocks: tuple[int, ...] = BLOCKS,
    classes: int = 1000,
    training: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """A DenseNet: a stem of 2 * ``growth`` channels, then ``blocks`` of so many layers of ``growth`` channels each."""
    graph = GraphBuilder(f"densenet{2 * sum(blocks) + len(blocks) + 1}", batch=batch, seed=seed)
    value, channels = graph.input("input", [graph.batch, 3, image, image]), 2 * growth
    with graph.scope("features"):
        value = convolution(graph, "conv0", value, (3, channels), 7, stride=2)
        value = _norm_relu(graph, "0", value, channels, training)
        value = max_pool(graph, "pool0", value, 3, stride=2, padding=1)
        for index, layers in enumerate(blocks, start=1):
            with graph.scope(f"denseblock{index}"):
                value = _dense_block(graph, value, channels, layers, growth, training)
            channels += layers * growth
            if index < len(blocks):
                with graph.scope(f"transition{index}"):
                    value = _norm_relu(graph, "", value, channels, training)
                    value = convolution(graph, "conv", value, (channels, channels // 2), 1)
                    value = graph.node("AveragePool", value, kernel_shape=[2, 2], strides=[2, 2])
                channels //= 2
        value = _norm_relu(graph, str(len(blocks) + 1), value, channels, training)
    graph.output(classifier_head(graph, "classifier", value, channels, classes), "logits", [graph.batch, classes])
    return graph.model()


def _dense_block(graph: GraphBuilder, value: str, channels: int, layers: int, growth: int, training: bool) -> str:
    """Layers that each read everything before them; the result is the Concat of it all."""
    features = [value]
    for layer in range(1, layers + 1):
        with graph.scope(f"denselayer{layer}"):
            joined = graph.node("Concat", *features, axis=1) if len(features) > 1 else value
            inner = _norm_relu(graph, "1", joined, channels, training)
            inner = convolution(graph, "conv1", inner, (channels, 4 * growth), 1)
            inner = _norm_relu(graph, "2", inner, 4 * growth, training)
            features.append(convolution(graph, "conv2", inner, (4 * growth, growth), 3))
        channels += growth
    return graph.node("Concat", *features, axis=1)


def _norm_relu(graph: GraphBuilder, number: str, value: str, channels: int, training: bool) -> str:
    """Batch normalisation and ReLU, both with ``number`` behind their names."""
    value = batch_normalization(graph, f"norm{number}", value, channels, training=training)
    with graph.scope(f"relu{number}"):
        return graph.node("Relu", value)

"""VGG: Simonyan and Zisserman, *Very Deep Convolutional Networks*, 2014 (arXiv:1409.1556), configuration D."""

from __future__ import annotations

import onnx

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import RELU_GAIN, convolution, dense, max_pool

STAGES = ((1, 2), (2, 2), (4, 3), (8, 3), (8, 3))
"""Channels in units of the width, and the number of convolutions, of each stage."""


def vgg16(
    *,
    batch: int | None = None,
    image: int = 224,
    width: int = 64,
    hidden: int = 4096,
    classes: int = 1000,
    seed: int = 0,
) -> onnx.ModelProto:
    """VGG-16: 13 convolutions in five stages and three fully connected layers, of which ``hidden`` is the width."""
    if image % 32:
        raise ValueError(f"the image side must be a multiple of 32, not {image}")
    graph = GraphBuilder("vgg16", batch=batch, seed=seed)
    value, channels, layer = graph.input("input", [graph.batch, 3, image, image]), 3, 0
    for factor, convolutions in STAGES:
        for _ in range(convolutions):
            with graph.scope("features"):
                value = convolution(graph, str(layer), value, (channels, factor * width), 3, bias=True)
                with graph.scope(layer + 1):
                    value = graph.node("Relu", value)
            channels, layer = factor * width, layer + 2
        with graph.scope("features"):
            value = max_pool(graph, str(layer), value, 2, stride=2)
        layer += 1
    value = graph.node("Flatten", value, axis=1)
    features = channels * (image // 32) ** 2
    with graph.scope("classifier"):
        for layer in (0, 3):  # the numbers of torchvision's layers, where 2 and 5 are dropouts
            value = dense(graph, str(layer), value, (features, hidden), gain=RELU_GAIN)
            with graph.scope(layer + 1):
                value = graph.node("Relu", value)
            features = hidden
        logits = dense(graph, "6", value, (hidden, classes))
    graph.output(logits, "logits", [graph.batch, classes])
    return graph.model()

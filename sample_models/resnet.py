"""Residual networks: He et al., *Deep Residual Learning for Image Recognition*, 2015 (arXiv:1512.03385).

The stride of a bottleneck block stands in its 3x3 convolution, as in torchvision (version 1.5 of the network).
"""

from __future__ import annotations

import onnx

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import batch_normalization, classifier_head, convolution, max_pool

BLOCKS = {18: (2, 2, 2, 2), 34: (3, 4, 6, 3), 50: (3, 4, 6, 3), 101: (3, 4, 23, 3), 152: (3, 8, 36, 3)}
BOTTLENECK_FROM = 50
RESIDUAL_GAIN = 0.3
"""Scale of the last normalisation of a residual branch. At one, every addition doubles the second moment; a trained
network's statistics hold it down, and random ones need this instead."""


def resnet18(
    *,
    batch: int | None = None,
    image: int = 224,
    width: int = 64,
    classes: int = 1000,
    training: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """ResNet-18: 8 basic blocks of two 3x3 convolutions."""
    return resnet(batch=batch, depth=18, image=image, width=width, classes=classes, training=training, seed=seed)


def resnet50(
    *,
    batch: int | None = None,
    image: int = 224,
    width: int = 64,
    classes: int = 1000,
    training: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """ResNet-50: 16 bottleneck blocks of a 1x1, a 3x3 and a 1x1 convolution."""
    return resnet(batch=batch, depth=50, image=image, width=width, classes=classes, training=training, seed=seed)


def resnet(
    *,
    batch: int | None = None,
    depth: int = 50,
    image: int = 224,
    width: int = 64,
    classes: int = 1000,
    training: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """A residual network of one of the published depths; ``width`` is the stem's channels, ``image`` the side."""
    graph = GraphBuilder(f"resnet{depth}", batch=batch, seed=seed)
    value = graph.input("input", [graph.batch, 3, image, image])
    value = convolution(graph, "conv1", value, (3, width), 7, stride=2)
    value = batch_normalization(graph, "bn1", value, width, training=training)
    with graph.scope("relu"):
        value = graph.node("Relu", value)
    value = max_pool(graph, "maxpool", value, 3, stride=2, padding=1)
    channels = width
    for stage, blocks in enumerate(BLOCKS[depth]):
        inner = width * 2**stage
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            with graph.scope(f"layer{stage + 1}"), graph.scope(block):
                value, channels = _block(graph, value, channels, inner, stride, depth >= BOTTLENECK_FROM, training)
    graph.output(classifier_head(graph, "fc", value, channels, classes), "logits", [graph.batch, classes])
    return graph.model()


def _block(
    graph: GraphBuilder, value: str, channels: int, inner: int, stride: int, bottleneck: bool, training: bool
) -> tuple[str, int]:
    """One residual block and its channels out."""
    outer = inner * 4 if bottleneck else inner
    kernels = (1, 3, 1) if bottleneck else (3, 3)
    strided = 1 if bottleneck else 0
    branch, before = value, channels
    for index, kernel in enumerate(kernels):
        last = index == len(kernels) - 1
        after = outer if last else inner
        step = stride if index == strided else 1
        branch = convolution(graph, f"conv{index + 1}", branch, (before, after), kernel, stride=step)
        gain = RESIDUAL_GAIN if last else 1.0
        branch = batch_normalization(graph, f"bn{index + 1}", branch, after, training=training, gain=gain)
        if not last:
            branch = graph.node("Relu", branch)
        before = after
    if stride != 1 or channels != outer:
        with graph.scope("downsample"):
            value = convolution(graph, "0", value, (channels, outer), 1, stride=stride, gain=1.0)
            value = batch_normalization(graph, "1", value, outer, training=training)
    return graph.node("Relu", graph.node("Add", branch, value)), outer

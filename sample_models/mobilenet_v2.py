"""MobileNetV2: Sandler et al., 2018 (arXiv:1801.04381). Inverted residuals with ReLU6, which is Clip in ONNX."""

from __future__ import annotations

import onnx

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import batch_normalization, classifier_head, convolution, scaled_channels

STAGES = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2), (6, 320, 1, 1))
"""Expansion, channels, blocks, and the first block's stride: table 2 of the paper."""


def mobilenet_v2(
    *,
    batch: int | None = None,
    image: int = 224,
    percent: int = 100,
    head: int = 1280,
    classes: int = 1000,
    training: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """MobileNetV2; ``percent`` is the paper's width multiplier, ``head`` the channels of the last convolution."""
    graph = GraphBuilder("mobilenet_v2", batch=batch, seed=seed)
    value, channels = graph.input("input", [graph.batch, 3, image, image]), scaled_channels(32, percent)
    with graph.scope("features"):
        with graph.scope(0):
            value = _convolution_relu6(graph, value, (3, channels), 3, stride=2, training=training)
        number = 1
        for expansion, unscaled, blocks, first_stride in STAGES:
            after = scaled_channels(unscaled, percent)
            for block in range(blocks):
                stride = 1 if block else first_stride
                with graph.scope(number), graph.scope("conv"):
                    value = _inverted_residual(graph, value, (channels, after), expansion, stride, training)
                channels, number = after, number + 1
        with graph.scope(number):
            value = _convolution_relu6(graph, value, (channels, head), 1, training=training)
    graph.output(classifier_head(graph, "classifier", value, head, classes), "logits", [graph.batch, classes])
    return graph.model()


def _convolution_relu6(
    graph: GraphBuilder,
    value: str,
    channels: tuple[int, int],
    kernel: int,
    *,
    stride: int = 1,
    groups: int = 1,
    training: bool,
) -> str:
    """Convolution, batch normalisation and ReLU6."""
    value = convolution(graph, "0", value, channels, kernel, stride=stride, groups=groups)
    value = batch_normalization(graph, "1", value, channels[1], training=training)
    with graph.scope(2):
        return graph.node("Clip", value, graph.constant(0.0, "zero"), graph.constant(6.0, "six"))


def _inverted_residual(
    graph: GraphBuilder, value: str, channels: tuple[int, int], expansion: int, stride: int, training: bool
) -> str:
    """Widen by ``expansion``, convolve each channel by itself, narrow without a non-linearity, add the input."""
    before, after = channels
    inner = before * expansion
    branch, part = value, 0
    if expansion != 1:
        with graph.scope(part):
            branch = _convolution_relu6(graph, branch, (before, inner), 1, training=training)
        part += 1
    with graph.scope(part):
        branch = _convolution_relu6(graph, branch, (inner, inner), 3, stride=stride, groups=inner, training=training)
    branch = convolution(graph, str(part + 1), branch, (inner, after), 1)
    adds = stride == 1 and before == after
    gain = 0.5 if adds else 1.0  # so that the sum keeps about the size of its first term
    branch = batch_normalization(graph, str(part + 2), branch, after, training=training, gain=gain)
    return graph.node("Add", value, branch) if adds else branch

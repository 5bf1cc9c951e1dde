"""Layers that several architectures share; each names its nodes and parameters after the layer."""

from __future__ import annotations

from math import sqrt

import numpy as np

from sample_models.graph_builder import GraphBuilder

RELU_GAIN = sqrt(2.0)
"""He initialisation: what a ReLU takes from the second moment, the weights before it give back."""


def convolution(
    graph: GraphBuilder,
    name: str,
    value: str,
    channels: tuple[int, int],
    kernel: int,
    *,
    stride: int = 1,
    padding: int | None = None,
    groups: int = 1,
    bias: bool = False,
    gain: float = RELU_GAIN,
) -> str:
    """2-D convolution (N, C, H, W), padded to keep the size at stride 1 unless ``padding`` says otherwise.

    Args:
        graph: where to add it.
        name: of the layer.
        value: the input.
        channels: in and out.
        kernel: its side.
        stride: of both dimensions.
        padding: on each of the four sides.
        groups: as ONNX has it; equal to the channels for a depthwise convolution.
        bias: whether there is one.
        gain: sqrt(2) for He initialisation, 1 where no ReLU follows.
    """
    pad = kernel // 2 if padding is None else padding
    fan_in = channels[0] // groups * kernel * kernel
    with graph.scope(name):
        weight = graph.uniform((channels[1], channels[0] // groups, kernel, kernel), gain / sqrt(fan_in))
        inputs = [value, graph.parameter("weight", weight)]
        if bias:
            inputs.append(graph.parameter("bias", graph.uniform((channels[1],), 0.01)))
        return graph.node(
            "Conv",
            *inputs,
            dilations=[1, 1],
            group=groups,
            kernel_shape=[kernel, kernel],
            pads=[pad] * 4,
            strides=[stride, stride],
        )


def up_convolution(graph: GraphBuilder, name: str, value: str, channels: tuple[int, int]) -> str:
    """Transposed 2x2 convolution of stride 2, which doubles height and width."""
    with graph.scope(name):
        weight = graph.uniform((channels[0], channels[1], 2, 2), 1 / sqrt(channels[0]))
        bias = graph.uniform((channels[1],), 0.01)
        return graph.node(
            "ConvTranspose",
            value,
            graph.parameter("weight", weight),
            graph.parameter("bias", bias),
            kernel_shape=[2, 2],
            strides=[2, 2],
        )


def batch_normalization(
    graph: GraphBuilder, name: str, value: str, channels: int, *, training: bool, gain: float = 1.0
) -> str:
    """Batch normalisation; ``gain`` is the mean of its scale.

    In training mode the node has three outputs, of which the running statistics go unread, as in a PyTorch export.
    """
    with graph.scope(name):
        inputs = [
            value,
            graph.parameter("weight", graph.uniform((channels,), 0.05 * gain, mean=gain)),
            graph.parameter("bias", graph.uniform((channels,), 0.05)),
            graph.parameter("running_mean", graph.uniform((channels,), 0.05)),
            graph.parameter("running_var", graph.uniform((channels,), 0.05, mean=1.0)),
        ]
        if training:
            return graph.nodes("BatchNormalization", *inputs, outputs=3, epsilon=1e-5, momentum=0.9, training_mode=1)[0]
        return graph.node("BatchNormalization", *inputs, epsilon=1e-5, momentum=0.9)


def dense(
    graph: GraphBuilder, name: str, value: str, features: tuple[int, int], *, gain: float = 1.0, bias: bool = True
) -> str:
    """Fully connected layer on (N, features) as a Gemm, its weight stored (out, in) as in PyTorch."""
    with graph.scope(name):
        inputs = [value, graph.parameter("weight", graph.uniform(features[::-1], gain / sqrt(features[0])))]
        if bias:
            inputs.append(graph.parameter("bias", graph.uniform((features[1],), 0.01)))
        return graph.node("Gemm", *inputs, transB=1)


def projection(graph: GraphBuilder, name: str, value: str, features: tuple[int, int], *, deviation: float) -> str:
    """Fully connected layer on (..., features) as MatMul and Add, as exporters write it for more than two dims."""
    with graph.scope(name):
        weight = graph.parameter("weight", graph.uniform(features, deviation))
        bias = graph.parameter("bias", graph.uniform((features[1],), 0.01))
        return graph.node("Add", graph.node("MatMul", value, weight), bias)


def layer_normalization(graph: GraphBuilder, name: str, value: str, features: int, *, epsilon: float) -> str:
    """Layer normalisation over the last axis."""
    with graph.scope(name):
        scale = graph.parameter("weight", graph.uniform((features,), 0.05, mean=1.0))
        bias = graph.parameter("bias", graph.uniform((features,), 0.05))
        return graph.node("LayerNormalization", value, scale, bias, axis=-1, epsilon=epsilon)


def embedding(graph: GraphBuilder, name: str, indices: str, shape: tuple[int, int], *, deviation: float) -> str:
    """Row of a table per index."""
    with graph.scope(name):
        table = graph.parameter("weight", graph.uniform(shape, deviation))
        return graph.node("Gather", table, indices, axis=0)


def max_pool(graph: GraphBuilder, name: str, value: str, kernel: int, *, stride: int, padding: int = 0) -> str:
    """2-D maximum pooling."""
    with graph.scope(name):
        return graph.node("MaxPool", value, kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[padding] * 4)


def classifier_head(graph: GraphBuilder, name: str, value: str, channels: int, classes: int) -> str:
    """Global average pooling, Flatten and a fully connected layer: (N, C, H, W) to logits (N, classes)."""
    flat = graph.node("Flatten", graph.node("GlobalAveragePool", value), axis=1)
    return dense(graph, name, flat, (channels, classes))


def attention(
    graph: GraphBuilder,
    queries: str,
    keys: str,
    values: str,
    *,
    width: int,
    heads: int,
    where: str | None = None,
    plus: str | None = None,
) -> str:
    """Scaled dot-product attention written out: (batch, sequence, width) three times to (batch, sequence, width).

    Args:
        graph: where to add it.
        queries: of all heads side by side.
        keys: the same.
        values: the same.
        width: of all heads together.
        heads: how many.
        where: a mask, true where a query may look at a key, broadcastable to (batch, heads, sequence, sequence).
        plus: a mask added to the scores, the same shape.
    """
    if width % heads:
        raise ValueError(f"a width of {width} cannot be shared by {heads} heads")
    split_shape = graph.constant([0, 0, heads, width // heads])

    def per_head(value: str, order: list[int]) -> str:
        return graph.node("Transpose", graph.node("Reshape", value, split_shape), perm=order)

    scores = graph.node("MatMul", per_head(queries, [0, 2, 1, 3]), per_head(keys, [0, 2, 3, 1]))
    scores = graph.node("Mul", scores, graph.constant(1 / sqrt(width // heads), "attention_scale"))
    if where is not None:
        lowest = float(np.finfo(np.float32).min)
        scores = graph.node("Where", where, scores, graph.constant(lowest, "lowest_score"))
    if plus is not None:
        scores = graph.node("Add", scores, plus)
    context = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), per_head(values, [0, 2, 1, 3]))
    context = graph.node("Transpose", context, perm=[0, 2, 1, 3])
    return graph.node("Reshape", context, graph.constant([0, 0, width]))


def transformer_deviation(width: int) -> float:
    """Standard deviation of a transformer's weights: the 0.02 of GPT-2 and BERT at width 768, scaled as Xavier does."""
    return 0.02 * sqrt(768 / width)


def scaled_channels(channels: int, percent: int) -> int:
    """Channels of a MobileNet at a width multiplier: the nearest multiple of 8 that takes away a tenth at most."""
    wanted = channels * percent / 100
    rounded = max(8, int(wanted + 4) // 8 * 8)
    return rounded if rounded >= 0.9 * wanted else rounded + 8

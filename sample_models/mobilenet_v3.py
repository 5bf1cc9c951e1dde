"""MobileNetV3-Large: Howard et al., 2019 (arXiv:1905.02244). Hard-swish, and squeeze-and-excite with hard-sigmoid."""

from __future__ import annotations

from dataclasses import dataclass

import onnx

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import batch_normalization, convolution, dense, scaled_channels


@dataclass(frozen=True)
class Block:
    """One row of table 1 of the paper."""

    kernel: int
    expanded: int
    channels: int
    excite: bool
    activation: str
    stride: int


BLOCKS = (
    Block(3, 16, 16, False, "Relu", 1),
    Block(3, 64, 24, False, "Relu", 2),
    Block(3, 72, 24, False, "Relu", 1),
    Block(5, 72, 40, True, "Relu", 2),
    Block(5, 120, 40, True, "Relu", 1),
    Block(5, 120, 40, True, "Relu", 1),
    Block(3, 240, 80, False, "HardSwish", 2),
    Block(3, 200, 80, False, "HardSwish", 1),
    Block(3, 184, 80, False, "HardSwish", 1),
    Block(3, 184, 80, False, "HardSwish", 1),
    Block(3, 480, 112, True, "HardSwish", 1),
    Block(3, 672, 112, True, "HardSwish", 1),
    Block(5, 672, 160, True, "HardSwish", 2),
    Block(5, 960, 160, True, "HardSwish", 1),
    Block(5, 960, 160, True, "HardSwish", 1),
)


def mobilenet_v3(
    *,
    batch: int | None = None,
    image: int = 224,
    percent: int = 100,
    hidden: int = 1280,
    classes: int = 1000,
    training: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """MobileNetV3-Large; ``percent`` is the width multiplier, ``hidden`` the width of the layer before the last."""
    graph = GraphBuilder("mobilenet_v3", batch=batch, seed=seed)
    value, channels = graph.input("input", [graph.batch, 3, image, image]), scaled_channels(16, percent)
    with graph.scope("features"):
        with graph.scope(0):
            value = _convolution_block(graph, value, (3, channels), 3, "HardSwish", stride=2, training=training)
        for number, block in enumerate(BLOCKS, start=1):
            with graph.scope(number), graph.scope("block"):
                value, channels = _inverted_residual(graph, value, channels, block, percent, training)
        last = scaled_channels(960, percent)
        with graph.scope(len(BLOCKS) + 1):
            value = _convolution_block(graph, value, (channels, last), 1, "HardSwish", training=training)
    flat = graph.node("Flatten", graph.node("GlobalAveragePool", value), axis=1)
    with graph.scope("classifier"):
        flat = dense(graph, "0", flat, (last, hidden), gain=2.0)
        with graph.scope(1):
            flat = graph.node("HardSwish", flat)
        logits = dense(graph, "3", flat, (hidden, classes), gain=2.0)
    graph.output(logits, "logits", [graph.batch, classes])
    return graph.model()


def _convolution_block(
    graph: GraphBuilder,
    value: str,
    channels: tuple[int, int],
    kernel: int,
    activation: str = "",
    *,
    stride: int = 1,
    groups: int = 1,
    training: bool,
    gain: float = 1.0,
) -> str:
    """Convolution, batch normalisation and, if one is named, an activation."""
    value = convolution(graph, "0", value, channels, kernel, stride=stride, groups=groups)
    value = batch_normalization(graph, "1", value, channels[1], training=training, gain=gain)
    if not activation:
        return value
    with graph.scope(2):
        return graph.node(activation, value)


def _inverted_residual(
    graph: GraphBuilder, value: str, channels: int, block: Block, percent: int, training: bool
) -> tuple[str, int]:
    """One block and its channels out."""
    expanded, after = scaled_channels(block.expanded, percent), scaled_channels(block.channels, percent)
    branch, part = value, 0
    if block.expanded != BLOCKS[0].expanded:
        with graph.scope(part):
            branch = _convolution_block(graph, branch, (channels, expanded), 1, block.activation, training=training)
        part += 1
    with graph.scope(part):
        branch = _convolution_block(
            graph,
            branch,
            (expanded, expanded),
            block.kernel,
            block.activation,
            stride=block.stride,
            groups=expanded,
            training=training,
        )
    part += 1
    if block.excite:
        with graph.scope(part):
            branch = _squeeze_excite(graph, branch, expanded)
        part += 1
    adds = block.stride == 1 and channels == after
    with graph.scope(part):
        gain = 0.5 if adds else 1.0  # so that the sum keeps about the size of its first term
        branch = _convolution_block(graph, branch, (expanded, after), 1, training=training, gain=gain)
    return (graph.node("Add", value, branch) if adds else branch), after


def _squeeze_excite(graph: GraphBuilder, value: str, channels: int) -> str:
    """Scale each channel by a number between 0 and 1 that depends on the means of all channels."""
    squeezed = scaled_channels(channels, 25)
    scale = graph.node("GlobalAveragePool", value)
    scale = convolution(graph, "fc1", scale, (channels, squeezed), 1, bias=True)
    scale = graph.node("Relu", scale)
    scale = convolution(graph, "fc2", scale, (squeezed, channels), 1, bias=True, gain=1.0)
    scale = graph.node("HardSigmoid", scale, alpha=1 / 6, beta=0.5)
    return graph.node("Mul", scale, value)

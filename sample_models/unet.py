"""U-Net: Ronneberger et al., 2015 (arXiv:1505.04597).

Padded convolutions and batch normalisation, as all later implementations have them: a picture in, logits of the same
size out. The long skip connections hold the largest activations for nearly the whole training step.
"""

from __future__ import annotations

import onnx

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import batch_normalization, convolution, max_pool, up_convolution


def unet(
    *,
    batch: int | None = None,
    image: int = 256,
    width: int = 32,
    levels: int = 4,
    channels: int = 3,
    classes: int = 1,
    training: bool = False,
    seed: int = 0,
) -> onnx.ModelProto:
    """U-Net from (batch, channels, image, image) to logits (batch, classes, image, image).

    ``levels`` counts the halvings, ``width`` is the channels of the first; 64 in the paper.
    """
    if image % 2**levels:
        raise ValueError(f"the image side must be a multiple of {2**levels}, not {image}")
    graph = GraphBuilder("unet", batch=batch, seed=seed)
    value, before = graph.input("input", [graph.batch, channels, image, image]), channels
    skips: list[tuple[str, int]] = []
    for level in range(levels):
        after = width * 2**level
        value = _double_convolution(graph, f"encoder{level + 1}", value, (before, after), training)
        skips.append((value, after))
        value, before = max_pool(graph, f"pool{level + 1}", value, 2, stride=2), after
    value = _double_convolution(graph, "bottleneck", value, (before, 2 * before), training)
    for level in reversed(range(levels)):
        skip, after = skips[level]
        value = up_convolution(graph, f"upconv{level + 1}", value, (2 * after, after))
        with graph.scope(f"decoder{level + 1}"):
            value = graph.node("Concat", value, skip, axis=1)
        value = _double_convolution(graph, f"decoder{level + 1}", value, (2 * after, after), training)
    logits = convolution(graph, "conv", value, (width, classes), 1, bias=True, gain=1.0)
    graph.output(logits, "logits", [graph.batch, classes, image, image])
    return graph.model()


def _double_convolution(graph: GraphBuilder, name: str, value: str, channels: tuple[int, int], training: bool) -> str:
    """Two 3x3 convolutions, each with normalisation and ReLU."""
    before, after = channels
    with graph.scope(name):
        for index in (1, 2):
            value = convolution(graph, f"conv{index}", value, (before, after), 3)
            value = batch_normalization(graph, f"norm{index}", value, after, training=training)
            value, before = graph.node("Relu", value), after
    return value

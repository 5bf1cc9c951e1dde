"""The plainest networks: a chain of tanh layers, and a multilayer perceptron."""

from __future__ import annotations

from itertools import pairwise
from math import sqrt

import onnx

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import RELU_GAIN, dense


def tanh_chain(*, batch: int | None = None, layers: int = 36, width: int = 256, seed: int = 0) -> onnx.ModelProto:
    """MatMul and Tanh, many times, and the sum of the result as the output ``loss``.

    All activations have one size and backward costs are even: the case for which sqrt(N) checkpointing was made.
    """
    graph = GraphBuilder("tanh_chain", batch=batch, seed=seed)
    value = graph.input("x", [graph.batch, width])
    for layer in range(layers):
        with graph.scope(f"layer{layer}"):
            weight = graph.parameter("weight", graph.uniform((width, width), 1 / sqrt(width)))
            value = graph.node("Tanh", graph.node("MatMul", value, weight))
    graph.output(graph.node("ReduceSum", value, keepdims=0), "loss", [])
    return graph.model()


def mlp(
    *,
    batch: int | None = None,
    layers: int = 3,
    width: int = 512,
    features: int = 784,
    classes: int = 10,
    seed: int = 0,
) -> onnx.ModelProto:
    """Fully connected layers with ReLU between them, from ``features`` to logits of ``classes``."""
    graph = GraphBuilder("mlp", batch=batch, seed=seed)
    value = graph.input("x", [graph.batch, features])
    widths = [features, *[width] * (layers - 1)]
    for layer, (before, after) in enumerate(pairwise(widths)):
        value = dense(graph, f"fc{layer}", value, (before, after), gain=RELU_GAIN)
        with graph.scope(f"relu{layer}"):
            value = graph.node("Relu", value)
    logits = dense(graph, f"fc{layers - 1}", value, (widths[-1], classes))
    graph.output(logits, "logits", [graph.batch, classes])
    return graph.model()

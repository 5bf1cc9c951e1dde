"""Word-level language model of recurrent layers.

Zaremba, Sutskever and Vinyals, *Recurrent Neural Network Regularization*, 2014, https://arxiv.org/abs/1409.2329;
without its dropout.
"""

from __future__ import annotations

from math import sqrt

import onnx
from onnx import TensorProto

from sample_models.graph_builder import GraphBuilder
from sample_models.layers import dense, embedding


def lstm(
    *,
    batch: int | None = None,
    layers: int = 2,
    width: int = 650,
    vocabulary: int = 10000,
    sequence: int = 35,
    seed: int = 0,
) -> onnx.ModelProto:
    """LSTM language model with its training loss: from ``input_ids`` and ``labels``, (batch, sequence), to ``loss``.

    The labels are the next tokens, shifted by who feeds them; -100 leaves a position out. Inside, time is the first
    axis, and states begin with zeros of the batch's size, as PyTorch exports them. The defaults are the paper's medium
    model, 19.8 million parameters.
    """
    graph = GraphBuilder("lstm", batch=batch, seed=seed)
    tokens, labels = (
        graph.node("Transpose", graph.input(name, [graph.batch, sequence], TensorProto.INT64), perm=[1, 0])
        for name in ("input_ids", "labels")
    )
    deviation = 1 / sqrt(3 * width)  # between -1 / sqrt(width) and 1 / sqrt(width)
    value = embedding(graph, "encoder", tokens, (vocabulary, width), deviation=1.0)
    with graph.scope("rnn"):
        size = graph.node("Shape", tokens, start=1)
        shape = graph.node("Concat", graph.constant([1]), size, graph.constant([width]), axis=0)
        zeros = graph.node("ConstantOfShape", shape)
        for layer in range(layers):
            inputs = [
                graph.parameter(f"weight_ih_l{layer}", graph.uniform((1, 4 * width, width), deviation)),
                graph.parameter(f"weight_hh_l{layer}", graph.uniform((1, 4 * width, width), deviation)),
                graph.parameter(f"bias_l{layer}", graph.uniform((1, 8 * width), deviation)),
            ]
            states, _, _ = graph.nodes("LSTM", value, *inputs, "", zeros, zeros, outputs=3, hidden_size=width)
            value = graph.node("Squeeze", states, graph.constant([1]))
    flat = graph.node("Reshape", value, graph.constant([-1, width]))
    logits = dense(graph, "decoder", flat, (width, vocabulary))
    flat_labels = graph.node("Reshape", labels, graph.constant([-1]))
    loss = graph.node("SoftmaxCrossEntropyLoss", logits, flat_labels, ignore_index=-100, reduction="mean")
    graph.output(loss, "loss", [])
    return graph.model()

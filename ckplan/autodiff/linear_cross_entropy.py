"""Cross-entropy of a linear layer, in chunks: the logits, samples by classes, never exist whole.

A cross-entropy and the product that makes its logits are one composite. Its forward pass goes through the samples in
chunks, a Scan: logits of a chunk, their losses, and at once, while they are there, the gradient of the layer's input.
What the gradient of the weight needs of a chunk is two numbers per sample, its largest logit and the chance of that
class; the rule (`ckplan.autodiff.rules.linear_cross_entropy`) goes through the classes in chunks with them, and writes
the rows of the weight's gradient one chunk after the other. The logits are made twice, one product of four.

The form with the gradient in the forward pass is that of Liger Kernel (Hsu et al., arXiv:2410.10989), whose chunks of
samples sum up the gradient of the weight; chunks of classes need no second buffer of its size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, attr_float, attr_int, dtype_of, input_of, required_input, shape_of, size_of
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, emit_control, new_value
from ckplan.autodiff.crossentropy import labels_of, reduce_losses
from ckplan.autodiff.regions import Region, largest_divisor
from ckplan.keys import PHASE, PIECES

_TYPES = (ir.DataType.FLOAT, ir.DataType.DOUBLE)
"""Element types of the layer; half precision would sum in half precision."""


@dataclass(frozen=True)
class Layer:
    """The linear layer that makes logits.

    Attributes:
        x: its input; what counts is its rows, along all axes but the last.
        weight: [classes, features] if ``by_rows``, else [features, classes].
        bias: one number per class, None without.
        by_rows: whether the weight has a row per class.
        nodes: the nodes that the composite takes the place of.
    """

    x: ir.Value
    weight: ir.Value
    bias: ir.Value | None
    by_rows: bool
    nodes: tuple[ir.Node, ...]


def chunk_loss_heads(op: Builder, pieces: int) -> tuple[dict[ir.Value, ir.Value], list[Region]]:
    """Make one composite of each cross-entropy and the linear layer before it.

    A loss whose logits anybody else reads is left as it is, and so is one over another axis than the last.

    Args:
        op: builder of the forward graph, losses and all.
        pieces: into how many the samples go, at most; a number that divides that of the samples is taken. 1 cuts
            nothing.

    Returns:
        What took the place of losses; and the loss heads, whether they were cut or not.
    """
    made: dict[ir.Value, ir.Value] = {}
    found = []
    heads = [node for node in op.graph if node.domain == DOMAIN and node.op_type == "CrossEntropy"]
    for node in heads:
        layer = layer_of(node)
        if layer is None:
            continue
        logits = required_input(node, 0)
        samples = size_of(logits) // max(shape_of(logits)[-1], 1)
        count = largest_divisor(samples, pieces)
        size = size_of(logits) * dtype_of(logits).itemsize
        found.append(Region("loss", str(logits.name), "samples", samples, size, str(node.name), count))
        if count > 1:
            made[node.outputs[0]] = _replace(op, node, layer, count)
    return made, found


def layer_of(loss: ir.Node) -> Layer | None:
    """Find the linear layer before a cross-entropy, None if there is none that may vanish."""
    logits = required_input(loss, 0)
    rank = len(shape_of(logits))
    if attr_int(loss, "axis", -1) % rank != rank - 1 or logits.dtype not in _TYPES:
        return None
    if any(value.uses() or value.is_graph_output() for value in loss.outputs[1:]):
        return None
    nodes: list[ir.Node] = []
    bias: ir.Value | None = None
    at = logits
    while True:
        maker = at.producer()
        if maker is None or maker.domain or len(at.uses()) != 1 or at.is_graph_output():
            return None
        nodes.append(maker)
        if maker.op_type == "Reshape" and shape_of(required_input(maker, 0))[-1:] == shape_of(at)[-1:]:
            at = required_input(maker, 0)
        elif maker.op_type == "Add" and bias is None and (found := _bias_of(maker, shape_of(logits)[-1])) is not None:
            at, bias = found
        else:
            break
    layer = _product(maker, bias)
    if layer is None:
        return None
    return Layer(layer.x, layer.weight, layer.bias, layer.by_rows, tuple(reversed(nodes)))


def _bias_of(add: ir.Node, classes: int) -> tuple[ir.Value, ir.Value] | None:
    """The summand that is a product and the one that is a vector of biases."""
    left, right = required_input(add, 0), required_input(add, 1)
    for value, bias in ((left, right), (right, left)):
        if shape_of(bias) == (classes,) and shape_of(value) == shape_of(add.outputs[0]) and value is not bias:
            return value, bias
    return None


def _product(node: ir.Node, bias: ir.Value | None) -> Layer | None:
    """The layer that a product is, with a bias that is added behind it."""
    if node.op_type == "MatMul":
        x, weight, by_rows = required_input(node, 0), required_input(node, 1), False
    elif node.op_type == "Gemm" and bias is None:
        x, weight, by_rows = required_input(node, 0), required_input(node, 1), bool(attr_int(node, "transB", 0))
        bias = input_of(node, 2)
        plain = attr_float(node, "alpha", 1.0) == 1 == attr_float(node, "beta", 1.0) and not attr_int(node, "transA", 0)
        if not plain or (bias is not None and shape_of(bias) != (shape_of(node.outputs[0])[-1],)):
            return None
    else:
        return None
    if len(shape_of(weight)) != 2 or not shape_of(x):
        return None
    maker = weight.producer()
    if not by_rows and maker is not None and maker.op_type == "Transpose" and not maker.domain:
        weight, by_rows = required_input(maker, 0), True
    return Layer(x, weight, bias, by_rows, ())


def _replace(op: Builder, loss: ir.Node, layer: Layer, count: int) -> ir.Value:
    """Put the composite in the place of a loss and its layer; return its loss."""
    labels = labels_of(loss)
    old = loss.outputs[0]
    features, samples = shape_of(layer.x)[-1], size_of(labels.indices)
    name = str(loss.name)
    with op.scope(name, "forward", before=loss), op.recording() as nodes:
        rows = op.reshape(layer.x, (count, samples // count, features))
        indices = op.reshape(labels.indices, (count, samples // count, 1))
        body = _samples_body(op, layer, name, samples // count, indices.dtype)
        outputs = [
            new_value(op, f"{name}/{what}", layer.x.dtype, (count, samples // count, width))
            for what, width in (("picked", 1), ("largest", 1), ("chance", 1), ("x_grad", features))
        ]
        attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", 2)]
        about = {PHASE: "forward", PIECES: str(count)}
        emit_control(op, "Scan", f"{name}/Scan", [rows, indices], attributes, outputs, about)
        picked, largest, chance, slope = outputs
        losses = op.Neg(op.reshape(picked, shape_of(labels.indices)))
        value = reduce_losses(op, losses, labels, shape_of(old))
    kept = [losses, slope, largest, chance]
    attributes_of_loss = {"axis": -1, "reduction": labels.reduction, "by_rows": int(layer.by_rows), "chunks": count}
    inputs = [layer.x, labels.weights, labels.indices, layer.weight, layer.bias]
    new = outline(op, "LinearCrossEntropy", nodes, inputs, [value, *kept], attributes_of_loss)[0]
    title = old.name
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    op.graph.remove(loss, safe=True)
    op.functions.pop(loss.op_identifier(), None)
    new.name = title
    for node in reversed(layer.nodes):
        op.graph.remove(node, safe=True)
    return new


def _samples_body(op: Builder, layer: Layer, name: str, samples: int, index_type: ir.DataType | None) -> ir.Graph:
    """What is done for a chunk of samples; softmax and its gradient are in the buffer of the logits."""
    x = new_value(op, f"{name}/x", layer.x.dtype, (samples, shape_of(layer.x)[-1]))
    indices = new_value(op, f"{name}/indices", index_type, (samples, 1))
    graph = ir.Graph([x, indices], [], nodes=[], name=op.unique_name(f"{name}/samples"))
    inner = BodyBuilder(op, graph)
    with inner.scope(name, "forward"):
        logits = product(inner, x, layer.weight, layer.bias, layer.by_rows)
        largest = inner.ReduceMax(logits, np.asarray([1], dtype=np.int64), keepdims=1)
        logarithms = inner.LogSoftmax(logits, axis=-1)
        picked = inner.GatherElements(logarithms, indices, axis=1)
        chances = inner.Softmax(logarithms, axis=-1)
        chance = inner.ReduceMax(chances, np.asarray([1], dtype=np.int64), keepdims=1)
        ones = inner.expand(inner.constant(np.asarray(-1, dtype_of(logits))), (samples, 1))
        slopes = inner.ScatterElements(chances, indices, ones, axis=1, reduction="add")
        found = product(inner, slopes, layer.weight, None, not layer.by_rows)
    graph.outputs.extend([picked, largest, chance, found])
    close_body(inner)
    return graph


def product(op: Builder, x: ir.Value, weight: ir.Value, bias: ir.Value | None, by_rows: bool) -> ir.Value:
    """``x weight + bias``, or with ``by_rows`` ``x weightᵀ + bias``; all of rank 2, the bias of rank 1 or None."""
    if bias is None and not by_rows:
        return op.MatMul(x, weight)
    return op.Gemm(x, weight, bias, transB=int(by_rows) or None)

"""Cross-entropy of a linear layer, in chunks: the logits, samples by classes, never exist whole.

Which heads there are, and their form in two passes; that in one is in `ckplan.autodiff.losses.one_pass_head`.

A cross-entropy and the product that makes its logits are one composite. Its forward pass goes through the samples in
chunks, a Scan: logits of a chunk, their losses, and at once, while they are there, the gradient of the layer's input.
The gradient of the weight needs two numbers per sample of a chunk, the largest logit and the probability of that class;
the rule (`ckplan.autodiff.rules.losses.linear_cross_entropy`) goes through the classes with them, and writes the rows
of the weight's gradient. The logits are made twice, one product of four.

So there is no sum over chunks to hold, and where the gradient of a loss by a sample's is known in the backward pass
only, this is the one form that there is.
"""

from __future__ import annotations

from collections.abc import Container, Mapping

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, emit_scan, new_value
from ckplan.autodiff.idioms.row_maxima import row_maxima
from ckplan.autodiff.losses.crossentropy import labels_of, reduce_losses
from ckplan.autodiff.losses.known_slopes import known_slopes
from ckplan.autodiff.losses.one_pass_head import emit_one_pass
from ckplan.autodiff.losses.output_layer import Layer, layer_of, product
from ckplan.autodiff.losses.softmax_statistics import OPERATOR, wanted_of
from ckplan.autodiff.losses.statistics_head import emit_head
from ckplan.autodiff.paths import depends, discard
from ckplan.autodiff.pieces.regions import Pieces, Region, largest_divisor
from ckplan.autodiff.reading import dtype_of, required_input, shape_of, size_of
from ckplan.keys import PHASE, PIECES


def chunk_loss_heads(
    op: Builder, pieces: Pieces, wanted: Container[ir.Value], targets: Mapping[ir.Value, ir.Value | None]
) -> tuple[dict[ir.Value, ir.Value], list[Region], list[str]]:
    """Make one composite of each loss of a softmax and the linear layer before it.

    A loss whose logits anybody else reads is left as it is, and so is one over another axis than the last. Where the
    gradients of single losses are not known in the forward pass, a cross-entropy takes two passes whatever was asked
    for, and what is more than that stays whole.

    Args:
        op: builder of the forward graph, losses and all.
        pieces: into how many the samples go, at most, and in how many passes; a number that divides that of the
            samples is taken. 1 cuts nothing.
        wanted: the values that gradients are asked for.
        targets: what the reverse sweep will start from, with the gradients that are given.

    Returns:
        What took the place of losses; the loss heads, whether they were cut or not; and notes on those that cannot be.
    """
    made: dict[ir.Value, ir.Value] = {}
    regions, notes = [], []
    for node in [node for node in op.graph if node.domain == DOMAIN and node.op_type in ("CrossEntropy", OPERATOR)]:
        plain = node.op_type == "CrossEntropy"
        layer = layer_of(node, 1 if plain else wanted_of(node).count)
        if layer is None:
            continue
        name, logits = str(node.name), required_input(node, 0)
        known = None if plain else known_slopes(op, node.outputs[: wanted_of(node).count], targets)
        if not plain and known is None:
            if pieces.loss > 1:
                why = "what its samples pass back is known in the backward pass only"
                notes.append(f"the loss head of '{logits.name}' stays whole: {why}")
            continue
        asked = depends(layer.x, wanted), any(depends(v, wanted) for v in (layer.weight, layer.bias) if v is not None)
        samples = size_of(logits) // max(shape_of(logits)[-1], 1)
        count, once = largest_divisor(samples, pieces.loss), pieces.passes == 1 and any(asked)
        once = once and not (plain and labels_of(node).reduction == "none")
        size = size_of(logits) * dtype_of(logits).itemsize
        weight, passes = str(layer.weight.name) if layer.weight in wanted else "", 1 if once else 2
        regions.append(Region("loss", str(logits.name), "samples", samples, size, name, count, passes, weight))
        if count == 1:
            continue
        with op.scope(name, "forward", before=node):
            if known is not None:
                emit_head(op, node, layer, count, known, asked, 1 if once else 2)
            else:
                old, title = node.outputs[0], node.outputs[0].name
                new = emit_one_pass(op, node, layer, count, asked) if once else _emit(op, node, layer, count)
                old.replace_all_uses_with(new, replace_graph_outputs=True)
                new.name, made[old] = title, new
        discard(op.graph, [node, *reversed(layer.nodes)])
        op.functions.pop(node.op_identifier(), None)
    return made, regions, notes


def _emit(op: Builder, loss: ir.Node, layer: Layer, count: int) -> ir.Value:
    """Emit a loss head in two passes, as a composite, in the scope of the loss; return its loss."""
    labels = labels_of(loss)
    features, samples = shape_of(layer.x)[-1], size_of(labels.indices)
    name = str(loss.name)
    with op.recording() as nodes:
        rows = op.reshape(layer.x, (count, samples // count, features))
        indices = op.reshape(labels.indices, (count, samples // count, 1))
        body = _samples_body(op, layer, name, samples // count, indices.dtype)
        outputs = [
            new_value(op, f"{name}/{what}", layer.x.dtype, (count, samples // count, width))
            for what, width in (("picked", 1), ("largest", 1), ("probability", 1), ("x_grad", features))
        ]
        about = {PHASE: "forward", PIECES: str(count)}
        emit_scan(op, f"{name}/Scan", body, [], [rows, indices], outputs, about)
        picked, largest, probability, slope = outputs
        losses = op.Neg(op.reshape(picked, shape_of(labels.indices)))
        value = reduce_losses(op, losses, labels, shape_of(loss.outputs[0]))
    kept = [losses, slope, largest, probability]
    attributes_of_loss = {"axis": -1, "reduction": labels.reduction, "by_rows": int(layer.by_rows), "chunks": count}
    inputs = [layer.x, labels.weights, labels.indices, layer.weight, layer.bias]
    return outline(op, "LinearCrossEntropy", nodes, inputs, [value, *kept], attributes_of_loss)[0]


def _samples_body(op: Builder, layer: Layer, name: str, samples: int, index_type: ir.DataType | None) -> ir.Graph:
    """What is done for a chunk of samples; softmax and its gradient are in the buffer of the logits."""
    x = new_value(op, f"{name}/x", layer.x.dtype, (samples, shape_of(layer.x)[-1]))
    indices = new_value(op, f"{name}/indices", index_type, (samples, 1))
    graph = ir.Graph([x, indices], [], nodes=[], name=op.unique_name(f"{name}/samples"))
    inner = BodyBuilder(op, graph)
    with inner.scope(name, "forward"):
        logits = product(inner, x, layer.weight, layer.bias, layer.by_rows)
        largest = row_maxima(inner, logits)
        logarithms = inner.LogSoftmax(logits, axis=-1)
        picked = inner.GatherElements(logarithms, indices, axis=1)
        probabilities = inner.Softmax(logarithms, axis=-1)
        probability = row_maxima(inner, probabilities)
        ones = inner.expand(inner.constant(np.asarray(-1, dtype_of(logits))), (samples, 1))
        slopes = inner.ScatterElements(probabilities, indices, ones, axis=1, reduction="add")
        found = product(inner, slopes, layer.weight, None, not layer.by_rows)
    graph.outputs.extend([picked, largest, probability, found])
    close_body(inner)
    return graph

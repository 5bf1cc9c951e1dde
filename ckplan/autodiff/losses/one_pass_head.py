"""Cross-entropy of a linear layer in one pass over chunks of samples: nothing is made twice.

The loss of a mean or a sum of samples reaches the logits of each through a number that the targets alone decide: its
weight, and what the weights sum up to. So all that is made of a chunk's logits is made while they are there: losses,
their own gradient in the same memory, rows of the gradient of the layer's input, and what the chunk adds to the
gradient of the weight. What the loss itself is multiplied by afterwards is one number for all samples, which the rule
(`ckplan.autodiff.rules.losses.linear_cross_entropy`) multiplies by.

The form is that of Liger Kernel (Hsu et al., arXiv:2410.10989). The chunks stand one after the other in the graph, not
in a Scan, which holds each state twice. The gradient of the weight is summed up in bands of classes, because
onnxruntime's Gemm copies what it adds to: a band at a time is there twice. Bands of features would need no copy of a
part of the slopes, but their products are narrow: of 256 samples, 32,000 classes and 512 features, eight of 64
features take 1.5 times as long as sixteen of 2,000 classes, copies included.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import outline
from ckplan.autodiff.idioms.presence import read_after
from ckplan.autodiff.idioms.slices import slice_axes, stretch
from ckplan.autodiff.idioms.sums import total
from ckplan.autodiff.losses.crossentropy import Labels, labels_of, reduce_losses
from ckplan.autodiff.losses.output_layer import Layer, product
from ckplan.autodiff.reading import dtype_of, shape_of, size_of
from ckplan.keys import ONCE

BANDS = 16
"""Into how many bands of classes the gradient of a weight goes, at most."""

_NARROWEST = 256
"""Classes of the narrowest band: narrower products are slow."""


def bands_of(classes: int) -> list[tuple[int, int]]:
    """Where each band of classes begins and ends."""
    count = max(1, min(BANDS, classes // _NARROWEST))
    return list(pairwise(classes * index // count for index in range(count + 1)))


def emit_one_pass(op: Builder, loss: ir.Node, layer: Layer, count: int, trained: tuple[bool, bool]) -> ir.Value:
    """Emit a loss head in one pass, as a composite; return its loss.

    Its outputs are the loss, the losses of the samples, and the gradients that are asked for, of a loss whose own
    gradient is one: of the layer's input [samples, features], of the weight in bands of classes, and of the bias
    [classes, 1].

    Args:
        op: builder of the forward graph, in the scope of the loss.
        loss: the cross-entropy, a mean or a sum.
        layer: what makes its logits.
        count: into how many chunks the samples go.
        trained: whether gradients are asked for of the layer's input, and of its weight or bias.
    """
    labels = labels_of(loss)
    samples, features = size_of(labels.indices), shape_of(layer.x)[-1]
    with op.recording() as nodes:
        x = op.reshape(layer.x, (samples, features))
        indices, factors = op.reshape(labels.indices, (samples, 1)), _factors(op, labels, dtype_of(layer.x))
        picked: list[ir.Value] = []

        def slopes_of(logits: ir.Value, start: int, end: int) -> tuple[ir.Value, ir.Value]:
            part = factors if size_of(factors) == 1 else stretch(op, factors, 0, start, end)
            losses, slopes = _chunk(op, logits, stretch(op, indices, 0, start, end))
            picked.append(losses)
            return slopes, part

        found = go_through(op, layer, x, count, trained, slopes_of)
        losses = op.Neg(op.reshape(op.Concat(*picked, axis=0), shape_of(labels.indices)))
        value = reduce_losses(op, losses, labels, shape_of(loss.outputs[0]))
        # Right behind a product, onnxruntime would make an attribute of the factor, of single precision.
        whole = [op.Mul(op.Concat(*found.by_x, axis=0), factors)] if found.by_x else []
    inputs = [layer.x, labels.weights, labels.indices, layer.weight, layer.bias]
    outputs = [value, losses, *whole, *found.bands, *found.bias]
    counts = {"by_rows": int(layer.by_rows), "by_x": len(whole), "bands": len(found.bands)}
    attributes = {**counts, "reduction": labels.reduction}
    return outline_once(op, "OnePassCrossEntropy", nodes, inputs, outputs, attributes)[0]


@dataclass(frozen=True)
class Gathered:
    """What chunks of samples have made of the gradients of a layer.

    Attributes:
        by_x: of each chunk the gradient of the layer's input, but for the factors of its rows.
        bands: the gradient of the weight, in bands of classes.
        bias: that of the bias [classes, 1], if it is there.
    """

    by_x: list[ir.Value]
    bands: list[ir.Value]
    bias: list[ir.Value]


def go_through(
    op: Builder,
    layer: Layer,
    x: ir.Value,
    count: int,
    trained: tuple[bool, bool],
    slopes_of: Callable[[ir.Value, int, int], tuple[ir.Value, ir.Value]],
    bands: Sequence[ir.Value] = (),
    bias: Sequence[ir.Value] = (),
) -> Gathered:
    """Emit the logits of one chunk of samples after the other, and what becomes of them.

    Args:
        op: the builder.
        layer: what makes the logits.
        x: its input [samples, features].
        count: into how many chunks the samples go.
        trained: whether gradients are asked for of the layer's input, and of its weight or bias.
        slopes_of: from the logits of a chunk, its first sample and the one behind its last to the gradient of the
            logits, in their buffer, and the factors that its rows still need [samples, 1] or [1, 1].
        bands: what the gradient of the weight begins with, if not with nothing.
        bias: the same of the bias.
    """
    samples = shape_of(x)[0]
    found = Gathered([], list(bands), list(bias))
    for start, end in pairwise(range(0, samples + 1, samples // count)):
        # One chunk after the other, in whatever order onnxruntime runs the file.
        done = [*found.by_x, *(found.bands if start else ())][-1:]
        rows = stretch(op, read_after(op, x, done[0]) if done else x, 0, start, end)
        logits = product(op, rows, layer.weight, layer.bias, layer.by_rows)
        slopes, part = slopes_of(logits, start, end)
        if trained[1]:
            found.bands[:] = _with_chunk(op, found.bands, slopes, op.Mul(rows, part), layer.by_rows)
        if trained[1] and layer.bias is not None:
            found.bias[:] = [op.Gemm(slopes, op.expand(part, (end - start, 1)), *found.bias, transA=1)]
        if trained[0]:
            found.by_x.append(product(op, slopes, layer.weight, None, not layer.by_rows))
    return found


def outline_once(
    op: Builder,
    op_type: str,
    nodes: Sequence[ir.Node],
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, Any],
) -> Sequence[ir.Value]:
    """Put a composite in the place of nodes that are not made twice; see `composites.outline`."""
    for node in nodes:
        node.metadata_props[ONCE] = "chunk"
    return outline(op, op_type, nodes, inputs, outputs, attributes)


def _factors(op: Builder, labels: Labels, dtype: np.dtype[Any]) -> ir.Value:
    """The derivative of the loss by that of each sample, [samples, 1]; [1, 1] where it is the same for all."""
    samples, one = size_of(labels.indices), np.ones((1, 1), dtype)
    if labels.weights is None:
        return op.constant(one / dtype.type(samples) if labels.reduction == "mean" else one)
    weights = op.reshape(labels.weights, (samples, 1))
    return weights if labels.reduction == "sum" else op.Mul(weights, op.Div(one, total(op, labels.weights)))


def _chunk(op: Builder, logits: ir.Value, indices: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Log-probabilities of the labels [rows, 1], and the gradient of their negative sum by the logits.

    Logits, logarithms, probabilities and gradient are in one buffer, as for logits that are whole.
    """
    logarithms = op.LogSoftmax(logits, axis=-1)
    picked = op.GatherElements(logarithms, indices, axis=1)
    probabilities = op.Softmax(read_after(op, logarithms, picked), axis=-1)
    minus = op.constant(np.full(shape_of(indices), -1, dtype_of(logits)))
    return picked, op.ScatterElements(probabilities, indices, minus, axis=1, reduction="add")


def _with_chunk(op: Builder, bands: Sequence[ir.Value], slopes: ir.Value, x: ir.Value, by_rows: bool) -> list[ir.Value]:
    """Bands of the weight's gradient with what a chunk adds to them; ``bands`` is empty before the first one."""
    made = []
    for index, (start, end) in enumerate(bands_of(shape_of(slopes)[1])):
        part = slice_axes(op, slopes, [1], [start], [end])
        left, right = (part, x) if by_rows else (x, part)
        made.append(op.Gemm(left, right, *bands[index : index + 1], transA=1))
    return made

"""Gradients of loss heads of tied tables, part by part; see `ckplan.autodiff.losses.tied_heads`."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN
from ckplan.autodiff.idioms.presence import read_after
from ckplan.autodiff.losses.crossentropy import labels_of
from ckplan.autodiff.losses.tied_heads import PARTS, part_of, parts_of, places
from ckplan.autodiff.reading import dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.losses.criteria import by_sample_weights, sample_slopes

_LEAST = 1e-20
"""Share of the sum of exponentials below which a part counts as having this one: far below what float32 resolves beside
one, and with a reciprocal that is still a float32."""


@rule("TiedCrossEntropy", domain=DOMAIN, factor="leave", leading=4, fixed=(2,))
def tied_cross_entropy(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the log-probabilities within each part, the parts' shares, the input and the table."""
    labels = labels_of(node)
    x, table = required_input(node, 0), required_input(node, 3)
    by_weights = by_sample_weights(op, node, dy, labels)
    if not (op.wants(x) or op.wants(table)):
        return [None, by_weights]
    given = op.factor
    slopes = sample_slopes(op, dy, labels)
    slopes = op.scale(op.reshape(slopes, (size_of(slopes), 1)), op.factor)
    rows, factors = [], []
    logarithms, offsets = node.outputs[2 : 2 + PARTS], node.outputs[2 + PARTS : 2 + 2 * PARTS]
    for bounds, within, offset in zip(parts_of(shape_of(table)[0]), logarithms, offsets, strict=True):
        inside, at = places(op, labels.indices, bounds, shape_of(table)[0])
        share = op.Max(op.Exp(offset), np.asarray(_LEAST, dtype_of(x)))
        ones = op.Where(inside, op.Div(np.asarray(-1, dtype_of(x)), share), 0.0)
        # Left to itself, onnxruntime makes the probabilities before it has read the losses off, in a second buffer.
        probabilities = op.Softmax(read_after(op, within, node.outputs[1]), axis=-1)
        rows.append(op.ScatterElements(probabilities, at, ones, axis=1, reduction="add"))
        factors.append(op.Mul(share, slopes))
    op.factor = 1.0  # is in the factors of the rows, which are fewer than what would be multiplied else
    by_x, by_table = _by_layer(op, x, table, rows, factors)
    return [by_x, None if by_weights is None else op.scale(by_weights, given), None, by_table]


@rule("TiedMeanSquaredError", domain=DOMAIN, factor="leave", leading=2)
def tied_mean_squared_error(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the differences, the input and the table."""
    x, table, slope = required_input(node, 0), required_input(node, 1), dy[0]
    assert slope is not None
    rows = [read_after(op, part, node.outputs[0]) for part in node.outputs[1 : 1 + PARTS]]
    factor = op.scale(op.reshape(slope, (1, 1)), op.factor * 2 / sum(size_of(part) for part in rows))
    op.factor = 1.0
    return _by_layer(op, x, table, rows, [factor] * PARTS)


def _by_layer(
    op: Builder, x: ir.Value, table: ir.Value, rows: Sequence[ir.Value], factors: Sequence[ir.Value]
) -> tuple[ir.Value | None, ir.Value | None]:
    """Derivatives by the layer's input and by the table, from the parts of the gradient by the logits.

    Args:
        op: the builder.
        x: input of the layer.
        table: its weight, a row for each class.
        rows: the parts [samples, classes of the part], but for the factors of their rows.
        factors: [samples, 1] or [1, 1] for each part.
    """
    width = shape_of(table)[1]
    flat = op.reshape(x, (size_of(x) // width, width))
    by_x: ir.Value | None = None
    parts = []
    for (start, end), part, factor in zip(parts_of(shape_of(table)[0]), rows, factors, strict=True):
        if op.wants(table):
            parts.append(op.Gemm(part, op.Mul(flat, factor), transA=1))
        if op.wants(x):
            # The copy that the forward pass made would lie there until now.
            found = op.Gemm(part, part_of(op, read_after(op, table, part), start, end))
            if parts and shape_of(flat)[0] >= width:  # what is larger goes first
                found = read_after(op, found, parts[-1])
            found = op.Mul(found, factor)
            by_x = found if by_x is None else op.Add(by_x, found)
    by_x = None if by_x is None else op.reshape(by_x, shape_of(x))
    return by_x, op.Concat(*parts, axis=0) if parts else None

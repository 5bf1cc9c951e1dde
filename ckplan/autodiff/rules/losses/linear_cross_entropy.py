"""Gradient of a cross-entropy and the linear layer before it, in chunks.

See `ckplan.autodiff.losses.linear_cross_entropy`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, emit_scan, new_value
from ckplan.autodiff.idioms.row_factors import Offsets
from ckplan.autodiff.idioms.scattering import Updates, joined, spread
from ckplan.autodiff.idioms.slices import rows_from, slice_axes
from ckplan.autodiff.losses.crossentropy import labels_of
from ckplan.autodiff.losses.output_layer import product
from ckplan.autodiff.pieces.regions import near_divisor
from ckplan.autodiff.pieces.row_writing import WRITER, block_of, write_rows
from ckplan.autodiff.reading import attr_int, dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.losses.criteria import by_sample_weights, is_one, sample_slopes
from ckplan.keys import PHASE, PIECES
from ckplan.operators.matching import input_of


@rule("LinearCrossEntropy", domain=DOMAIN, leading=5, fixed=(2,))
def linear_cross_entropy(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads input, weight, and the largest logit of each sample with its probability; the gradient of x is there."""
    labels = labels_of(node)
    x, weight, bias = required_input(node, 0), required_input(node, 3), input_of(node, 4)
    by_weights = by_sample_weights(op, node, dy, labels)
    if not any(op.wants(value) for value in (x, weight, bias)):
        return [None, by_weights]
    slopes = sample_slopes(op, dy, labels)  # leaves the factor of the mean, which belongs to tensors smaller than these
    slopes = op.scale(slopes, op.factor)
    by_x = None
    if op.wants(x):
        rows = op.reshape(node.outputs[2], shape_of(x))
        factors = slopes if size_of(slopes) == 1 else op.reshape(slopes, (*shape_of(x)[:-1], 1))
        by_x = op.Mul(rows, factors)
    if not (op.wants(weight) or op.wants(bias)):
        return [by_x, by_weights]
    by_weight, by_bias = _by_layer(op, node, slopes)
    return [by_x, by_weights, None, by_weight, by_bias if op.wants(bias) else None]


@rule("OnePassCrossEntropy", domain=DOMAIN, leading=5, fixed=(2,))
def one_pass_cross_entropy(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """All gradients are there, for a loss whose own gradient is one."""
    slope, labels = dy[0], labels_of(node)
    assert slope is not None
    layer = required_input(node, 0), required_input(node, 3), input_of(node, 4)
    by_x, by_weight, by_bias = made_at_once(op, node, layer, node.outputs[2:], slope)
    return [by_x, by_sample_weights(op, node, dy, labels), None, by_weight, by_bias]


def made_at_once(
    op: Builder,
    node: ir.Node,
    layer: tuple[ir.Value, ir.Value, ir.Value | None],
    made: Sequence[ir.Value],
    slope: ir.Value,
) -> tuple[ir.Value | None, ir.Value | None, ir.Value | None]:
    """The gradients of a layer that the forward pass has made in one pass.

    Args:
        op: the builder.
        node: the composite, whose attributes say what there is.
        layer: input, weight and bias.
        made: the gradients for a loss whose own gradient is one: see `ckplan.autodiff.losses.one_pass_head`.
        slope: the gradient of the loss, of one element.
    """
    x, weight, bias = layer
    known = is_one(op, slope)
    found = [value if known else op.Mul(value, op.reshape(slope, (1, 1))) for value in made]
    first, bands = attr_int(node, "by_x", 0), attr_int(node, "bands", 0)
    by_x = op.reshape(found[0], shape_of(x)) if first and op.wants(x) else None
    by_weight = None
    if op.wants(weight):
        axis, parts = 1 - attr_int(node, "by_rows", 0), found[first : first + bands]
        by_weight = op.Concat(*parts, axis=axis) if len(parts) > 1 else parts[0]
        if axis == 0 and len(parts) > 1:
            by_weight.meta[WRITER] = partial(_with_added, bands=parts)
    by_bias = op.reshape(found[first + bands], shape_of(bias)) if bias is not None and op.wants(bias) else None
    return by_x, by_weight, by_bias


def _with_added(op: Builder, updates: Updates, bands: Sequence[ir.Value]) -> ir.Value:
    """A table in bands of rows with something added to it, one band after the other.

    What is added to a row is looked up. Scattering the same into each band would take as long for each as for all.
    """
    added = spread(op, updates, sum(shape_of(band)[0] for band in bands))
    made: list[ir.Value] = []
    start = 0
    for band in bands:
        end = start + shape_of(band)[0]
        more = op.Gather(added.table, slice_axes(op, added.places, [0], [start], [end]), axis=0)
        made.append(op.Add(band, more))
        start = end
    return op.Concat(*made, axis=0)


def _by_layer(op: Builder, node: ir.Node, slopes: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Gradients of weight and bias, from the two numbers that are kept of each sample.

    The gradient by a logit is ``exp(logit - largest) * probability of the largest - is the label``. Its row's
    factors go to the rows of x, which are fewer numbers.
    """
    x, weight, bias = required_input(node, 0), required_input(node, 3), input_of(node, 4)
    indices = required_input(node, 2)
    samples, features = size_of(indices), shape_of(x)[-1]
    largest, probability = (op.reshape(node.outputs[i], (samples, 1)) for i in (3, 4))
    head = Head(
        rows=op.reshape(x, (samples, features)),
        labels=(op.reshape(indices, (samples, 1)),),
        largest=largest,
        shares=(op.Div(np.asarray(-1, dtype_of(x)), probability),),
        factors=op.Mul(probability, slopes if size_of(slopes) == 1 else op.reshape(slopes, (samples, 1))),
    )
    return by_layer(op, node, head, weight, bias)


@dataclass(frozen=True)
class Head:
    """What the gradients of a head's logits are made of.

    Attributes:
        rows: input of the layer [samples, features].
        labels: classes of each sample [samples, 1] to which something is added.
        largest: its largest logit [samples, 1].
        shares: what is added to each of these classes [samples, 1].
        factors: what the rows still have to be multiplied by [samples, 1].
        offsets: what is added to the gradients besides, None for nothing.
    """

    rows: ir.Value
    labels: tuple[ir.Value, ...]
    largest: ir.Value
    shares: tuple[ir.Value, ...]
    factors: ir.Value
    offsets: Offsets | None = None

    def shares_of(self, op: Builder, logits: ir.Value) -> ir.Value:
        """The gradient of some logits [samples, n], but for the factors of its rows and what labels and offsets add."""
        return op.Exp(op.Sub(logits, self.largest))

    def slopes(self, op: Builder, start: ir.Value, width: int, logits: ir.Value) -> ir.Value:
        """The same of the ``width`` classes from ``start`` on, with what labels add."""
        rows = self.shares_of(op, logits)
        for labels, share in zip(self.labels, self.shares, strict=True):
            place = op.Sub(labels, op.Cast(start, to=labels.dtype))
            ends = np.asarray(0, dtype_of(labels)), np.asarray(width - 1, dtype_of(labels))
            here = op.And(op.GreaterOrEqual(place, ends[0]), op.LessOrEqual(place, ends[1]))
            target = op.Where(here, share, np.asarray(0, dtype_of(self.rows)))
            rows = op.ScatterElements(rows, op.Clip(place, *ends), target, axis=1, reduction="add")
        return rows

    def updates(self, op: Builder) -> list[Updates]:
        """What labels add to the rows of the gradient of a weight that has a row for each class."""
        return [
            Updates(op.reshape(labels, (size_of(labels),)), op.Mul(self.rows, op.Mul(share, self.factors)))
            for labels, share in zip(self.labels, self.shares, strict=True)
        ]

    def added(self, op: Builder, sums: ir.Value | None, start: ir.Value, width: int) -> ir.Value | None:
        """What offsets add to ``width`` rows of a gradient from ``start`` on: their sums [1, n], or [width, n]."""
        if sums is None or self.offsets is None or self.offsets.columns is None:
            return sums
        return op.Gemm(rows_from(op, self.offsets.columns, start, width, axis=1), sums, transA=1)


def by_layer(
    op: Builder, node: ir.Node, head: Head, weight: ir.Value, bias: ir.Value | None
) -> tuple[ir.Value, ir.Value | None]:
    """Gradients of weight and bias, chunks of classes one after the other: rows of the weight, or all at once.

    Args:
        op: the builder.
        node: the composite; its attributes say how the weight lies, and how many chunks there are.
        head: what the gradients of the logits are made of.
        weight: of the layer.
        bias: of the layer, None without.
    """
    block = block_of(weight) if attr_int(node, "by_rows", 0) and bias is None else 0
    if not block:
        return _in_chunks(op, node, head, weight, bias)
    return _by_rows(op, f"{node.name}/grad/Scan", head, weight, block), None


def _by_rows(
    op: Builder, name: str, head: Head, weight: ir.Value, block: int, more: Sequence[Updates] = ()
) -> ir.Value:
    """The gradient of a weight with a row for each class, and what else is added to its rows, row by row.

    What labels add goes to the rows of the gradient: to those of the logits it would take a search for each block.
    """
    turned = op.Transpose(op.Mul(head.rows, head.factors), perm=(1, 0))
    sums = None if head.offsets is None else op.Gemm(head.offsets.rows, head.rows, transA=1)

    def rows_of(inner: Builder, start: ir.Value) -> ir.Value:
        chunk = rows_from(inner, weight, start, block)
        shares = head.shares_of(inner, product(inner, head.rows, chunk, None, True))
        # The narrow factor stands right in both products: the right one is packed anew each time.
        found = inner.Transpose(inner.MatMul(turned, shares), perm=(1, 0))
        added = head.added(inner, sums, start, block)
        return found if added is None else inner.Add(found, added)

    updates = joined(op, [*head.updates(op), *more])
    result = write_rows(op, name, weight, block, rows_of, spread(op, updates, shape_of(weight)[0]))
    result.meta[WRITER] = lambda other, last: _by_rows(other, name, head, weight, block, [*more, last])
    return result


def _in_chunks(
    op: Builder, node: ir.Node, head: Head, weight: ir.Value, bias: ir.Value | None
) -> tuple[ir.Value, ir.Value | None]:
    """Gradients of weight and bias from a Scan over chunks of classes."""
    name, by_rows = f"{node.name}/grad/Scan", bool(attr_int(node, "by_rows", 0))
    features, classes = shape_of(head.rows)[1], shape_of(weight)[0 if by_rows else 1]
    count = near_divisor(classes, attr_int(node, "chunks", 1))
    width = classes // count
    scaled = op.Mul(head.rows, head.factors)
    starts = op.constant(np.arange(count) * width)
    start = new_value(op, f"{name}/start", ir.DataType.INT64, ())
    sums = None if head.offsets is None else op.Gemm(head.offsets.rows, head.rows, transA=1)
    total = None if head.offsets is None else op.reduce_sum(head.offsets.rows, [0])
    chunk = new_value(op, f"{name}/weight", weight.dtype, (width, features))
    part = new_value(op, f"{name}/bias", weight.dtype, (width,))
    graph = ir.Graph([], [], nodes=[], name=op.unique_name(f"{name}/classes"))
    inner = BodyBuilder(op, graph)
    inputs: list[ir.Value] = [starts]
    graph.inputs.append(start)
    with inner.scope(name):
        if by_rows:
            graph.inputs.append(chunk)
            inputs.append(op.reshape(weight, (count, width, features)))
        else:
            chunk = rows_from(inner, weight, start, width, axis=1)
        if bias is not None:
            graph.inputs.append(part)
            inputs.append(op.reshape(bias, (count, width)))
        logits = product(inner, head.rows, chunk, None if bias is None else part, by_rows)
        slope = head.slopes(inner, start, width, logits)
        graph.outputs.append(inner.Gemm(slope, scaled, head.added(inner, sums, start, width), transA=1))
        if bias is not None:
            found = inner.Gemm(slope, head.factors, head.added(inner, total, start, width), transA=1)
            graph.outputs.append(inner.reshape(found, (width,)))
    close_body(inner)
    outputs = [new_value(op, f"{name}_out", weight.dtype, (count, width, features))]
    if bias is not None:
        outputs.append(new_value(op, f"{name}_out", weight.dtype, (count, width)))
    emit_scan(op, name, graph, [], inputs, outputs, {PHASE: "backward", PIECES: str(count)})
    by_bias = op.reshape(outputs[1], (classes,)) if bias is not None else None
    by_weight = op.reshape(outputs[0], (classes, features))
    return by_weight if by_rows else op.transpose(by_weight, (1, 0)), by_bias

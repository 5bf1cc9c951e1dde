"""Loss heads of tied tables in parts: what the output layer makes of the table is never there whole beside its logits.

A table that is looked up at the beginning and multiplied by at the end has a gradient of two parts, and the product of
the head has to wait for what the lookups bring. Made from the gradient of all logits, it stands beside them: the two
largest tensors of the step. In parts of the table's rows, each part of the logits goes when its part of the table's
gradient is there. Nothing is computed twice. With ``l_c`` the logits of part c, shifted by the largest of all,

    log softmax(l) = log softmax(l_c) + o_c,    o_c = logsumexp(l_c) - logsumexp(l),

so that logits, logarithms and probabilities of each part take one buffer, as those of the whole do.
"""

from __future__ import annotations

import itertools
from collections.abc import Container, Iterator

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.idioms.row_maxima import row_maxima
from ckplan.autodiff.idioms.slices import stretch
from ckplan.autodiff.idioms.sums import total
from ckplan.autodiff.losses.crossentropy import labels_of, reduce_losses
from ckplan.autodiff.losses.output_layer import Layer, layer_of
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import attr_int, required_input, shape_of, size_of
from ckplan.operators.matching import is_op

PARTS = 4
"""Into how many parts a table goes: a quarter of it is little beside the logits, and its products are still large."""

_SMALLEST = 2**20
"""Bytes of a part below which the head is left whole."""


def split_tied_heads(op: Builder, parameters: Container[ir.Value]) -> dict[ir.Value, ir.Value]:
    """Put loss heads in parts in the place of those of tied tables, where that takes less memory.

    Args:
        op: builder of the forward graph, losses and all.
        parameters: what is trained.

    Returns:
        What took the place of losses.
    """
    made: dict[ir.Value, ir.Value] = {}
    for node in [n for n in op.graph if n.domain == DOMAIN and n.op_type in ("CrossEntropy", "MeanSquaredError")]:
        layer = layer_of(node)
        if layer is not None and layer.weight in parameters and _pays(layer):
            made[node.outputs[0]] = _replace(op, node, layer)
    return made


def _pays(layer: Layer) -> bool:
    """Say whether a head is tied, large, and of so many samples that its product has to be made before the lookups."""
    readers = [use.node for use in layer.weight.uses()]
    lookups = [n for n in readers if is_op(n, "Gather") and attr_int(n, "axis", 0) == 0]
    if not lookups or not layer.by_rows or layer.bias is not None:
        return False
    rows, width = shape_of(layer.weight)
    samples = size_of(layer.x) // max(width, 1)
    count = sum(size_of(required_input(node, 1)) for node in lookups)
    assert layer.weight.dtype is not None
    large = rows // PARTS * width * layer.weight.dtype.itemsize >= _SMALLEST
    return large and 2 * samples + count >= width


def parts_of(rows: int) -> Iterator[tuple[int, int]]:
    """Where each part begins and ends, of so many rows."""
    ends = [rows * index // PARTS for index in range(PARTS + 1)]
    return itertools.pairwise(ends)


def _replace(op: Builder, loss: ir.Node, layer: Layer) -> ir.Value:
    """Put the composite in the place of a loss and its layer; return its loss."""
    emit = _cross_entropy if loss.op_type == "CrossEntropy" else _mean_squared_error
    old, title = loss.outputs[0], loss.outputs[0].name
    with op.scope(str(loss.name), "forward", before=loss):
        new = emit(op, loss, layer)
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    discard(op.graph, [loss, *reversed(layer.nodes)])
    op.functions.pop(loss.op_identifier(), None)
    new.name = title
    return new


def _cross_entropy(op: Builder, loss: ir.Node, layer: Layer) -> ir.Value:
    labels = labels_of(loss)
    rows, width = shape_of(layer.weight)
    with op.recording() as nodes:
        x = op.reshape(layer.x, (size_of(layer.x) // width, width))
        largest, logarithms, tops = [], [], []
        last = np.asarray([1], dtype=np.int64)
        for start, end in parts_of(rows):
            logits = op.Gemm(x, part_of(op, layer.weight, start, end), transB=1)
            largest.append(row_maxima(op, logits))
            logarithms.append(op.LogSoftmax(logits, axis=-1))
            tops.append(row_maxima(op, logarithms[-1]))
        whole = op.Max(*largest)
        sums = [op.Sub(op.Sub(most, whole), top) for most, top in zip(largest, tops, strict=True)]
        norm = op.ReduceLogSumExp(op.Concat(*sums, axis=1), last, keepdims=1)
        offsets = [op.Sub(value, norm) for value in sums]
        found = []
        for bounds, values, offset in zip(parts_of(rows), logarithms, offsets, strict=True):
            inside, at = places(op, labels.indices, bounds, rows)
            found.append(op.Where(inside, op.Add(op.GatherElements(values, at, axis=1), offset), 0.0))
        losses = op.Neg(op.reshape(op.Sum(*found), shape_of(labels.indices)))
        value = reduce_losses(op, losses, labels, shape_of(loss.outputs[0]))
    inputs = [layer.x, labels.weights, labels.indices, layer.weight]
    attributes = {"axis": -1, "reduction": labels.reduction}
    outputs = [value, losses, *logarithms, *offsets]
    return outline(op, "TiedCrossEntropy", nodes, inputs, outputs, attributes)[0]


def _mean_squared_error(op: Builder, loss: ir.Node, layer: Layer) -> ir.Value:
    target = required_input(loss, 1)
    rows, width = shape_of(layer.weight)
    count = size_of(layer.x) // width
    with op.recording() as nodes:
        x, aims = op.reshape(layer.x, (count, width)), op.reshape(target, (count, rows))
        differences = []
        for start, end in parts_of(rows):
            aim = stretch(op, aims, 1, start, end)
            weight = part_of(op, layer.weight, start, end)
            differences.append(op.Gemm(x, weight, aim, transB=1, beta=-1.0))
        squares = [total(op, difference, "ReduceSumSquare") for difference in differences]
        value = op.Mul(op.Sum(*squares), 1 / max(count * rows, 1))
    return outline(op, "TiedMeanSquaredError", nodes, [layer.x, layer.weight], [value, *differences])[0]


def part_of(op: Builder, table: ir.Value, start: int, end: int) -> ir.Value:
    """The rows of a table from ``start`` to ``end``, a copy."""
    return stretch(op, table, 0, start, end)


def places(op: Builder, indices: ir.Value, bounds: tuple[int, int], rows: int) -> tuple[ir.Value, ir.Value]:
    """Whether classes are in a part [n, 1], and where in it: 0 if they are not."""
    start, end = bounds
    flat = op.reshape(indices, (size_of(indices), 1))
    inside = op.Less(flat, end) if start == 0 else op.GreaterOrEqual(flat, start)
    if start > 0 and end < rows:
        inside = op.And(inside, op.Less(flat, end))
    zero = np.zeros((), dtype=flat.dtype.numpy() if flat.dtype else np.int64)
    return inside, op.Where(inside, flat if start == 0 else op.Sub(flat, start), zero)

"""Loss heads with label smoothing, z-loss and the like in chunks of samples: the logits never exist whole.

What such a loss reads of the logits is made by one composite (`ckplan.autodiff.losses.softmax_statistics`). Where the
derivatives by these numbers are known before the logits are (`ckplan.autodiff.losses.known_slopes`), that composite and
the layer before it become another one, with the forms that a plain cross-entropy has: one pass, in which all gradients
are made (`ckplan.autodiff.losses.one_pass_head`), or two (`ckplan.autodiff.losses.linear_cross_entropy`).

The gradient of a z-loss by the normaliser depends on that, but sample by sample: with a chunk's logits it is there.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import outline
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, emit_scan, new_value
from ckplan.autodiff.idioms.row_factors import Offsets
from ckplan.autodiff.idioms.row_maxima import row_maxima
from ckplan.autodiff.idioms.slices import slice_axes, stretch
from ckplan.autodiff.losses.known_slopes import KnownSlopes
from ckplan.autodiff.losses.one_pass_head import bands_of, go_through, outline_once
from ckplan.autodiff.losses.output_layer import Layer, product
from ckplan.autodiff.losses.softmax_statistics import (
    Derivatives,
    Wanted,
    attributes_of,
    derivatives_of,
    numbers_of,
    slopes_of,
    wanted_of,
)
from ckplan.autodiff.reading import shape_of, size_of
from ckplan.keys import PHASE, PIECES

LOSS = "ckplan.loss"
"""Key in ``Node.meta`` of a head: the value whose gradient all that it has made is to be multiplied by."""


def emit_head(
    op: Builder, node: ir.Node, layer: Layer, count: int, known: KnownSlopes, trained: tuple[bool, bool], passes: int
) -> None:
    """Put a head in chunks in the place of what reads the logits, and let what read its numbers read the new ones.

    Args:
        op: builder of the forward graph, in the scope of the node.
        node: the composite that reads the logits.
        layer: what makes them.
        count: into how many chunks the samples go.
        known: what the losses pass back to the numbers.
        trained: whether gradients are asked for of the layer's input, and of its weight or bias.
        passes: how often the logits are made.
    """
    wanted = wanted_of(node)
    by = derivatives_of(wanted, known.slopes)
    emit = _one_pass if passes == 1 else _two_passes
    new = emit(op, wanted, layer, count, by, trained)
    maker = new[0].producer()
    assert maker is not None
    maker.meta[LOSS] = known.loss
    op.watched[known.loss] = None
    for old, value in zip(node.outputs[: wanted.count], new, strict=False):
        old.replace_all_uses_with(value, replace_graph_outputs=True)


def _one_pass(
    op: Builder, wanted: Wanted, layer: Layer, count: int, by: Derivatives, trained: tuple[bool, bool]
) -> Sequence[ir.Value]:
    numbers: list[list[ir.Value]] = []
    factors: list[ir.Value] = []
    offsets = None if by.summed is None else Offsets(by.summed, wanted.weights)
    with op.recording() as nodes:
        x = _rows_of(op, layer)

        def part_of(value: ir.Value | None, start: int, end: int) -> ir.Value | None:
            return None if value is None else stretch(op, value, 0, start, end)

        def slopes(logits: ir.Value, start: int, end: int) -> tuple[ir.Value, ir.Value]:
            indices = tuple(stretch(op, value, 0, start, end) for value in wanted.indices)
            part = Wanted(indices, wanted.weights, wanted.others)
            made, logarithms = numbers_of(op, logits, part)
            given = derivatives_of(wanted, [part_of(value, start, end) for value in by.listed(wanted)])
            rows = slopes_of(op, logarithms, part, given, made)
            numbers.append(made)
            assert rows.factors is not None
            factors.append(rows.factors)
            return rows.matrix, rows.factors

        bands, bias = _offsets_of_layer(op, layer, x, offsets) if trained[1] else ([], [])
        found = go_through(op, layer, x, count, trained, slopes, bands, bias)
        values = [op.Concat(*parts, axis=0) for parts in zip(*numbers, strict=True)]
        whole = []
        if found.by_x:
            by_x = op.Mul(op.Concat(*found.by_x, axis=0), op.Concat(*factors, axis=0))
            whole = [by_x if offsets is None else op.Add(by_x, offsets.before(op, layer.weight, 1 - layer.by_rows))]
    outputs = [*values, *whole, *found.bands, *found.bias]
    attributes = {"by_rows": int(layer.by_rows), "by_x": len(whole), "bands": len(found.bands), "numbers": len(values)}
    inputs = [layer.x, layer.weight, layer.bias]
    return outline_once(op, "OnePassSoftmaxStatistics", nodes, inputs, outputs, attributes)


def _rows_of(op: Builder, layer: Layer) -> ir.Value:
    features = shape_of(layer.x)[-1]
    return op.reshape(layer.x, (size_of(layer.x) // features, features))


def _offsets_of_layer(
    op: Builder, layer: Layer, x: ir.Value, offsets: Offsets | None
) -> tuple[list[ir.Value], list[ir.Value]]:
    """What the gradients of weight and bias begin with: the part that offsets have in them."""
    if offsets is None:
        return [], []
    sums = op.Gemm(offsets.rows, x, transA=1) if layer.by_rows else op.Gemm(x, offsets.rows, transA=1)
    ends = bands_of(shape_of(layer.weight)[0 if layer.by_rows else 1])
    bands = [sums] * len(ends)
    if offsets.columns is not None:
        parts = [slice_axes(op, offsets.columns, [1], [start], [end]) for start, end in ends]
        bands = [op.Gemm(part, sums, transA=1) if layer.by_rows else op.MatMul(sums, part) for part in parts]
    return bands, [] if layer.bias is None else [op.transpose(offsets.column_sums(op), (1, 0))]


def _two_passes(
    op: Builder, wanted: Wanted, layer: Layer, count: int, by: Derivatives, trained: tuple[bool, bool]
) -> Sequence[ir.Value]:
    name, x = str(layer.nodes[-1].name), _rows_of(op, layer)
    samples = shape_of(x)[0]
    given = by.listed(wanted)
    columns = [*wanted.indices, *(value for value in given if value is not None)]
    with op.recording() as nodes:
        sums = None
        if by.summed is not None:
            sums = Offsets(by.summed, wanted.weights).weight_sums(op, layer.weight, 1 - layer.by_rows)
        inputs = [op.reshape(v, (count, samples // count, shape_of(v)[1])) for v in (x, *columns)]
        body = _samples_body(op, wanted, layer, by, inputs, sums)
        outputs = [
            new_value(op, f"{name}/{value.name}", layer.x.dtype, (count, *shape_of(value))) for value in body.outputs
        ]
        about = {PHASE: "forward", PIECES: str(count)}
        emit_scan(op, f"{name}/Scan", body, [], inputs, outputs, about)
        flat = [op.reshape(value, (samples, shape_of(value)[-1])) for value in outputs]
    told = attributes_of(wanted) | {"by_rows": int(layer.by_rows), "chunks": count}
    operands = [layer.x, layer.weight, layer.bias, wanted.weights, *wanted.indices, *given]
    return outline(op, "TwoPassSoftmaxStatistics", nodes, operands, flat, told)


def _samples_body(
    op: Builder, wanted: Wanted, layer: Layer, by: Derivatives, inputs: Sequence[ir.Value], sums: ir.Value | None
) -> ir.Graph:
    """What is done for a chunk of samples; softmax and its gradient are in the buffer of the logits.

    Its outputs are the numbers, the largest logit, the probability of that, and the gradient of the layer's input.
    """
    name = str(layer.nodes[-1].name)
    parts = [new_value(op, f"{name}/part", value.dtype, shape_of(value)[1:]) for value in inputs]
    graph = ir.Graph(parts, [], nodes=[], name=op.unique_name(f"{name}/samples"))
    inner = BodyBuilder(op, graph)
    x, *columns = parts
    indices, slopes = tuple(columns[: len(wanted.indices)]), iter(columns[len(wanted.indices) :])
    part = Wanted(indices, wanted.weights, wanted.others)
    given = derivatives_of(wanted, [None if value is None else next(slopes) for value in by.listed(wanted)])
    with inner.scope(name, "forward"):
        logits = product(inner, x, layer.weight, layer.bias, layer.by_rows)
        largest = row_maxima(inner, logits)
        numbers, logarithms = numbers_of(inner, logits, part, largest)
        probability = inner.Exp(row_maxima(inner, logarithms))
        rows = slopes_of(inner, logarithms, part, given, numbers, [probability])
        found = rows.scaled(inner, product(inner, rows.matrix, layer.weight, None, not layer.by_rows))
        if sums is not None:
            found = inner.Add(found, inner.Mul(given.summed, sums))
    graph.outputs.extend([*numbers, largest, probability, found])
    close_body(inner)
    return graph

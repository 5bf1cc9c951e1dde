"""Gradient of a cross-entropy and the linear layer before it, in chunks; see `ckplan.autodiff.linear_cross_entropy`."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients, attr_int, dtype_of, input_of, required_input, shape_of, size_of
from ckplan.autodiff.composites import DOMAIN
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, emit_control, new_value
from ckplan.autodiff.crossentropy import labels_of
from ckplan.autodiff.linear_cross_entropy import product
from ckplan.autodiff.regions import near_divisor
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.losses import by_sample_weights, sample_slopes
from ckplan.keys import PHASE, PIECES


@rule("LinearCrossEntropy", domain=DOMAIN, leading=5, fixed=(2,))
def linear_cross_entropy(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads the input, the weight, and of each sample the largest logit and its chance; the gradient of x is there."""
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


def _by_layer(op: Builder, node: ir.Node, slopes: ir.Value) -> tuple[ir.Value, ir.Value | None]:
    """Gradients of weight and bias, chunks of classes one after the other.

    The gradient by a logit is ``exp(logit - largest) * chance of the largest - is the label``. Its row's factors go to
    the rows of x, which are fewer numbers.
    """
    x, weight, bias = required_input(node, 0), required_input(node, 3), input_of(node, 4)
    indices, name = required_input(node, 2), f"{node.name}/grad/Scan"
    by_rows = bool(attr_int(node, "by_rows", 0))
    samples, features = size_of(indices), shape_of(x)[-1]
    classes = shape_of(weight)[0 if by_rows else 1]
    count = near_divisor(classes, attr_int(node, "chunks", 1))
    width = classes // count
    rows = op.reshape(x, (samples, features))
    at = op.reshape(indices, (samples, 1))
    largest, chance = (op.reshape(node.outputs[i], (samples, 1)) for i in (3, 4))
    factors = op.Mul(chance, slopes if size_of(slopes) == 1 else op.reshape(slopes, (samples, 1)))
    scaled = op.Mul(rows, factors)
    share = op.Div(np.asarray(-1, dtype_of(x)), chance)

    starts = op.constant(np.arange(count, dtype=dtype_of(indices)) * width)
    start = new_value(op, f"{name}/start", indices.dtype, ())
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
            first = inner.Cast(inner.reshape(start, (1,)), to=ir.DataType.INT64)
            last = inner.Add(first, np.asarray([width], dtype=np.int64))
            chunk = inner.emit("Slice", weight, first, last, np.asarray([1], dtype=np.int64), _shape=(features, width))
        if bias is not None:
            graph.inputs.append(part)
            inputs.append(op.reshape(bias, (count, width)))
        logits = product(inner, rows, chunk, None if bias is None else part, by_rows)
        powers = inner.Exp(inner.Sub(logits, largest))
        place = inner.Sub(at, start)
        ends = np.asarray(0, dtype_of(indices)), np.asarray(width - 1, dtype_of(indices))
        here = inner.And(inner.GreaterOrEqual(place, ends[0]), inner.LessOrEqual(place, ends[1]))
        target = inner.Where(here, share, np.asarray(0, dtype_of(x)))
        slope = inner.ScatterElements(powers, inner.Clip(place, *ends), target, axis=1, reduction="add")
        graph.outputs.append(inner.Gemm(slope, scaled, transA=1))
        if bias is not None:
            graph.outputs.append(inner.reshape(inner.Gemm(slope, factors, transA=1), (width,)))
    close_body(inner)
    attributes = [ir.AttrGraph("body", graph), ir.AttrInt64("num_scan_inputs", len(inputs))]
    outputs = [new_value(op, f"{name}_out", weight.dtype, (count, width, features))]
    if bias is not None:
        outputs.append(new_value(op, f"{name}_out", weight.dtype, (count, width)))
    emit_control(op, "Scan", name, inputs, attributes, outputs, {PHASE: "backward", PIECES: str(count)})
    by_bias = op.reshape(outputs[1], (classes,)) if bias is not None else None
    by_weight = op.reshape(outputs[0], (classes, features))
    return by_weight if by_rows else op.transpose(by_weight, (1, 0)), by_bias

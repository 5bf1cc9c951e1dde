"""Conv followed by BatchNormalization in inference mode, differentiated as one.

Alone, BatchNormalization needs its input for the gradient of its scale, and that input, the convolution's output, is
kept for nothing else: in a chain of Conv, BatchNormalization and Relu it is every second activation. But the
convolution is linear in its weight, so that the sum over dy times its output is the sum over the weight times the
weight's own gradient: with G the gradient of the weight by dy and s = scale / deviation, per output channel

    dscale = (sum(W G) + (b - mean) sum(dy)) / deviation,    dW = s G,    db = s sum(dy),    dB = sum(dy),

and dx is the data gradient of dy by the weight s W. Nothing but the convolution's input is read, no activation is
multiplied by s, and nothing is divided by the scale.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.reading import attr_float, attr_int, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.autodiff.rules.convolution.conv import bias_gradient
from ckplan.autodiff.rules.convolution.conv_gradients import gradients
from ckplan.autodiff.rules.normalisation.batch_norm import EPSILON, deviation
from ckplan.autodiff.rules.windows import convolution_window
from ckplan.operators.matching import input_of, is_op


def outline_conv_batch_norms(op: Builder, targets: Container[ir.Value] = ()) -> None:
    """Put composites in the place of the pairs of Conv and BatchNormalization that can be differentiated as one.

    Args:
        op: builder of the forward graph.
        targets: what is differentiated; no such value is a pair's inner value.
    """
    for norm in list(op.graph):
        if not is_op(norm, "BatchNormalization") or attr_int(norm, "training_mode", 0):
            continue
        between = required_input(norm, 0)
        conv = between.producer()
        if not is_op(conv, "Conv") or between in targets or between.is_graph_output():
            continue
        computed = any(required_input(norm, index).producer() is not None for index in (3, 4))
        if len(between.uses()) == 1 and not computed and not _overlap(conv, norm):
            inputs = [*_padded(conv), *norm.inputs[1:]]
            attributes = {**conv.attributes, **norm.attributes}
            outline(op, "ConvBatchNormalization", [conv, norm], inputs, [norm.outputs[0]], attributes)


def _padded(conv: ir.Node) -> list[ir.Value | None]:
    return [required_input(conv, 0), required_input(conv, 1), input_of(conv, 2)]


def _overlap(conv: ir.Node, norm: ir.Node) -> bool:
    """Say whether a value feeds the pair in two places."""
    read = [value for value in (*conv.inputs, *norm.inputs) if value is not None]
    return len(set(read)) < len(read)


@rule("ConvBatchNormalization", domain=DOMAIN, leading=5)
def conv_batch_norm(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads what the convolution reads, and the statistics."""
    x, w, scale, offset, mean, variance = (required_input(node, index) for index in (0, 1, 3, 4, 5, 6))
    bias, upstream = node.inputs[2], dy[0]
    assert upstream is not None
    kernel = shape_of(w)
    window = convolution_window(node)
    spread = deviation(op, variance, attr_float(node, "epsilon", EPSILON))
    factor = op.Div(scale, spread)
    for_filters = op.reshape(factor, [kernel[0], *[1] * (len(kernel) - 1)])
    dw = dscale = sums = dbias = None
    if op.wants(scale) or op.wants(offset) or op.wants(bias):
        sums = bias_gradient(op, upstream)
    of_weight, groups = op.wants(w) or op.wants(scale), attr_int(node, "group", 1)
    scaled = op.Mul(w, for_filters) if op.wants(x) else w
    dx, raw = gradients(op, x, upstream, scaled, groups, window, of_input=op.wants(x), of_weight=of_weight)
    if raw is not None:
        if op.wants(scale):
            assert sums is not None
            along = op.reduce_sum(op.Mul(w, raw), range(1, len(kernel)), keepdims=False)
            centre = mean if bias is None else op.Sub(mean, bias)
            dscale = op.Div(op.Sub(along, op.Mul(sums, centre)), spread)
        dw = op.Mul(raw, for_filters) if op.wants(w) else None
    if op.wants(bias):
        dbias = op.Mul(sums, factor)
    return [dx, dw, dbias, dscale, sums if op.wants(offset) else None]

"""Gradients of convolutions; a weight's take the forms of :mod:`ckplan.autodiff.rules.convolution.conv_forms`."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.transposes import before_transpose
from ckplan.autodiff.reading import attr_int, attr_ints, attr_str, required_input, shape_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.autodiff.rules.convolution.conv_gradients import gradients
from ckplan.autodiff.rules.convolution.conv_weight_gradient import weight_gradient
from ckplan.autodiff.rules.windows import Window, convolution_window, pad_axes
from ckplan.operators.matching import input_of


@rule("Conv")
def conv(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads x for the weight's gradient and w for the input's; the output is not kept for it."""
    x, w, bias = required_input(node, 0), required_input(node, 1), input_of(node, 2)
    upstream = dy[0]
    assert upstream is not None
    groups, window = attr_int(node, "group", 1), convolution_window(node)
    dx, dw = gradients(op, x, upstream, w, groups, window, of_input=op.wants(x), of_weight=op.wants(w))
    db = bias_gradient(op, upstream) if op.wants(bias) else None
    return [dx, dw, db][: len(node.inputs)]


@rule("ConvTranspose")
def conv_transpose(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """The input's gradient is a convolution; the weight's is that of a convolution with the two tensors swapped."""
    x, w, bias = required_input(node, 0), required_input(node, 1), input_of(node, 2)
    upstream = dy[0]
    assert upstream is not None
    groups, kernel = attr_int(node, "group", 1), shape_of(w)
    db = bias_gradient(op, upstream) if op.wants(bias) else None
    window = transposed_window(node, shape_of(x)[2:], shape_of(upstream)[2:], kernel[2:])
    dw = weight_gradient(op, upstream, x, kernel, window) if op.wants(w) else None
    dx = None
    if op.wants(x):
        # Trailing outputs that no tap reaches depend on the bias alone.
        nothing = [0] * len(window.begin)
        inside = pad_axes(op, upstream, range(2, len(kernel)), nothing, [min(size, 0) for size in window.end])
        dx = op.Conv(
            inside,
            w,
            kernel_shape=window.kernel,
            strides=window.strides,
            dilations=window.dilations,
            group=groups,
            pads=[*window.begin, *(max(size, 0) for size in window.end)],
        )
    return [dx, dw, db][: len(node.inputs)]


def transposed_window(node: ir.Node, inputs: Sequence[int], outputs: Sequence[int], kernel: Sequence[int]) -> Window:
    """Read the attributes of a ConvTranspose node as those of the convolution that it is the adjoint of.

    Args:
        node: the node.
        inputs: spatial shape of its input.
        outputs: spatial shape of its output.
        kernel: spatial shape of its kernel.

    Raises:
        NoGradientError: inference gave up on the shape of its output.
    """
    if len(outputs) < len(kernel):
        raise NoGradientError("its output_shape is smaller than its input, and ONNX infers no result")
    ones = (1,) * len(kernel)
    strides, dilations = attr_ints(node, "strides") or ones, attr_ints(node, "dilations") or ones
    automatic = attr_str(node, "auto_pad", "NOTSET")
    begin = (attr_ints(node, "pads") or (0,) * 2 * len(kernel))[: len(kernel)]
    if automatic == "VALID":
        begin = (0,) * len(kernel)
    # The adjoint convolution slides over the outputs and stops once per input.
    window = Window(tuple(outputs), tuple(inputs), tuple(kernel), strides, dilations, begin)
    if automatic.startswith("SAME") or attr_ints(node, "output_shape") is not None:
        extra = attr_ints(node, "output_padding") or (0,) * len(kernel)
        spare = Window(window.inputs, window.outputs, window.kernel, strides, dilations, (0,) * len(kernel)).end
        total = [max(size + more, 0) for size, more in zip(spare, extra, strict=True)]
        upper = automatic == "SAME_UPPER"
        begin = tuple(size // 2 if upper else size - size // 2 for size in total)
        window = Window(window.inputs, window.outputs, window.kernel, strides, dilations, begin)
    return window


def bias_gradient(op: Builder, dy: ir.Value) -> ir.Value:
    """Emit the sum of a gradient over everything but the channels, axis 1."""
    source, perm = before_transpose(dy)
    return op.reduce_sum(source, [axis for axis in range(len(perm)) if axis != perm[1]], keepdims=False)

"""Columns of even and of odd places apart, before depthwise convolutions that step over every other one.

onnxruntime's convolutions gather every other column one by one, and so does the gradient of the weight. Where such a
convolution stands behind a pointwise one, whose places may lie in any order, the few channels that this one reads are
taken apart instead. Both sets of columns are then two channels of a group, along which the kernel has a stride of 1:

    y[c, p] = sum over i of x[c, 2 p + i] w[c, i] = sum over r, j of x[c, r, p + j] w[c, 2 j + r].

The numbers are sums of the same products, and of products with zeros. The gradient of x takes 0.6 of the time, that of
the weight three quarters, the convolution itself 0.7 to 0.8 (4 x 96 planes of 80 x 80, 4 x 144 of 40 x 40).
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.reading import is_read_once, required_input, shape_of, size_of
from ckplan.autodiff.rules.convolution.depthwise_forms import form_for
from ckplan.autodiff.rules.windows import convolution_window, permuted
from ckplan.model.inference.infer import static_shape
from ckplan.operators.matching import input_of, is_op
from ckplan.operators.table import ELEMENTWISE

#: The step between columns that this is done for.
STRIDE = 2

#: So many times the channels that the pointwise convolution reads it has to make, so that their copies are small.
WIDENS = 4


def take_columns_apart(op: Builder, held: Container[ir.Value]) -> None:
    """Give depthwise convolutions behind pointwise ones every other column as a channel of its own.

    Args:
        op: builder of the forward graph.
        held: values that have to stay as they are.
    """
    for node in list(op.graph):
        if not is_op(node, "Conv") or not _suits(node):
            continue
        chain = _from_pointwise(required_input(node, 0), held)
        if chain:
            _take_apart(op, chain, node)


def _suits(conv: ir.Node) -> bool:
    """Say whether a convolution is a depthwise one over planes whose columns can be taken apart."""
    x, weight = required_input(conv, 0), required_input(conv, 1)
    if any(static_shape(value) is None for value in (x, weight, conv.outputs[0])):  # data decide how large they are
        return False
    filters, wide, *taps = shape_of(weight)
    if x.dtype != ir.DataType.FLOAT or len(taps) != 2 or wide > 1 or filters != shape_of(x)[1] or not size_of(x):
        return False
    window = convolution_window(conv)
    if window.strides[1] != STRIDE or window.dilations[1] != 1 or window.inputs[1] % STRIDE:
        return False
    return window.kernel[1] >= STRIDE and form_for(1, window) == "dot"


def _from_pointwise(value: ir.Value, held: Container[ir.Value]) -> list[ir.Node]:
    """The nodes from a pointwise convolution to a value whose places may lie in any order; none if there are others."""
    nodes: list[ir.Node] = []
    while value not in held and is_read_once(value) and (maker := value.producer()) is not None:
        nodes.insert(0, maker)
        x = input_of(maker, 0)
        if x is None:
            return []
        if is_op(maker, "Conv"):
            few = WIDENS * shape_of(x)[1] <= shape_of(value)[1]
            return nodes if few and convolution_window(maker).is_pointwise else []
        if value is not maker.outputs[0] or not _works_anywhere(maker, x, value):
            return []
        value = x
    return []


def _works_anywhere(node: ir.Node, x: ir.Value, made: ir.Value) -> bool:
    """Say whether a node does the same at all places of a plane."""
    if is_op(node, "BatchNormalization"):
        return True
    others = [other for other in node.inputs[1:] if other is not None]
    alike = shape_of(x) == shape_of(made) and all(size_of(other) == 1 for other in others)
    return not node.domain and node.op_type in ELEMENTWISE and alike


def _take_apart(op: Builder, chain: list[ir.Node], conv: ir.Node) -> None:
    """Let the nodes from a pointwise convolution to a depthwise one work at places in another order.

    Args:
        op: the builder.
        chain: the pointwise convolution and what is made of its result; their values keep their names.
        conv: the depthwise convolution.
    """
    first, window = chain[0], convolution_window(conv)
    x, weight = required_input(first, 0), required_input(conv, 1)
    samples, channels, height, width = shape_of(x)
    filters, columns = shape_of(weight)[0], width // STRIDE
    with op.scope(str(first.name), "forward", before=first):
        by_column = op.reshape(x, [samples, channels, height * columns, STRIDE])
        apart = op.reshape(op.Transpose(by_column, perm=[0, 1, 3, 2]), [samples, channels, STRIDE * height, columns])
    first.replace_input_with(0, apart)
    for node in chain:
        node.outputs[0].shape = ir.Shape([samples, filters, STRIDE * height, columns])
    before = -(-window.begin[1] // STRIDE)  # whole steps before the first column
    behind = max(0, (window.reach[1] - window.begin[1]) // STRIDE)
    taps, zeros = before + behind + 1, before * STRIDE - window.begin[1]
    with op.scope(str(conv.name), "forward", before=conv):
        x = op.reshape(required_input(conv, 0), [samples, filters * STRIDE, height, columns])
        pads = np.zeros([2, 4], dtype=np.int64)
        pads[:, 3] = zeros, taps * STRIDE - zeros - window.kernel[1]
        split = op.reshape(op.Pad(weight, pads.reshape(-1), None), [filters, 1, window.kernel[0], taps, STRIDE])
        kernel = permuted(op, split, [0, 4, 1, 2, 3], [filters, STRIDE, window.kernel[0], taps])
    end = [max(size, 0) for size in (window.end[0], window.outputs[1] + behind - columns)]
    attributes = {
        "group": ir.AttrInt64("group", filters),
        "kernel_shape": ir.AttrInt64s("kernel_shape", [window.kernel[0], taps]),
        "strides": ir.AttrInt64s("strides", [window.strides[0], 1]),
        "dilations": ir.AttrInt64s("dilations", [window.dilations[0], 1]),
        "pads": ir.AttrInt64s("pads", [window.begin[0], before, *end]),
    }
    become(conv, ("", "Conv", ""), [x, kernel, *conv.inputs[2:]], attributes.values())

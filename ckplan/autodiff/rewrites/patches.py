"""Convolutions whose windows lie side by side, of what has its channels last, as one product.

Such are the layers between the stages of a ConvNeXt. onnxruntime lays out the patches of each sample for a product of
its own, and the gradients do so anew. With the channels last the patches are there but for the order of the rows in
them, which are moved whole:

    y[(n h w), o] = sum over i, j, c of x[n, (h i), (w j), c] weight[o, (i j c)] + bias[o]

A weight that is larger than x stays in its order, c i j, and the numbers of x are moved one by one: copies of it would
take as long and be kept. This and its gradients take two thirds of the time, and what is kept is as large. The numbers
are the same but for rounding.
"""

from __future__ import annotations

from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.reading import attr_ints, is_read_once, required_input, shape_of, size_of
from ckplan.autodiff.rules.windows import Window, convolution_window
from ckplan.model.inference.infer import static_shape
from ckplan.operators.matching import input_of, is_op, made_by


def multiply_patches(op: Builder, held: Container[ir.Value]) -> None:
    """Put products in the place of convolutions of patches that lie side by side.

    Args:
        op: builder of the forward graph.
        held: values that have to stay as they are.
    """
    for node in list(op.graph):
        if is_op(node, "Conv") and _suits(node):
            x = _channels_last(required_input(node, 0), held)
            if x is not None:
                _multiply(op, node, x)


def _suits(conv: ir.Node) -> bool:
    """Say whether a convolution is one product of patches and of its weight."""
    x, weight, y = required_input(conv, 0), required_input(conv, 1), conv.outputs[0]
    if x.dtype not in (ir.DataType.FLOAT, ir.DataType.DOUBLE) or static_shape(y) is None or static_shape(x) is None:
        return False
    if shape_of(weight)[1] != shape_of(x)[1]:
        return False
    # A batch normalisation is differentiated with the convolution before it.
    return _side_by_side(convolution_window(conv)) and not any(
        is_op(reader, "BatchNormalization") for reader in y.consumers()
    )


def _side_by_side(window: Window) -> bool:
    """Say whether every element is read at one place, by one of several taps."""
    return (
        window.size > 1
        and window.strides == window.kernel
        and set(window.dilations) == {1}
        and not any((*window.begin, *window.end))
    )


def _channels_last(x: ir.Value, held: Container[ir.Value]) -> ir.Value | None:
    """What is turned to bring the channels of x first, if nobody else reads either; patches would be kept beside it."""
    turn = made_by(x, "Transpose")
    if turn is None or x in held or not is_read_once(x):
        return None
    source, rank = required_input(turn, 0), len(shape_of(x))
    return source if attr_ints(turn, "perm") == (0, rank - 1, *range(1, rank - 1)) and is_read_once(source) else None


def _multiply(op: Builder, conv: ir.Node, x: ir.Value) -> None:
    """Make a product of a convolution.

    Args:
        op: the builder.
        conv: the convolution, which brings the channels of the product first from now on.
        x: what it reads, with the channels last.
    """
    weight, window = required_input(conv, 1), convolution_window(conv)
    filters, channels = shape_of(weight)[:2]
    samples, rank = shape_of(conv.outputs[0])[0], len(window.kernel)
    spatial = [size for pair in zip(window.outputs, window.kernel, strict=True) for size in pair]
    with op.scope(str(conv.name), "forward", before=conv):
        # Samples and the first axis are one, and so are the last taps and the channels.
        split = op.reshape(x, [samples * spatial[0], *spatial[1:-1], spatial[-1] * channels])
        by_place = op.transpose(split, [*range(0, 2 * rank, 2), *range(1, 2 * rank, 2)])
        if size_of(weight) > size_of(x):
            tap_by_tap = op.reshape(by_place, [samples * window.places, window.size, channels])
            by_place = op.transpose(tap_by_tap, [0, 2, 1])
        else:
            weight = op.transpose(weight, [0, *range(2, 2 + rank), 1])
        patches = op.reshape(by_place, [samples * window.places, window.size * channels])
        rows = op.Gemm(patches, op.reshape(weight, [filters, window.size * channels]), input_of(conv, 2), transB=1)
        y = op.reshape(rows, [samples, *window.outputs, filters])
    become(conv, ("", "Transpose", ""), [y], [ir.AttrInt64s("perm", [0, 1 + rank, *range(1, 1 + rank)])])

"""Depthwise convolutions of the forward pass as products of rows, where these are faster.

The numbers are sums of the same products in another order; see :mod:`ckplan.autodiff.rules.convolution.depthwise_rows`
and, for few taps, :mod:`ckplan.autodiff.rules.convolution.depthwise_planes`. That is done when the gradients are there,
which read what a convolution reads and not its result. Copies are made where as many numbers are kept behind them for
the backward pass: there a step without a plan does not have its peak.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import become
from ckplan.autodiff.idioms.transposes import read_past
from ckplan.autodiff.reading import required_input, shape_of, size_of, sole_reader
from ckplan.autodiff.rules.convolution import depthwise_planes, depthwise_rows
from ckplan.autodiff.rules.windows import convolution_window
from ckplan.keys import PHASE
from ckplan.model.inference.infer import static_shape
from ckplan.model.traits import is_backward
from ckplan.operators.matching import input_of, is_op

#: Taps along each axis from which on products of rows are faster.
_TAPS = 5

#: Columns of y by columns of x for each tap in a row, up to which they are faster however large the copies are.
_ROW_PRODUCTS = 60

#: What onnxruntime makes one kernel of with the convolution before it, of what takes no attributes.
_FUSED = ("Relu", "Clip")

#: Elements of the copies that are no burden for a processor's cache.
_SMALL_COPIES = 2**21


def convolve_by_rows(op: Builder) -> None:
    """Put products of rows in the place of depthwise convolutions of the forward pass for which they are faster.

    Args:
        op: builder of the finished graph.
    """
    largest = max((_size(value) for node in op.graph for value in node.outputs), default=0)
    kept = 0  # elements that are made behind a node and wait for the backward pass
    for node in reversed(list(op.graph)):
        if node.metadata_props.get(PHASE) != "forward":
            continue
        room = min(kept, depthwise_rows.MOST_COPIES * largest)
        if is_op(node, "Conv") and (put_products := _form(op, node, room)) is not None:
            put_products(op, node)
        kept += sum(_size(value) for value in node.outputs if _waits(value))


def _size(value: ir.Value) -> int:
    """Elements of a value; none where data decide its shape, as that of rows of a loop."""
    shape = static_shape(value)
    return 0 if shape is None else math.prod(shape)


def _waits(value: ir.Value) -> bool:
    """Say whether the backward pass reads a value."""
    return any(map(is_backward, value.consumers()))


def _form(op: Builder, conv: ir.Node, room: int) -> Callable[[Builder, ir.Node], None] | None:
    """Choose what puts products of rows in the place of a convolution; None where it is better as it is.

    Args:
        op: the builder.
        conv: the node.
        room: elements that the copies may take.
    """
    x, window = required_input(conv, 0), convolution_window(conv)
    filters, wide, *taps = shape_of(required_input(conv, 1))
    if x.dtype != ir.DataType.FLOAT or wide > 1 or filters != shape_of(x)[1] or len(taps) < 2:
        return None
    if not size_of(x) or not window.places:
        return None
    # Beside the copies lies what they are made of.
    room, planes = room - size_of(x), shape_of(x)[0] * filters
    if depthwise_planes.suits(window, op.device):
        return _by_planes if depthwise_planes.copied(planes, window) <= room else None
    copies = depthwise_rows.copied(planes, window)
    narrow = window.outputs[-1] * window.inputs[-1] <= _ROW_PRODUCTS * taps[-1]
    fast = depthwise_rows.is_narrow(window) and (narrow or copies <= _SMALL_COPIES)
    return _by_rows if min(taps) >= _TAPS and fast and copies <= room else None


def _by_planes(op: Builder, conv: ir.Node) -> None:
    """Put a convolution as wide as a plane in the place of another, before the node that is made one kernel with it."""
    x, window, last = required_input(conv, 0), convolution_window(conv), _fused(conv) or conv
    with op.scope(str(conv.name), "forward", before=last):
        y = depthwise_planes.convolution(op, x, required_input(conv, 1), input_of(conv, 2), window)
        if last is not conv:
            y = op.emit(last.op_type, y, *last.inputs[1:])
        y = op.reshape(y, [*shape_of(x)[:2], *window.outputs[::-1]])
    _become_transpose(last, y, [0, 1, 3, 2])
    if last is not conv:
        op.graph.remove(conv, safe=True)


def _by_rows(op: Builder, conv: ir.Node) -> None:
    """Put products of rows that are copied, one for each row of taps, in the place of a convolution."""
    x, weight, bias = required_input(conv, 0), required_input(conv, 1), input_of(conv, 2)
    with op.scope(str(conv.name), "forward", before=conv):
        y = depthwise_rows.convolution(op, x, weight, bias, convolution_window(conv))
    _become_transpose(conv, y, [1, 0, *range(2, len(shape_of(y)))])


def _become_transpose(node: ir.Node, y: ir.Value, perm: Sequence[int]) -> None:
    """Let a node make its output of another value, whose axes are in another order."""
    become(node, ("", "Transpose", ""), [y], [ir.AttrInt64s("perm", perm)])
    read_past(node.outputs[0])


def _fused(conv: ir.Node) -> ir.Node | None:
    """The node that alone reads a convolution, if onnxruntime makes one kernel of both."""
    reader = sole_reader(conv.outputs[0])
    return reader if is_op(reader, _FUSED) else None

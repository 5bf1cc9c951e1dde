"""Depthwise convolutions of the forward pass as products of rows, where these are faster.

The numbers are sums of the same products in another order; see :mod:`ckplan.autodiff.rules.depthwise_rows`. That is
done when the gradients are there, which read what a convolution reads and not its result.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, input_of, required_input, shape_of, size_of
from ckplan.autodiff.composites import become
from ckplan.autodiff.rules import depthwise_rows
from ckplan.autodiff.rules.windows import Window, window_of
from ckplan.autodiff.transposes import read_past
from ckplan.keys import PHASE

#: Taps along each axis from which on products of rows are faster.
_TAPS = 5

#: Columns of y by columns of x for each tap in a row, up to which they are faster however large the copies are.
_ROW_PRODUCTS = 60

#: Elements of the copies that are no burden for a processor's cache.
_SMALL_COPIES = 2**21


def convolve_by_rows(op: Builder) -> None:
    """Put products of rows in the place of depthwise convolutions of the forward pass for which they are faster.

    Args:
        op: builder of the finished graph.
    """
    largest = max((size_of(v) for node in op.graph for v in node.outputs if v.shape is not None), default=0)
    for node in list(op.graph):
        if node.op_type != "Conv" or node.domain or node.metadata_props.get(PHASE) != "forward":
            continue
        x, weight, bias = required_input(node, 0), required_input(node, 1), input_of(node, 2)
        window = window_of(node, shape_of(x)[2:], shape_of(node.outputs[0])[2:], shape_of(weight)[2:])
        if not _suits(x, weight, window, largest):
            continue
        with op.scope(str(node.name), "forward", before=node):
            y = depthwise_rows.convolution(op, x, weight, bias, window)
        become(node, ("", "Transpose", ""), [y], [ir.AttrInt64s("perm", [1, 0, *range(2, len(shape_of(y)))])])
        read_past(node.outputs[0])


def _suits(x: ir.Value, weight: ir.Value, window: Window, largest: int) -> bool:
    filters, wide, *taps = shape_of(weight)
    if x.dtype != ir.DataType.FLOAT or wide > 1 or filters != shape_of(x)[1] or min(taps) < _TAPS:
        return False
    if not size_of(x) or not window.places or not depthwise_rows.is_narrow(window):
        return False
    copies = depthwise_rows.copied(shape_of(x)[0] * filters, window)
    narrow = window.outputs[-1] * window.inputs[-1] <= _ROW_PRODUCTS * taps[-1]
    return copies <= depthwise_rows.MOST_COPIES * largest and (narrow or copies <= _SMALL_COPIES)

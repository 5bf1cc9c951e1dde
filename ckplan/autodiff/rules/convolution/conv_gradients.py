"""Gradients of a convolution's input and weight, apart or both at once."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.rules.convolution import depthwise_rows
from ckplan.autodiff.rules.convolution.conv_data_gradient import data_gradient
from ckplan.autodiff.rules.convolution.conv_weight_gradient import shares_rows, weight_gradient
from ckplan.autodiff.rules.windows import Window


def gradients(
    op: Builder,
    x: ir.Value,
    dy: ir.Value,
    weight: ir.Value,
    groups: int,
    window: Window,
    *,
    of_input: bool,
    of_weight: bool,
) -> tuple[ir.Value | None, ir.Value | None]:
    """Emit the gradients of a convolution's input and weight, those that are wanted; of no channels there are none.

    Args:
        op: the builder.
        x: input of the convolution, (N, C, ...).
        dy: gradient of its output, (N, O, ...).
        weight: by which dy is multiplied, (O, C / groups, ...).
        groups: number of groups.
        window: geometry.
        of_input: whether the first is wanted.
        of_weight: whether the second is.
    """
    if 0 in shape_of(weight):
        return None, None
    if of_input and of_weight and shares_rows(op, x, dy, groups, window):
        return depthwise_rows.gradients(op, x, dy, weight, window)
    dw = weight_gradient(op, x, dy, shape_of(weight), window) if of_weight else None
    dx = data_gradient(op, dy, weight, groups, window) if of_input else None
    return dx, dw

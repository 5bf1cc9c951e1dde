"""Running sums of what reaches a value: each gradient is added to what there is already."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of
from ckplan.operators.matching import is_op


def add_to(op: Builder, before: ir.Value, gradient: ir.Value) -> ir.Value:
    """Emit the sum of two gradients of one value, and list it in ``op.sums`` if both have its shape."""
    before, gradient = _narrowed(before, gradient)
    total: ir.Value = op.Add(before, gradient)
    if shape_of(before) == shape_of(gradient):
        op.sums.append(total)
    return total


def _narrowed(before: ir.Value, gradient: ir.Value) -> tuple[ir.Value, ir.Value]:
    """Return the terms of a sum, one of them as it was before it was expanded: the sum expands it as well."""
    for one, other in ((gradient, before), (before, gradient)):
        maker = one.producer()
        if is_op(maker, "Expand") and maker.inputs[0] is not None:
            return other, maker.inputs[0]
    return before, gradient

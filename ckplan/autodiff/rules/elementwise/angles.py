"""Arc tangents of quotients, as exporters write the angle of a point (``atan2``), differentiated as one.

Of atan(y / x) the derivatives are x / (x^2 + y^2) and -y / (x^2 + y^2). They are numbers where x is zero, on the axis,
at which the quotient is infinite and nodes that are differentiated one by one have zero times infinity. At the origin
there is no angle, and the derivatives are 0, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Container

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DOMAIN, outline
from ckplan.autodiff.formulas.replacement import is_private
from ckplan.autodiff.reading import dtype_of, required_input, shape_of
from ckplan.autodiff.registry import rule
from ckplan.operators.matching import is_op, made_by


def outline_angles(op: Builder, held: Container[ir.Value]) -> None:
    """Put composites in the place of the pairs of Div and Atan.

    Args:
        op: builder of the forward graph.
        held: what is differentiated, or whose gradient is wanted; no such value is inside of a composite.
    """
    for node in list(op.graph):
        division = made_by(required_input(node, 0), "Div") if is_op(node, "Atan") else None
        # A divisor that the file holds is not zero: its quotient is what is kept anyway.
        if division is None or required_input(division, 1).is_initializer():
            continue
        if is_private({division, node}, node, held):
            outline(op, "Angle", [division, node], division.inputs, [node.outputs[0]])


@rule("Angle", domain=DOMAIN)
def angle(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Reads both sides of the quotient. The squares of a few hundred have no place in half precision."""
    y, x = required_input(node, 0), required_input(node, 1)
    assert dy[0] is not None
    high, wide = op.wide(y), op.wide(x)
    square = op.Add(op.Mul(wide, wide), op.Mul(high, high))
    square = op.Where(op.Equal(square, 0.0), np.ones((), dtype_of(square)), square)
    slope = op.Div(op.wide(dy[0]), square)
    by_y = _of_side(op, op.Mul(slope, wide), y) if op.wants(y) else None
    return [by_y, op.Neg(_of_side(op, op.Mul(slope, high), x)) if op.wants(x) else None]


def _of_side(op: Builder, gradient: ir.Value, side: ir.Value) -> ir.Value:
    """A gradient in the shape and the type of what was stretched."""
    return op.cast(op.sum_to_shape(gradient, shape_of(side)), side.dtype)

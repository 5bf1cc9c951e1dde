"""Gradients of elementwise functions of one input: what passes it on, and the functions of mathematics.

As those of activations (`ckplan.autodiff.rules.elementwise.activations`) they read the output where that is possible:
what a rule reads stays in memory until the backward pass, and the output is usually kept anyway, being the next node's
input.
"""

from __future__ import annotations

import math

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.composites import DETACH, DOMAIN
from ckplan.autodiff.idioms.lowest_at_zero import infinite_at_zero, is_lowest_at_zero
from ckplan.autodiff.reading import required_input
from ckplan.autodiff.registry import rule


@rule("Identity", factor="pass")
def identity(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1."""
    return [dy[0]]


@rule(DETACH, domain=DOMAIN, leading=0)
def detach(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Passes nothing on."""
    return []


@rule("Cast")
def cast(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1, in the element type of the input."""
    return [op.Cast(dy[0], to=required_input(node, 0).dtype)]


@rule("CastLike", fixed=[1])
def cast_like(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1, in the element type of the input."""
    return cast(op, node, dy)


@rule("Exp")
def exp(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative y."""
    return [op.Mul(dy[0], node.outputs[0])]


@rule("Log")
def log(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 / x."""
    return [op.Div(dy[0], required_input(node, 0))]


@rule("Sqrt")
def sqrt(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 / (2 y).

    Of what is never negative it is 0 where y is 0, as the slope behind it may be, and 0 times infinity is no number.
    """
    y = node.outputs[0]
    root = infinite_at_zero(op, y) if is_lowest_at_zero(op, required_input(node, 0)) else y
    return [op.Div(op.Mul(dy[0], 0.5), root)]


@rule("Reciprocal")
def reciprocal(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative -y^2."""
    y = node.outputs[0]
    return [op.Neg(op.Mul(op.Mul(dy[0], y), y))]


@rule("Neg")
def neg(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative -1."""
    return [op.Neg(dy[0])]


@rule("Abs")
def absolute(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative sign(x)."""
    return [op.Mul(dy[0], op.Sign(required_input(node, 0)))]


@rule("Erf")
def erf(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 2 / sqrt(pi) exp(-x^2)."""
    x = required_input(node, 0)
    return [op.Mul(dy[0], op.Mul(op.Exp(op.Neg(op.Mul(x, x))), 2 / math.sqrt(math.pi)))]


@rule("Sin")
def sin(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative cos(x)."""
    return [op.Mul(dy[0], op.Cos(required_input(node, 0)))]


@rule("Cos")
def cos(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative -sin(x)."""
    return [op.Neg(op.Mul(dy[0], op.Sin(required_input(node, 0))))]


@rule("Tan")
def tan(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 + y^2."""
    y = node.outputs[0]
    return [op.Mul(dy[0], op.Add(op.Mul(y, y), 1.0))]


@rule("Asin")
def asin(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 / sqrt(1 - x^2)."""
    x = required_input(node, 0)
    return [op.Div(dy[0], op.Sqrt(op.Sub(1.0, op.Mul(x, x))))]


@rule("Acos")
def acos(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative -1 / sqrt(1 - x^2)."""
    return [op.Neg(asin(op, node, dy)[0])]


@rule("Atan")
def atan(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 / (1 + x^2)."""
    x = required_input(node, 0)
    return [op.Div(dy[0], op.Add(op.Mul(x, x), 1.0))]


@rule("Sinh")
def sinh(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative cosh(x), as sqrt(1 + y^2): onnxruntime has Cosh for float only, and y is kept anyway."""
    return [op.Mul(dy[0], _root_of_square(op, node.outputs[0], 1.0))]


def _root_of_square(op: Builder, value: ir.Value, unit: float) -> ir.Value:
    """Emit sqrt(value^2 + unit); the square of a few hundred has no place in half precision."""
    wide = op.wide(value)
    return op.cast(op.Sqrt(op.Add(op.Mul(wide, wide), unit)), value.dtype)


@rule("Cosh")
def cosh(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative sinh(x)."""
    return [op.Mul(dy[0], op.Sinh(required_input(node, 0)))]


@rule("Asinh")
def asinh(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 / sqrt(x^2 + 1)."""
    return [op.Div(dy[0], _root_of_square(op, required_input(node, 0), 1.0))]


@rule("Acosh")
def acosh(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 / sqrt(x^2 - 1)."""
    return [op.Div(dy[0], _root_of_square(op, required_input(node, 0), -1.0))]


@rule("Atanh")
def atanh(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 / (1 - x^2)."""
    x = required_input(node, 0)
    return [op.Div(dy[0], op.Sub(1.0, op.Mul(x, x)))]

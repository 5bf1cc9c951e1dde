"""Gradients of elementwise functions of several inputs, which broadcast."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.idioms.lowest_at_zero import infinite_at_zero, is_lowest_at_zero
from ckplan.autodiff.reading import dtype_of, required_input, shape_of
from ckplan.autodiff.registry import rule


def _given(dy: Gradients) -> ir.Value:
    assert dy[0] is not None  # the sweep calls the rule of a one-output node only if the output has a gradient
    return dy[0]


@rule("Add", factor="pass")
def add(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 by both."""
    g = _given(dy)
    return [op.sum_to_shape(g, shape_of(x)) if x is not None and op.wants(x) else None for x in node.inputs]


@rule("Sum")
def sum_(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 by each."""
    return add(op, node, dy)


@rule("Mean")
def mean(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1/n by each."""
    return add(op, node, [op.scale(_given(dy), 1 / len(node.inputs))])


@rule("Sub")
def sub(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivatives 1 and -1; the sign is changed after summing, when there is less to change."""
    a, b, g = required_input(node, 0), required_input(node, 1), _given(dy)
    db = op.Neg(op.sum_to_shape(g, shape_of(b))) if op.wants(b) else None
    return [op.sum_to_shape(g, shape_of(a)) if op.wants(a) else None, db]


@rule("Mul")
def mul(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivatives b and a; of a square, 2 a."""
    a, b = required_input(node, 0), required_input(node, 1)
    if a is b:
        return [op.Mul(op.scale(_given(dy), 2), a)]
    db = op.sum_to_shape(op.Mul(dy[0], a), shape_of(b)) if op.wants(b) else None
    return [op.sum_to_shape(op.Mul(dy[0], b), shape_of(a)) if op.wants(a) else None, db]


@rule("Div")
def div(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivatives 1 / b and -y / b."""
    a, b = required_input(node, 0), required_input(node, 1)
    quotient = op.Div(dy[0], b)
    db = op.Neg(op.sum_to_shape(op.Mul(quotient, node.outputs[0]), shape_of(b))) if op.wants(b) else None
    return [op.sum_to_shape(quotient, shape_of(a)) if op.wants(a) else None, db]


@rule("Mod")
def mod(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivatives 1 and minus the whole quotient, however it is rounded; between its jumps that is a constant."""
    a, b, g = required_input(node, 0), required_input(node, 1), _given(dy)
    da = op.sum_to_shape(g, shape_of(a)) if op.wants(a) else None
    if not op.wants(b):
        return [da, None]
    quotient = op.Round(op.Div(op.Sub(a, node.outputs[0]), b))
    return [da, op.Neg(op.sum_to_shape(op.Mul(quotient, g), shape_of(b)))]


@rule("Pow")
def power(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivatives p x^(p-1) and y log(x), the latter taken as 0 where x is not positive.

    A root of what is never negative has the slope 0 where it is zero, as Sqrt has.
    """
    x, p, y, g = required_input(node, 0), required_input(node, 1), node.outputs[0], _given(dy)
    dx = dp = None
    if op.wants(p):
        positive = op.Greater(x, 0.0)
        log = op.Log(op.Where(positive, x, np.ones((), dtype_of(x))))
        # chosen and not only multiplied by log(1): a power of zero may be infinite
        each = op.Where(positive, op.Mul(op.Mul(log, y), g), np.zeros((), dtype_of(x)))
        total = op.sum_to_shape(each, shape_of(p))
        dp = op.cast(total, p.dtype)
    if op.wants(x):
        dx = _power_base(op, x, p, y, g)
    return [op.sum_to_shape(dx, shape_of(x)) if dx is not None else None, dp]


def _power_base(op: Builder, x: ir.Value, p: ir.Value, y: ir.Value, g: ir.Value) -> ir.Value | None:
    exponent = op.number_of(p)
    if exponent is not None:
        if exponent == 0:
            return None
        scaled = op.scale(g, exponent)
        if exponent == 1:
            return op.expand(g, shape_of(y))
        if exponent == 2:
            return op.Mul(scaled, x)
        if exponent == 3:
            return op.Mul(op.Mul(scaled, x), x)
        if 0 < exponent < 1 and is_lowest_at_zero(op, x):
            if exponent == 0.5:
                return op.Div(scaled, infinite_at_zero(op, y))
            return op.Mul(scaled, op.Pow(infinite_at_zero(op, x), exponent - 1))
        if exponent == 0.5:
            return op.Div(scaled, y)
        return op.Mul(scaled, op.Pow(x, exponent - 1))
    exponents = op.cast(p, x.dtype)
    # 0^(p-1) is infinite for p = 0, where the derivative is 0.
    reduced = op.Where(op.Equal(exponents, 0.0), np.ones((), dtype_of(x)), op.Sub(exponents, 1.0))
    return op.Mul(op.Mul(op.Pow(x, reduced), exponents), g)


@rule("Max")
def maximum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 by the largest, shared equally among equals."""
    return _extreme(op, node, _given(dy), 0.5)


@rule("Min")
def minimum(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 by the smallest, shared equally among equals."""
    return _extreme(op, node, _given(dy), -0.5)


def _extreme(op: Builder, node: ir.Node, g: ir.Value, half: float) -> Gradients:
    inputs = [required_input(node, i) for i in range(len(node.inputs))]
    if len(inputs) == 1:
        return [g]
    if len(inputs) == 2:
        results: list[ir.Value | None] = [None, None]
        for i, (x, other) in enumerate((inputs, inputs[::-1])):
            if op.wants(x):
                results[i] = op.sum_to_shape(op.Mul(_share(op, x, other, half), g), shape_of(x))
        return results
    y = node.outputs[0]
    chosen = [op.Cast(op.Equal(x, y), to=y.dtype) for x in inputs]
    share = op.Div(g, op.Sum(*chosen))
    pairs = zip(inputs, chosen, strict=True)
    return [op.sum_to_shape(op.Mul(share, c), shape_of(x)) if op.wants(x) else None for x, c in pairs]


def _share(op: Builder, x: ir.Value, other: ir.Value, half: float) -> ir.Value:
    """How much of a gradient goes to x: all, half or nothing. Infinities that are equal differ by no number."""
    if any((number := op.constant_of(value)) is not None and np.isfinite(number).all() for value in (x, other)):
        return op.Add(op.Mul(op.Sign(op.Sub(x, other)), half), 0.5)
    beyond = op.Cast(op.Greater(x, other) if half > 0 else op.Less(x, other), to=x.dtype)
    return op.Add(beyond, op.Mul(op.Cast(op.Equal(x, other), to=x.dtype), 0.5))


@rule("Where")
def where(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 by what was chosen. It is chosen again: the gradient of the rest, if infinite, times 0 is none."""
    condition, x, y = (required_input(node, i) for i in range(3))
    g, zero = _given(dy), op.constant(np.zeros((), dtype_of(x)))
    results: list[ir.Value | None] = [None, None, None]
    if op.wants(x):
        results[1] = op.sum_to_shape(op.Where(condition, g, zero), shape_of(x))
    if op.wants(y):
        results[2] = op.sum_to_shape(op.Where(condition, zero, g), shape_of(y))
    return results

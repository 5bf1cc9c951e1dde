"""Gradients of activation functions.

What a rule reads stays in memory until the backward pass, so the derivative is written in terms of the output where
that is possible: it is usually kept anyway, being the next node's input.

On the CPU onnxruntime works in place for activations (Relu, LeakyRelu, Clip, Tanh, Sigmoid, Softplus, HardSigmoid,
Softmax over the last axis) and not for arithmetic (Add, Mul, Sign, Exp), so the forms here let the incoming gradient
and the stashed tensor die as early as they can. Masks are comparisons made numbers, which take two fifths of the time
of ``Sign``; ``Where`` takes more, and two temporaries of the full size beside its result. A HardSigmoid so steep that
it is a step is one node and takes less time still: it is taken where the activation is kept for something else. A
comparison can run early, and its bools, a quarter of the activation, wait in that one's place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.reading import attr_float, attr_str, dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.registry import NoGradientError, rule
from ckplan.autodiff.rules.elementwise.number_blocks import by_blocks
from ckplan.autodiff.rules.normalisation.batch_norm import affine
from ckplan.keys import PHASE
from ckplan.model.traits import is_backward
from ckplan.operators.matching import input_of, is_op

#: Operators whose gradients read what they multiply.
_FACTORS = frozenset({"Conv", "ConvTranspose", "Gemm", "MatMul", "Mul", "Einsum"})

#: Numbers that are to be scaled alike are divided into up to so many channels: each part of a GPU then has some.
_CHANNELS = 512

#: From here on the tanh approximation of Gelu is x, or 0, in half precision.
_SATURATED = 32.0

_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875


def positive(op: Builder, x: ir.Value) -> ir.Value:
    """Return 1 where x > 0 and 0 elsewhere, in x's element type."""
    if dtype_of(x).itemsize < 4:  # the CPU compares no numbers of 16 bits
        return op.Sign(op.Relu(x))
    return op.Cast(op.Greater(x, 0.0), to=x.dtype)


def step(op: Builder, y: ir.Value) -> ir.Value:
    """Return 1 where y > 0 and 0 where it is 0, in y's element type; y is not negative and there in the backward pass.

    In single precision in one node, which is 1 from the smallest normal number on.
    """
    return op.HardSigmoid(y, alpha=2.0**127, beta=0.0) if y.dtype == ir.DataType.FLOAT else positive(op, y)


def is_kept(op: Builder, value: ir.Value) -> bool:
    """Say whether a value is there in the backward pass anyway, as a factor of something that is differentiated."""
    return any(
        reader.op_type in _FACTORS and any(op.wants(other) for other in reader.inputs if other is not value)
        for reader in value.consumers()
    )


def masked(op: Builder, dy: ir.Value, y: ir.Value) -> ir.Value:
    """Return dy where y > 0 and 0 elsewhere.

    Args:
        op: the builder.
        dy: of the shape of y.
        y: not negative, and read in the backward pass.
    """
    return op.Mul(dy, step(op, y) if is_kept(op, y) else positive(op, y))


@rule("Relu")
def relu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 where y > 0."""
    y = node.outputs[0]
    assert dy[0] is not None
    return [masked(op, dy[0], y)]


@rule("LeakyRelu")
def leaky_relu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 where x > 0, else alpha."""
    alpha = attr_float(node, "alpha", 0.01)
    side = node.outputs[0] if alpha >= 0 else required_input(node, 0)
    if 0 <= alpha <= 1:
        return [op.Mul(dy[0], op.Clip(positive(op, side), np.asarray(alpha, dtype_of(side)), 1.0))]
    return [op.Mul(dy[0], op.Add(op.Mul(positive(op, side), 1 - alpha), alpha))]


@rule("PRelu")
def prelu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 where x > 0, else the slope; of the slope: min(x, 0)."""
    x, slope = required_input(node, 0), required_input(node, 1)
    if np.broadcast_shapes(shape_of(x), shape_of(slope)) != shape_of(x):
        raise NoGradientError("its slope stretches its input, which ONNX does not allow; Expand the input before it")
    dx = dslope = None
    if op.wants(slope):
        dslope = op.sum_to_shape(op.Mul(op.Clip(x, None, 0.0), dy[0]), shape_of(slope))
    if op.wants(x):
        dx = op.Mul(dy[0], op.Add(op.Mul(positive(op, x), op.Sub(1.0, slope)), slope))
    return [dx, dslope]


@rule("ThresholdedRelu")
def thresholded_relu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 where x > alpha."""
    alpha = attr_float(node, "alpha", 1.0)
    if alpha >= 0:
        return [op.Mul(dy[0], positive(op, node.outputs[0]))]
    return [op.Mul(dy[0], positive(op, op.Sub(required_input(node, 0), alpha)))]


@rule("Elu")
def elu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 where x > 0, else y + alpha."""
    alpha = attr_float(node, "alpha", 1.0)
    y = node.outputs[0]
    if alpha < 0:
        x = required_input(node, 0)
        factor = op.Add(op.Mul(op.Exp(op.Clip(x, None, 0.0)), alpha), op.Mul(positive(op, x), 1 - alpha))
    elif alpha == 1:
        factor = op.Add(op.Clip(y, None, 0.0), 1.0)
    else:
        factor = op.Add(op.Add(op.Clip(y, None, 0.0), alpha), op.Mul(positive(op, y), 1 - alpha))
    return [op.Mul(dy[0], factor)]


@rule("Selu")
def selu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative gamma where x > 0, else y + gamma * alpha."""
    gamma = attr_float(node, "gamma", _SELU_GAMMA)
    below = gamma * attr_float(node, "alpha", _SELU_ALPHA)
    y = node.outputs[0]
    factor = op.Add(op.Add(op.Clip(y, None, 0.0), below), op.Mul(positive(op, y), gamma - below))
    return [op.Mul(dy[0], factor)]


@rule("Celu")
def celu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 where x > 0, else y / alpha + 1."""
    alpha = attr_float(node, "alpha", 1.0)
    return [op.Mul(dy[0], op.Add(op.Mul(op.Clip(node.outputs[0], None, 0.0), 1 / alpha), 1.0))]


@rule("HardSigmoid")
def hard_sigmoid(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative alpha where 0 < y < 1."""
    alpha = attr_float(node, "alpha", 0.2)
    y = node.outputs[0]
    bend = op.Mul(op.Sub(1.0, y), y)
    return [op.Mul(dy[0], op.Mul(step(op, bend) if is_kept(op, y) else positive(op, bend), alpha))]


@rule("HardSwish")
def hard_swish(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative x / 3 + 1/2 where |x| < 3, 0 below and 1 above: what x is there, less half of it at either end."""
    x, g = required_input(node, 0), dy[0]
    assert g is not None
    if x.dtype == ir.DataType.FLOAT:
        return [by_blocks(op, node, _hard_swish, x, g)]
    inside = positive(op, op.Sub(3.0, op.Abs(x)))
    bend = op.Mul(op.Mul(inside, x), 1 / 6)
    return [op.Mul(dy[0], op.Add(op.HardSigmoid(x, alpha=1 / 6, beta=0.5), bend))]


def _hard_swish(op: Builder, x: ir.Value, g: ir.Value) -> ir.Value:
    cut = op.Clip(x, -3.0, 3.0)
    bend = op.Sub(cut, op.Shrink(cut, lambd=float(np.nextafter(np.float32(3), np.float32(0))), bias=1.5))
    return op.Mul(g, op.Add(op.Mul(bend, 1 / 3), 0.5))


@rule("Sigmoid")
def sigmoid(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative y (1 - y)."""
    y = node.outputs[0]
    return [op.Mul(op.Mul(dy[0], y), op.Sub(1.0, y))]


@rule("Tanh")
def tanh(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 - y^2."""
    y = node.outputs[0]
    return [op.Mul(dy[0], op.Sub(1.0, op.Mul(y, y)))]


@rule("Softplus")
def softplus(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative sigmoid(x)."""
    return [op.Mul(dy[0], op.Sigmoid(required_input(node, 0)))]


@rule("Softsign")
def softsign(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative (1 - |y|)^2."""
    rest = op.Sub(1.0, op.Abs(node.outputs[0]))
    return [op.Mul(op.Mul(dy[0], rest), rest)]


@rule("Swish")
def swish(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative s (1 + alpha x (1 - s)) with s = sigmoid(alpha x)."""
    alpha, g = attr_float(node, "alpha", 1.0), dy[0]
    assert g is not None

    def formula(op: Builder, x: ir.Value, g: ir.Value) -> ir.Value:
        scaled = op.scale(x, alpha)
        s = op.Sigmoid(scaled)
        return op.Mul(op.Mul(g, s), op.Add(op.Mul(op.Sub(1.0, s), scaled), 1.0))

    return [by_blocks(op, node, formula, required_input(node, 0), g)]


@rule("Gelu", factor="pass")
def gelu(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative P(x) + x p(x) with the normal distribution P and its density p, or that of the tanh approximation.

    With u = x / sqrt(2) it is (sqrt(pi) / 2 (1 + erf(u)) + u / exp(u^2)) / sqrt(pi). The last factor waits for the next
    product. Where exp(u^2) is infinite, the quotient is the zero that it has to be.
    """
    x, g = required_input(node, 0), dy[0]
    assert g is not None
    if attr_str(node, "approximate", "none") == "tanh":
        return [by_blocks(op, node, _gelu_tanh, x, g)]
    u = op.Mul(x, math.sqrt(0.5))
    density = op.Div(u, op.Exp(op.Mul(u, u)))
    below = _affine(op, op.Erf(u), math.sqrt(math.pi) / 2, math.sqrt(math.pi) / 2)
    op.factor /= math.sqrt(math.pi)
    return [op.Mul(g, op.Add(density, below))]


def _gelu_tanh(op: Builder, x: ir.Value, g: ir.Value) -> ir.Value:
    """The approximation is x s with s = sigmoid(v), v = x (2c + 2c k x^2); its derivative s (1 + (1 - s) x v').

    In this order four tensors of the size of x live at a time. The two squares are made in different ways, as
    onnxruntime would merge equal ones and keep the result in between. The third power of x has no place in float16;
    far from zero s is 0 or 1 whatever x is.
    """
    if dtype_of(x).itemsize < 4:
        x = op.Clip(x, *np.asarray([-_SATURATED, _SATURATED], dtype_of(x)))
    c = 2 * math.sqrt(2 / math.pi)
    k = 0.044715 * c
    v = op.Mul(_affine(op, op.Mul(x, x), k, c), x)
    s = op.Sigmoid(v)
    scaled = op.Mul(g, s)
    rest = op.Mul(op.Sub(1.0, s), x)
    slope = _affine(op, op.Pow(x, 2.0), 3 * k, c)
    return op.Mul(scaled, op.Add(op.Mul(slope, rest), 1.0))


def _affine(op: Builder, value: ir.Value, factor: float, offset: float) -> ir.Value:
    """Emit ``factor * value + offset``, in one pass where there is a kernel for that.

    The kernel takes factors by channel, and on a GPU it works at all channels at a time, but at each with few threads:
    of one channel, 25 million numbers took 19 ms on an H100, where 8,192 channels took less than 1.
    """
    shape, dtype = shape_of(value), dtype_of(value)
    if 0 in shape or dtype.itemsize < 4:
        return op.Add(op.Mul(value, factor), offset)
    size = size_of(value)
    channels = next(number for number in range(min(_CHANNELS, size), 0, -1) if size % number == 0)
    terms = [op.constant(np.full(channels, number, dtype)) for number in (factor, offset)]
    return op.reshape(affine(op, op.reshape(value, [1, channels, size // channels]), *terms), shape)


@rule("Shrink")
def shrink(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 where |x| > lambd."""
    beyond = op.Sub(op.Abs(required_input(node, 0)), attr_float(node, "lambd", 0.5))
    return [op.Mul(dy[0], positive(op, beyond))]


@rule("Clip")
def clip(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Derivative 1 strictly between the limits, which the output tells as well as the input; else 1 by the limit.

    Where both limits are reached it is the upper one, as ONNX defines it.
    """
    y, low, high = node.outputs[0], input_of(node, 1), input_of(node, 2)
    g = dy[0]
    assert g is not None
    limits: list[ir.Value | None] = [None, None]
    if low is not None and op.wants(low):
        reached = op.LessOrEqual(y, low)
        if high is not None:
            reached = op.And(reached, op.Less(y, high))
        limits[0] = op.sum_to_shape(op.Mul(g, op.Cast(reached, to=y.dtype)), shape_of(low))
    if high is not None and op.wants(high):
        reached = op.GreaterOrEqual(y, high)
        limits[1] = op.sum_to_shape(op.Mul(g, op.Cast(reached, to=y.dtype)), shape_of(high))
    return [_between(op, y, low, high, g) if op.wants(required_input(node, 0)) else None, *limits]


def _between(op: Builder, y: ir.Value, low: ir.Value | None, high: ir.Value | None, g: ir.Value) -> ir.Value:
    if low is not None and high is not None:
        with _before_maker(op, g, y):
            mask = op.Cast(op.And(_above(op, y, low), op.Greater(high, y)), to=y.dtype)
        return op.Mul(g, mask)
    if low is not None:
        return op.Mul(g, positive(op, op.Sub(y, low)))
    if high is not None:
        return op.Mul(g, positive(op, op.Sub(high, y)))
    return g


def _above(op: Builder, y: ir.Value, low: ir.Value) -> ir.Value:
    """Say where y, nowhere below a limit, is above it: that it is not zero is told in half the time of a comparison."""
    limit = op.constant_of(low)
    return op.Cast(y, to=ir.DataType.BOOL) if limit is not None and not limit.any() else op.Greater(y, low)


@contextmanager
def _before_maker(op: Builder, dy: ir.Value, y: ir.Value) -> Iterator[None]:
    """Put what is made of y inside, a factor of dy, before the node that makes dy.

    Of two operands onnxruntime makes that first whose maker stands later in the file. So it makes this factor right
    before the product, where it would write it to memory and read it again.

    Args:
        op: the builder.
        dy: gradient of y.
        y: made in the forward pass.
    """
    source, maker = y.producer(), dy.producer()
    while maker is not None and is_op(maker, "Reshape") and is_backward(maker):
        maker = required_input(maker, 0).producer()
    # In a body, where nodes have no phase, y may be made again, and later.
    forward = source is not None and source.metadata_props.get(PHASE) == "forward"
    if maker is None or source is None or not forward or maker.graph is not source.graph or not is_backward(maker):
        yield
        return
    with op.scope(f"{source.name}/grad", before=maker):
        yield

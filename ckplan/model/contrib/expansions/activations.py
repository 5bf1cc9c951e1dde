"""Activations and what is fused with them."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.model.contrib.emitter import Emitter, NotExpandableError, Results
from ckplan.model.contrib.registry import expansion

_SELU_ALPHA = 1.67326319217681884765625
_SELU_GAMMA = 1.05070102214813232421875


def activate(e: Emitter, value: ir.Value, name: str, *numbers: float | None) -> ir.Value:
    """Emit an activation that a fused operator names; an empty name is none.

    Args:
        e: the emitter.
        value: what to apply it to.
        name: ``Relu``, ``Tanh``, ... as in ONNX.
        numbers: alpha, beta and gamma as far as they are given, or the limits of a Clip.

    Raises:
        NotExpandableError: there is no such activation.
    """
    alpha, beta = (*numbers, None, None)[:2]
    match name:
        case "":
            return value
        case "Relu" | "Tanh" | "Sigmoid" | "Softplus" | "Softsign" | "HardSwish":
            result = e.emit(name, value)
        case "LeakyRelu" | "Elu" | "ThresholdedRelu":
            result = e.emit(name, value, alpha=alpha)
        case "HardSigmoid":
            result = e.HardSigmoid(value, alpha=alpha, beta=beta)
        case "Selu":
            result = e.Selu(
                value,
                alpha=_SELU_ALPHA if alpha is None else alpha,
                gamma=_SELU_GAMMA if len(numbers) < 2 or numbers[-1] is None else numbers[-1],
            )
        case "Clip":
            result = e.Clip(value, alpha, beta)
        case "Gelu":
            result = e.Gelu(value)
        case _:
            raise NotExpandableError(f"its activation '{name}' is unknown")
    return result  # type: ignore[no-any-return]


def fast_gelu(e: Emitter, value: ir.Value) -> ir.Value:
    """Emit the tanh approximation of Gelu."""
    return e.Gelu(value, approximate="tanh")  # type: ignore[no-any-return]


@expansion("Gelu")
def gelu(e: Emitter) -> Results:
    """Gelu of ONNX, which took it over."""
    return [e.Gelu(e.required(0))]


@expansion("BiasGelu")
def bias_gelu(e: Emitter) -> Results:
    """Gelu(A + B)."""
    return [e.Gelu(e.Add(e.required(0), e.required(1)))]


@expansion("FastGelu")
def fast_gelu_with_bias(e: Emitter) -> Results:
    """The tanh approximation of Gelu(X + bias)."""
    return [fast_gelu(e, e.plus(e.required(0), e.input(1)))]


@expansion("GemmFastGelu")
def gemm_fast_gelu(e: Emitter) -> Results:
    """The tanh approximation of Gelu(X W + bias)."""
    return [fast_gelu(e, e.plus(e.MatMul(e.required(0), e.required(1)), e.input(2)))]


@expansion("QuickGelu")
def quick_gelu(e: Emitter) -> Results:
    """The product of x and sigmoid(alpha x)."""
    x = e.required(0)
    return [e.Mul(x, e.Sigmoid(e.scale(x, e.float_attribute("alpha", 1.702))))]


@expansion("BiasSplitGelu")
def bias_split_gelu(e: Emitter) -> Results:
    """Of X + bias, the left half of the last axis times Gelu of the right half."""
    total = e.Add(e.required(0), e.required(1))
    left, right = e.Split(total, axis=-1, num_outputs=2, _outputs=2)
    return [e.Mul(left, e.Gelu(right))]


@expansion("BiasAdd")
def bias_add(e: Emitter) -> Results:
    """X + bias + skip."""
    return [e.plus(e.required(0), e.required(1), e.required(2))]


@expansion("GatedAdd")
def gated_add(e: Emitter) -> Results:
    """X + Y gate."""
    return [e.Add(e.required(0), e.Mul(e.required(1), e.required(2)))]


@expansion("ScaledSiLU")
def scaled_silu(e: Emitter) -> Results:
    """The product of z and sigmoid(z), with z = scale x."""
    x, factor = e.required(0), e.input(1)
    z = e.scale(x, e.float_attribute("alpha", 1.0)) if factor is None else e.Mul(x, e.cast(factor, x.dtype))
    return [e.Mul(z, e.Sigmoid(z))]


@expansion("BiasSoftmax")
def bias_softmax(e: Emitter) -> Results:
    """Softmax of data + bias over all axes from ``axis`` on."""
    total = e.Add(e.required(0), e.required(1))
    shape = e.shape(total)
    axis = e.int_attribute("axis", 1) % len(shape)
    if axis == len(shape) - 1:
        return [e.Softmax(total, axis=-1)]
    flat = e.reshape(total, [*shape[:axis], int(np.prod(shape[axis:]))])
    return [e.reshape(e.Softmax(flat, axis=-1), shape)]


@expansion("BiasDropout")
def bias_dropout(e: Emitter) -> Results:
    """Dropout(data + bias, ratio) + residual."""
    total = e.Add(e.required(0), e.required(1))
    seed = e.int_attribute("seed") if "seed" in e.node.attributes else None
    y, mask = e.Dropout(total, e.input(3), e.input(4), seed=seed, _outputs=2)
    return [e.plus(y, e.input(2)), mask]


@expansion("LinearAttentionGate")
def linear_attention_gate(e: Emitter) -> Results:
    """decay_scale softplus(a + dt_bias), in float32, and sigmoid(b)."""
    a, b = e.required(0), e.input(3)
    bias, factor = e.required(1), e.required(2)
    decay = e.cast(e.Mul(e.Softplus(e.Add(e.cast(a, bias.dtype), bias)), factor), a.dtype)
    return [decay, None if b is None else e.Sigmoid(b)]

"""Formulas of operators of com.microsoft for which onnxruntime has no kernel for the CPU, in numpy."""

from __future__ import annotations

import math

import numpy as np

Array = np.ndarray


def sigmoid(x: Array) -> Array:
    return 1 / (1 + np.exp(-x))


def gelu(x: Array, tanh: bool = False) -> Array:
    if tanh:
        return 0.5 * x * (1 + np.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def softmax(x: Array) -> Array:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def root_mean_square(x: Array, scale: Array, epsilon: float) -> Array:
    return x / np.sqrt((x**2).mean(-1, keepdims=True) + epsilon) * scale


def group_norm(x: Array, scale: Array, bias: Array, groups: int, activated: bool) -> Array:
    """Channels last."""
    grouped = x.reshape(x.shape[0], -1, groups, x.shape[-1] // groups)
    centred = grouped - grouped.mean((1, 3), keepdims=True)
    normal = centred / np.sqrt((centred**2).mean((1, 3), keepdims=True) + 1e-5)
    y = normal.reshape(x.shape) * scale + bias
    return y * sigmoid(y) if activated else y


def conv2d(x: Array, w: Array, b: Array) -> Array:
    """Channels last, no padding, strides of one."""
    windows = np.lib.stride_tricks.sliding_window_view(x, w.shape[2:], axis=(1, 2))
    return np.einsum("nyxcij,ocij->nyxo", windows, w) + b


def attention_of(q: Array, k: Array, v: Array) -> Array:
    """(B, N, S, H) each, to (B, S, N H)."""
    y = softmax(q @ k.swapaxes(-1, -2) / math.sqrt(q.shape[-1])) @ v
    return y.transpose(0, 2, 1, 3).reshape(y.shape[0], y.shape[2], -1)


def group_query_attention(q: Array, k: Array, v: Array, *rest: Array) -> tuple[Array, Array, Array]:
    """Causal, with heads of 16 elements that are normalised by the last two inputs; also the keys and the values."""
    queries, keys, values = (x.reshape(*x.shape[:2], -1, 16).transpose(0, 2, 1, 3) for x in (q, k, v))
    queries, keys = (root_mean_square(x, weight, 1e-6) for x, weight in ((queries, rest[-2]), (keys, rest[-1])))
    groups = queries.shape[1] // keys.shape[1]
    scores = queries @ np.repeat(keys, groups, 1).swapaxes(-1, -2) / 4
    scores = np.where(np.tri(scores.shape[-1], dtype=bool), scores, -np.inf)
    y = softmax(scores) @ np.repeat(values, groups, 1)
    return y.transpose(0, 2, 1, 3).reshape(q.shape), keys, values


def gated_bias(query: Array, query_bias: Array, relative: Array, weight: Array, bias: Array, eco: Array) -> Array:
    """As the documentation of GatedRelativePositionBias has it."""
    batch, length, width = query.shape
    heads = relative.shape[1]
    split = (query + query_bias).reshape(batch, length, heads, width // heads).transpose(0, 2, 1, 3)
    gates = (split @ weight + bias).reshape(batch, heads, length, 2, -1).sum(-1)
    update, reset = np.split(sigmoid(gates), 2, axis=-1)
    return (update * (reset * eco - 1) + 2) * relative

"""LSTM, GRU and RNN in numpy, written from the operators' documentation, in the precision of their arguments.

onnx's reference evaluator lacks sequence lengths, activations, clipping, coupled gates and, for GRU and RNN, more.
Where the documentation leaves something open, this does what onnxruntime does: the cell of an LSTM is not clipped on
its way into the output, and a sample without any step has zeros for its final states.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

Array = np.ndarray
Activation = Callable[[Array, float, float], Array]

ACTIVATIONS: dict[str, Activation] = {
    "Affine": lambda x, a, b: a * x + b,
    "Elu": lambda x, a, b: np.where(x >= 0, x, a * (np.exp(np.minimum(x, 0)) - 1)),
    "HardSigmoid": lambda x, a, b: np.clip(a * x + b, 0, 1),
    "LeakyRelu": lambda x, a, b: np.where(x >= 0, x, a * x),
    "Relu": lambda x, a, b: np.maximum(x, 0),
    "ScaledTanh": lambda x, a, b: a * np.tanh(b * x),
    "Sigmoid": lambda x, a, b: 1 / (1 + np.exp(-x)),
    "Softplus": lambda x, a, b: np.logaddexp(x, 0),
    "Softsign": lambda x, a, b: x / (1 + np.abs(x)),
    "Tanh": lambda x, a, b: np.tanh(x),
    "ThresholdedRelu": lambda x, a, b: np.where(x >= a, x, 0),
}
ALPHAS = {"Affine": 1.0, "Elu": 1.0, "HardSigmoid": 0.2, "LeakyRelu": 0.01, "ScaledTanh": 1.0, "ThresholdedRelu": 1.0}
BETAS = {"Affine": 0.0, "HardSigmoid": 0.5, "ScaledTanh": 1.0}
DEFAULTS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def recurrent(
    op_type: str,
    x: Array,
    w: Array,
    r: Array,
    b: Array | None = None,
    lengths: Array | None = None,
    h: Array | None = None,
    c: Array | None = None,
    p: Array | None = None,
    **attributes: Any,
) -> tuple[Array, ...]:
    """Return Y, Y_h and, for LSTM, Y_c."""
    direction, layout = attributes.get("direction", "forward"), attributes.get("layout", 0)
    hidden, count = r.shape[2], w.shape[0]
    if layout:
        x = x.swapaxes(0, 1)
        h, c = (None if state is None else state.swapaxes(0, 1) for state in (h, c))
    steps, batch = x.shape[:2]
    b = np.zeros((count, 2 * GATES[op_type] * hidden), x.dtype) if b is None else b
    p = np.zeros((count, 3 * hidden), x.dtype) if p is None else p
    h = np.zeros((count, batch, hidden), x.dtype) if h is None else h
    c = np.zeros((count, batch, hidden), x.dtype) if c is None else c
    lengths = np.full(batch, steps) if lengths is None else lengths
    y, last_h, last_c = np.zeros((steps, count, batch, hidden), x.dtype), h.copy(), c.copy()
    for k, functions in enumerate(_functions(op_type, count, attributes)):
        backwards = direction == "reverse" or k == 1
        for n in range(batch):
            state = h[k, n], c[k, n]
            order = range(int(lengths[n]))
            for t in reversed(order) if backwards else order:
                state = _step(op_type, x[t, n], *state, w[k], r[k], b[k], p[k], functions, attributes)
                y[t, k, n] = state[0]
            last_h[k, n], last_c[k, n] = state if lengths[n] else (0, 0)
    if layout:
        y, last_h, last_c = y.transpose(2, 0, 1, 3), last_h.swapaxes(0, 1), last_c.swapaxes(0, 1)
    return (y, last_h, last_c) if op_type == "LSTM" else (y, last_h)


def _functions(op_type: str, count: int, attributes: dict[str, Any]) -> list[list[Callable[[Array], Array]]]:
    """Each direction's activations; alpha and beta go to those that have one, in order, as far as they last."""
    names = attributes.get("activations") or DEFAULTS[op_type] * count
    alphas, betas = iter(attributes.get("activation_alpha", ())), iter(attributes.get("activation_beta", ()))
    clip = attributes.get("clip", np.inf)
    found = []
    for index, name in enumerate(names):
        alpha = next(alphas, ALPHAS[name]) if name in ALPHAS else 0.0
        beta = next(betas, BETAS[name]) if name in BETAS else 0.0
        bound = np.inf if op_type == "LSTM" and index % 3 == 2 else clip
        found.append(lambda z, f=ACTIVATIONS[name], a=alpha, b=beta, c=bound: f(np.clip(z, -c, c), a, b))
    size = len(found) // count
    return [found[k * size : (k + 1) * size] for k in range(count)]


def _step(
    op_type: str,
    x: Array,
    h: Array,
    c: Array,
    w: Array,
    r: Array,
    b: Array,
    p: Array,
    functions: list[Callable[[Array], Array]],
    attributes: dict[str, Any],
) -> tuple[Array, Array]:
    wb, rb = np.split(b, 2)
    xw = x @ w.T + wb
    if op_type == "RNN":
        return functions[0](xw + h @ r.T + rb), c
    if op_type == "GRU":
        f, g = functions
        xz, xr, xh = np.split(xw, 3)
        rz, rr, rh = np.split(r, 3)
        bz, br, bh = np.split(rb, 3)
        z, reset = f(xz + h @ rz.T + bz), f(xr + h @ rr.T + br)
        inner = reset * (h @ rh.T + bh) if attributes.get("linear_before_reset", 0) else (reset * h) @ rh.T + bh
        return (1 - z) * g(xh + inner) + z * h, c
    f, g, out = functions
    zi, zo, zf, zc = np.split(xw + h @ r.T + rb, 4)
    pi, po, pf = np.split(p, 3)
    i = f(zi + pi * c)
    forget = 1 - i if attributes.get("input_forget", 0) else f(zf + pf * c)
    c = forget * c + i * g(zc)
    o = f(zo + po * c)
    return o * out(c), c

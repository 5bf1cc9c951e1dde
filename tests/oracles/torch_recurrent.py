"""LSTM, GRU and RNN by torch's own recurrent functions, which order the gates in another way.

Only what torch has: its activations, no peepholes, no clipping, whole sequences. The exception, written out, is a GRU
whose reset gate comes before the product.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from tests.oracles.torch_registry import Call, Result, operator

ORDERS = {"LSTM": (0, 2, 3, 1), "GRU": (1, 0, 2), "RNN": (0,)}
"""Where torch's gates stand in ONNX: i f g o of i o f g, r z n of z r n."""
ACTIVATIONS = {"LSTM": ("Sigmoid", "Tanh", "Tanh"), "GRU": ("Sigmoid", "Tanh"), "RNN": ("Tanh",)}


def _reordered(value: torch.Tensor, order: Sequence[int]) -> torch.Tensor:
    parts = value.chunk(len(order), 0)
    return torch.cat([parts[index] for index in order]) if len(order) > 1 else value


def _recurrent(call: Call, op_type: str) -> Result:
    count, order = call[1].shape[0], ORDERS[op_type]
    names = [name.decode() for name in call.get("activations", [])] or [*ACTIVATIONS[op_type]] * count
    relu = op_type == "RNN" and set(names) == {"Relu"}
    if not relu and tuple(names) != ACTIVATIONS[op_type] * count:
        raise NotImplementedError(f"{op_type} with activations {names}")
    if "clip" in call.attributes or call.get("input_forget", 0) or any(call.optional(i) is not None for i in (4, 7)):
        raise NotImplementedError(f"{op_type} with clipping, coupled gates, lengths or peepholes")
    first = bool(call.get("layout", 0))
    x = call[0].transpose(0, 1) if first else call[0]
    hidden = call[2].shape[2]
    weights = []
    for k in range(count):
        weights += [_reordered(call[1][k], order), _reordered(call[2][k], order)]
        bias = call.optional(3)
        if bias is not None:
            weights += [_reordered(part, order) for part in bias[k].chunk(2)]
    states = []
    for index in (5, 6) if op_type == "LSTM" else (5,):
        state = call.optional(index)
        if state is None:
            states.append(torch.zeros(count, x.shape[1], hidden, dtype=x.dtype))
        else:
            states.append((state.transpose(0, 1) if first else state).contiguous())
    backwards = call.text("direction", "forward") == "reverse"
    x = x.flip(0) if backwards else x
    function = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN": torch.rnn_relu if relu else torch.rnn_tanh}[op_type]
    initial = states if op_type == "LSTM" else states[0]
    if op_type == "GRU" and not call.get("linear_before_reset", 0):
        y, *finals = _reset_before(x, states[0], weights)
    else:
        y, *finals = function(x, initial, weights, call.optional(3) is not None, 1, 0.0, True, count == 2, False)
    y = y.reshape(*y.shape[:2], count, hidden).transpose(1, 2)
    y = y.flip(0) if backwards else y
    if first:
        y, finals = y.permute(2, 0, 1, 3), [state.transpose(0, 1) for state in finals]
    return (y, *finals)


def _reset_before(
    x: torch.Tensor, states: torch.Tensor, weights: Sequence[torch.Tensor]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Run a GRU that multiplies the state by the reset gate before the product; arguments as torch's function."""
    count, size = len(states), len(weights) // len(states)
    ys, finals = [], []
    for k in range(count):
        w, r, *biases = weights[k * size : (k + 1) * size]
        b = sum(biases, torch.zeros(w.shape[0], dtype=x.dtype))
        h, rows = states[k], []
        for row in x.flip(0) if k else x:
            gates = torch.sigmoid(row @ w.T + torch.cat([h @ r[: -r.shape[1]].T, torch.zeros_like(h)], 1) + b)
            reset, update, _ = gates.chunk(3, 1)
            wn, rn, bn = w[-r.shape[1] :], r[-r.shape[1] :], b[-r.shape[1] :]
            h = (1 - update) * torch.tanh(row @ wn.T + (reset * h) @ rn.T + bn) + update * h
            rows.append(h)
        ys.append(torch.stack(rows[::-1] if k else rows))
        finals.append(h)
    return torch.cat(ys, 2), torch.stack(finals)


@operator("LSTM")
def lstm(call: Call) -> Result:
    return _recurrent(call, "LSTM")


@operator("GRU")
def gru(call: Call) -> Result:
    return _recurrent(call, "GRU")


@operator("RNN")
def rnn(call: Call) -> Result:
    return _recurrent(call, "RNN")

"""A training step in torch as a torch user would write it, from the parameters of a forward ONNX graph.

The oracle of the tests (`tests.oracles`) writes many operators out so as to share nothing with what it checks. That
would make torch slow, so here normalisation, pooling, loss and attention are torch's own fused functions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch.nn import functional

from tests.oracles.torch_oracle import torch_step
from tests.oracles.torch_registry import OPERATORS, Call, Result

Step = Callable[[], tuple[torch.Tensor, Sequence[torch.Tensor]]]


def _symmetric(call: Call) -> list[int]:
    pads = list(call.get("pads", [0, 0, 0, 0]))
    if pads[: len(pads) // 2] != pads[len(pads) // 2 :]:
        raise ValueError(f"torch's own functions pad both ends of an axis alike, and these pads are {pads}")
    return pads[: len(pads) // 2]


def _convolution(call: Call) -> Result:
    """One function call; the oracle pads by itself."""
    return functional.conv2d(
        call[0],
        call[1],
        call.optional(2),
        call.get("strides", [1, 1]),
        _symmetric(call),
        call.get("dilations", [1, 1]),
        call.get("group", 1),
    )


def _max_pool(call: Call) -> Result:
    kernel = call.attributes["kernel_shape"]
    return functional.max_pool2d(call[0], kernel, call.get("strides", [1, 1]), _symmetric(call))


def _batch_normalization(call: Call) -> Result:
    """The running statistics of a training step are updated on the way, as torch's module does."""
    training = bool(call.get("training_mode", 0))
    momentum, epsilon = 1 - call.number("momentum", 0.9), call.number("epsilon", 1e-5)
    y = functional.batch_norm(call[0], call[3], call[4], call[1], call[2], training, momentum, epsilon)
    return (y, call[3], call[4]) if training else y


def _layer_normalization(call: Call) -> Result:
    shape = list(call[1].shape)
    return functional.layer_norm(call[0], shape, call[1], call.optional(2), call.number("epsilon", 1e-5))


def _cross_entropy(call: Call) -> Result:
    ignored = int(call.get("ignore_index", -100))
    return functional.cross_entropy(call[0], call[1].long(), call.optional(2), ignore_index=ignored)


FUSED = {
    "Conv": _convolution,
    "MaxPool": _max_pool,
    "BatchNormalization": _batch_normalization,
    "LayerNormalization": _layer_normalization,
    "SoftmaxCrossEntropyLoss": _cross_entropy,
}


def graph_step(forward: onnx.ModelProto, feeds: Mapping[str, np.ndarray], loss: str, parameters: Sequence[str]) -> Step:
    """Prepare a step that runs the graph operator by operator. Replaces operators of the oracle in this process."""
    OPERATORS.update(FUSED)
    return torch_step(forward, feeds, loss, parameters)


def gpt_step(forward: onnx.ModelProto, feeds: Mapping[str, np.ndarray], heads: int, parameters: Sequence[str]) -> Step:
    """Prepare a step of `sample_models.gpt` with fused linear layers and scaled_dot_product_attention."""
    arrays = {tensor.name: numpy_helper.to_array(tensor) for tensor in forward.graph.initializer}
    leaves = {name: torch.from_numpy(np.array(arrays[name])).requires_grad_() for name in parameters}
    tokens, labels = (torch.from_numpy(feeds[name]) for name in ("input_ids", "labels"))
    layers = sum(name.endswith("ln_1.weight") for name in parameters)

    def norm(x: torch.Tensor, name: str) -> torch.Tensor:
        scale, bias = leaves[f"{name}.weight"], leaves[f"{name}.bias"]
        return functional.layer_norm(x, list(scale.shape), scale, bias, 1e-5)

    def linear(x: torch.Tensor, name: str) -> torch.Tensor:
        weight, bias = leaves[f"{name}.weight"], leaves[f"{name}.bias"]
        return torch.addmm(bias, x.reshape(-1, x.shape[-1]), weight).reshape(*x.shape[:-1], -1)

    def step() -> tuple[torch.Tensor, Sequence[torch.Tensor]]:
        table = leaves["transformer.wte.weight"]
        x = functional.embedding(tokens, table) + leaves["transformer.wpe.weight"][: tokens.shape[1]]
        batch, length, width = x.shape
        for layer in range(layers):
            name = f"transformer.h.{layer}"
            parts = torch.split(linear(norm(x, f"{name}.ln_1"), f"{name}.attn.c_attn"), width, dim=2)
            q, k, v = (part.reshape(batch, length, heads, -1).transpose(1, 2) for part in parts)
            mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + linear(mixed.transpose(1, 2).reshape(batch, length, width), f"{name}.attn.c_proj")
            inner = functional.gelu(linear(norm(x, f"{name}.ln_2"), f"{name}.mlp.c_fc"), approximate="tanh")
            x = x + linear(inner, f"{name}.mlp.c_proj")
        logits = functional.linear(norm(x, "transformer.ln_f").reshape(-1, width), table)
        loss = functional.cross_entropy(logits, labels.reshape(-1), ignore_index=-100)
        return loss.detach(), torch.autograd.grad(loss, list(leaves.values()))

    return step

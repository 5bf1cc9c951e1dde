"""Gradients of a forward ONNX graph by PyTorch's autograd: an implementation independent of the rules under test.

A graph is run operator by operator with torch functions, on the CPU and in the precision asked for, and
differentiated by torch. In float64 the results are the reference; in float32 they show what that precision costs.

Modules that import this one must first call ``pytest.importorskip("torch", reason=NEEDS_TORCH)``, with the reason
written out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir
import torch
from numpy.typing import NDArray
from onnx import numpy_helper

from ckplan.autodiff import TrainingGraph
from ckplan.autodiff.paths import prune
from tests.oracles import (  # noqa: F401  (they fill the table)
    torch_networks,
    torch_operators,
    torch_recurrent,
    torch_scatter,
)
from tests.oracles.torch_registry import OPERATORS, Call, Value

Array = NDArray[Any]

SUPPORTED = frozenset(OPERATORS)
"""Operator types (of the default domain) that can be run."""


def forward_of(training: TrainingGraph) -> onnx_ir.Model:
    """The forward pass and the loss, without the outputs that only the backward pass reads."""
    model = training.model.clone()
    prune(model.graph, [value for value in model.graph.outputs if value.name == training.loss])
    for node in model.graph:
        if node.op_type == "MaxPool":
            node.resize_outputs(1)
    return model


def torch_gradients(
    model: onnx.ModelProto | onnx_ir.Model,
    inputs: Mapping[str, Array],
    loss: str,
    parameters: Sequence[str],
    dtype: torch.dtype = torch.float64,
) -> tuple[float, dict[str, Array]]:
    """Run the nodes that ``loss`` depends on and differentiate it by initializers.

    A training graph may be given whole: nodes that the loss does not need, such as its backward pass, are left out.

    Args:
        model: of opset 21 at least, without functions, control flow and random operators.
        inputs: graph inputs by name. They may also name initializers, which they then replace, and any other value,
            which then is not computed: so are the masks of Dropout nodes in training mode given.
        loss: name of a value with one element.
        parameters: names of floating-point initializers or inputs.
        dtype: in which all floating-point tensors are held and computed, whatever type the model says.

    Returns:
        the loss, and the gradient of each parameter; zeros where the loss does not depend on it.

    Raises:
        NotImplementedError: an operator has no implementation here.
        KeyError: a name is not in the graph.
    """
    step = torch_step(model, inputs, loss, parameters, dtype)
    result, found = step()
    return float(result.detach()), {name: gradient.numpy() for name, gradient in zip(parameters, found, strict=True)}


def torch_step(
    model: onnx.ModelProto | onnx_ir.Model,
    inputs: Mapping[str, Array],
    loss: str,
    parameters: Sequence[str],
    dtype: torch.dtype = torch.float32,
) -> Callable[[], tuple[torch.Tensor, list[torch.Tensor]]]:
    """Prepare what `torch_gradients` does once, so that a forward and backward pass can be run, and timed, by itself.

    Takes the arguments of `torch_gradients`.

    Returns:
        a function that runs one step and returns the loss and the gradients in the order of the parameters.
    """
    graph, start = _start(model, inputs, dtype)
    leaves: list[torch.Tensor] = []
    for name in parameters:
        value = start[name]
        if not isinstance(value, torch.Tensor) or not value.is_floating_point():
            raise KeyError(f"`{name}` is no floating-point tensor")
        leaves.append(value.clone().requires_grad_())
    start.update(zip(parameters, leaves, strict=True))

    def step() -> tuple[torch.Tensor, list[torch.Tensor]]:
        values = dict(start)
        _run(graph, values, [loss], dtype)
        result = values[loss]
        assert isinstance(result, torch.Tensor)
        found = torch.autograd.grad(result.reshape(()), leaves, allow_unused=True)
        return result, [
            torch.zeros_like(leaf) if gradient is None else gradient
            for leaf, gradient in zip(leaves, found, strict=True)
        ]

    return step


def torch_products(
    model: onnx.ModelProto | onnx_ir.Model,
    inputs: Mapping[str, Array],
    loss: str,
    vector: Mapping[str, Array],
    dtype: torch.dtype = torch.float64,
) -> dict[str, Array]:
    """Multiply the Hessian of a loss by a vector over parameters; other arguments as in `torch_gradients`."""
    graph, values = _start(model, inputs, dtype)
    leaves: list[torch.Tensor] = []
    for name in vector:
        value = values[name]
        assert isinstance(value, torch.Tensor)
        leaves.append(value.requires_grad_())
    _run(graph, values, [loss], dtype)
    result = values[loss]
    assert isinstance(result, torch.Tensor)
    slopes = torch.autograd.grad(result, leaves, create_graph=True)
    along = torch.stack([(s * to_torch(v, dtype)).sum() for s, v in zip(slopes, vector.values(), strict=True)]).sum()
    products = torch.autograd.grad(along, leaves, allow_unused=True, materialize_grads=True)
    return {name: product.numpy() for name, product in zip(vector, products, strict=True)}


def torch_values(
    model: onnx.ModelProto | onnx_ir.Model,
    inputs: Mapping[str, Array],
    names: Sequence[str] = (),
    dtype: torch.dtype = torch.float64,
) -> dict[str, Array]:
    """Compute values by name, of the graph's outputs when none is named; arguments as in `torch_gradients`."""
    graph, values = _start(model, inputs, dtype)
    wanted = list(names) or [output.name for output in graph.output]
    with torch.no_grad():
        _run(graph, values, wanted, dtype)
    results: dict[str, Array] = {}
    for name in wanted:
        value = values[name]
        assert isinstance(value, torch.Tensor)
        results[name] = value.numpy()
    return results


def _start(
    model: onnx.ModelProto | onnx_ir.Model, inputs: Mapping[str, Array], dtype: torch.dtype
) -> tuple[onnx.GraphProto, dict[str, Value]]:
    """The graph, and the values known before the first node."""
    proto = onnx_ir.to_proto(model) if isinstance(model, onnx_ir.Model) else model
    values: dict[str, Value] = {"": None}
    for tensor in proto.graph.initializer:
        values[tensor.name] = to_torch(numpy_helper.to_array(tensor), dtype)
    for name, array in inputs.items():
        values[name] = to_torch(array, dtype)
    return proto.graph, values


def to_torch(array: Array, dtype: torch.dtype) -> torch.Tensor:
    """Copy an array to torch; floating-point ones become ``dtype``."""
    tensor = torch.from_numpy(np.array(array))
    return tensor.to(dtype) if tensor.is_floating_point() else tensor


def _run(graph: onnx.GraphProto, values: dict[str, Value], wanted: Iterable[str], dtype: torch.dtype) -> None:
    """Compute ``wanted``, and nothing that it does not need."""
    for node in _needed(graph, values, wanted):
        if node.domain not in ("", "ai.onnx") or node.op_type not in OPERATORS:
            raise NotImplementedError(f"the torch oracle cannot run {node.op_type} `{node.name}`")
        attributes = {attribute.name: onnx.helper.get_attribute_value(attribute) for attribute in node.attribute}
        given = [values.get(name) for name in node.output]
        call = Call([values[name] for name in node.input], attributes, len(node.output), dtype, given)
        results = OPERATORS[node.op_type](call)
        results = results if isinstance(results, tuple) else (results,)
        for name, result in zip(node.output, results, strict=False):
            values.setdefault(name, result)


def _needed(graph: onnx.GraphProto, known: Mapping[str, Value], wanted: Iterable[str]) -> list[onnx.NodeProto]:
    """The nodes on the way to ``wanted``, in the graph's order."""
    missing = {name for name in wanted if name not in known}
    nodes: list[onnx.NodeProto] = []
    for node in reversed(graph.node):
        if missing.intersection(node.output):
            nodes.append(node)
            missing.difference_update(node.output)
            missing.update(name for name in node.input if name not in known)
    if missing:
        raise KeyError(f"nothing in the graph makes {', '.join(sorted(missing))}")
    return nodes[::-1]

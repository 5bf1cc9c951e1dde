"""The update alone: a graph from gradients, parameters and state to new parameters and state."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from ckplan.autodiff.optimizers.base import Optimizer
from ckplan.autodiff.optimizers.step import add_optimizer
from ckplan.autodiff.training_graph import TrainingGraph
from ckplan.errors import UsageError


def update_graph(training: TrainingGraph, optimizer: Optimizer, clip_norm: float | None = None) -> TrainingGraph:
    """Make a graph that only updates: between the gradients and it, a loop may sum those of several machines.

    Args:
        training: a training graph whose gradients are outputs; not changed.
        optimizer: how to get new parameters.
        clip_norm: see :func:`ckplan.autodiff.optimizers.add_optimizer`.

    Returns:
        A graph whose inputs are the gradients by their names, parameters and states (with a default), the number of
        steps if the optimizer counts them, and the learning rate. Its outputs are those of
        :func:`ckplan.autodiff.optimizers.add_optimizer` without a loss.

    Raises:
        UsageError: there is no gradient of a parameter, or ``clip_norm`` is not a positive number.
    """
    before = training.model.graph
    outputs = {str(value.name): value for value in before.outputs}
    gradients = {}
    for name in training.gradients.values():
        if name not in outputs:
            raise UsageError(f"the gradient '{name}' is no output of the graph", "start from a graph without optimizer")
        gradients[name] = _like(outputs[name])
    parameters = [_like(before.initializers[name]) for name in training.gradients]
    graph = ir.Graph(
        [*gradients.values(), *parameters],
        [],
        nodes=[],
        initializers=parameters,
        opset_imports={"": before.opset_imports[""]},
        name="update",
    )
    model = ir.Model(graph, ir_version=training.model.ir_version)
    return add_optimizer(replace(training, model=model, updates={}, notes=()), optimizer, clip_norm)


def _like(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)

"""The update alone: a graph from gradients, parameters and state to new parameters and state."""

from __future__ import annotations

from collections.abc import Mapping

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.optimizers.base import Optimizer
from ckplan.autodiff.optimizers.training_step import add_optimizer
from ckplan.autodiff.record import TrainingGraph
from ckplan.errors import UsageError


def update_graph(
    model: ir.Model,
    gradients: Mapping[str, str],
    optimizer: Optimizer,
    clip_norm: float | None = None,
    *,
    batches: str | None = None,
) -> TrainingGraph:
    """Make a graph that only updates: between the gradients and it, a loop may sum those of several machines.

    Args:
        model: a training graph; not changed.
        gradients: by the names of parameters, those of its outputs that are their gradients.
        optimizer: how to get new parameters.
        clip_norm: see :func:`ckplan.autodiff.optimizers.add_optimizer`.
        batches: name of an input, a float32 number: the gradients are sums over so many batches then, in float32 where
            the graph has less, and the update is that of their mean.

    Returns:
        A graph whose inputs are the gradients by their names, parameters and states (with a default), the number of
        steps if the optimizer counts them, and the learning rate. Its outputs are those of
        :func:`ckplan.autodiff.optimizers.add_optimizer` without a loss.

    Raises:
        UsageError: there is no gradient of a parameter, or ``clip_norm`` is not a positive number.
    """
    before = model.graph
    outputs = {str(value.name): value for value in before.outputs}
    graph = ir.Graph([], [], nodes=[], opset_imports={"": before.opset_imports[""]}, name="update")
    op = Builder(graph, graph.opset_imports)
    slopes: dict[str, str] = {}
    for name, gradient in gradients.items():
        if gradient not in outputs:
            raise UsageError(
                f"the gradient '{gradient}' is not an output of the graph", "start from a graph without optimizer"
            )
        graph.inputs.append(_like(outputs[gradient]))
        slopes[name] = gradient
    for name in gradients:
        parameter = _like(before.initializers[name])
        graph.register_initializer(parameter)
        graph.inputs.append(parameter)
    if batches is not None:
        count = ir.Value(name=batches, type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([]))
        given = {str(value.name): value for value in graph.inputs}
        graph.inputs.append(count)
        slopes = {name: _mean(op, given[gradient], count) for name, gradient in slopes.items()}
    made = ir.Model(graph, ir_version=model.ir_version)
    return add_optimizer(TrainingGraph(made, "", slopes, "an update"), optimizer, clip_norm)


def _mean(op: Builder, total: ir.Value, count: ir.Value) -> str:
    """Emit the mean of a sum, which is float32 at least; return its name."""
    assert total.dtype is not None
    if total.dtype.itemsize < 4:
        total.type = ir.TensorType(ir.DataType.FLOAT)
    with op.scope(f"{total.name}/mean"):
        mean = op.Div(total, op.cast(count, total.dtype))
    mean.name = op.unique_name(f"{total.name}_mean")
    return mean.name


def _like(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, type=value.type, shape=value.shape, const_value=value.const_value)

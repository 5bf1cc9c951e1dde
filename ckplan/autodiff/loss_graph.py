"""A loss without gradients: what a trained model is evaluated with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.assembly import name_nodes
from ckplan.autodiff.builder import Builder, is_floating, shape_of
from ckplan.autodiff.composites import inline_composites
from ckplan.autodiff.inline import inline_functions
from ckplan.autodiff.objective import add_objective
from ckplan.autodiff.paths import prune


@dataclass(frozen=True)
class LossGraph:
    """A model that computes a loss.

    Attributes:
        model: its outputs are the loss and, where there is one, the accuracy.
        loss: name of the loss.
        accuracy: name of the share of samples whose label has the largest score; empty where the loss is no
            cross-entropy that was put behind the model.
    """

    model: ir.Model
    loss: str
    accuracy: str


def loss_graph(forward: ir.Model, loss: Sequence[str] = ()) -> LossGraph:
    """Put a loss behind a copy of a model, as :func:`ckplan.build_training_graph` does, and leave it at that.

    Args:
        forward: a model in normal form.
        loss: as for the training graph.

    Raises:
        UsageError: a loss does not exist.
        ModelError: no output is floating point.
    """
    model = forward.clone()
    graph = model.graph
    name_nodes(graph)
    op = Builder(graph, graph.opset_imports, functions=model.functions)
    inputs, scores = set(graph.inputs), [value for value in graph.outputs if is_floating(value)]
    objective = add_objective(op, loss, ())
    outputs = [objective.outputs[0]]
    labels = [value for value in graph.inputs if value not in inputs and not is_floating(value)]
    if len(labels) == 1 and len(loss) < 2:
        chosen = loss[0].partition(":")[2] if loss else ""
        named = [value for value in scores if value.name == chosen] or scores
        outputs += _accuracy(op, named[0], labels[0])
    prune(graph, outputs)
    inline_composites(op)
    prune(graph, list(graph.outputs))
    inline_functions(model)
    names = [str(value.name) for value in graph.outputs]
    return LossGraph(model, names[0], names[1] if len(names) > 1 else "")


def _accuracy(op: Builder, scores: ir.Value, labels: ir.Value) -> list[ir.Value]:
    """Emit the share of labels that have the largest score; nothing if no axis of the scores can be the classes'."""
    shape, samples = shape_of(scores), shape_of(labels)
    axis = len(shape) - 1 if len(shape) in (1, 3) else 1
    if (*shape[:axis], *shape[axis + 1 :]) != samples:
        return []
    with op.scope("accuracy", "forward"):
        right = op.Equal(op.ArgMax(scores, axis=axis, keepdims=0), op.Cast(labels, to=ir.DataType.INT64))
        share = op.ReduceMean(op.Cast(right, to=ir.DataType.FLOAT), np.arange(len(samples)), keepdims=0)
    share.name = op.unique_name("accuracy")
    return [share]

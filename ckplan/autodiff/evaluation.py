"""A model with its loss and no gradients, by which a training loop measures its progress."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.autodiff.assembly import name_nodes
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.composites import inline_composites, refuse_own_domain
from ckplan.autodiff.inline import inline_functions
from ckplan.autodiff.losses.divisor import divisor_of
from ckplan.autodiff.objective import add_objective
from ckplan.autodiff.paths import prune
from ckplan.autodiff.reading import attr_int, is_floating, shape_of
from ckplan.autodiff.rewrites.racing_updates import update_in_turn
from ckplan.model.files.own_files import forget_training
from ckplan.model.normal_form.opset import relabel
from ckplan.operators.matching import is_op


@dataclass(frozen=True)
class LossGraph:
    """A model that computes a loss and nothing else.

    Attributes:
        model: its outputs are the loss and, where there are such, the accuracy and what the loss is divided by.
        loss: name of the loss.
        accuracy: name of the share of samples whose label has the largest score; empty where the loss is no
            cross-entropy that was put behind the model.
        divisor: name of what the loss, a mean, is divided by, where that differs between batches of one size: by it
            their losses weigh. Empty elsewhere.
    """

    model: ir.Model
    loss: str
    accuracy: str
    divisor: str


def evaluation_graph(forward: ir.Model, loss: Sequence[str] = ()) -> ir.Model:
    """Append a loss to a copy of a model, in inference form.

    Args:
        forward: a model in normal form, loaded for inference: Dropout is gone then.
        loss: as for :func:`ckplan.autodiff.build_training_graph`.

    Returns:
        A model whose first output is the loss (of several their sum, then each); behind it come the model's own
        outputs. BatchNormalization uses its running statistics, whatever form it has in the file.

    Raises:
        UsageError: a loss does not exist or cannot be used.
        ModelError: the model has no floating-point output.
    """
    model = forward.clone()
    graph = model.graph
    forget_training(model)
    refuse_own_domain(graph)
    name_nodes(graph)
    _leave_training(graph)
    op = Builder(graph, graph.opset_imports, functions=model.functions)
    objective = add_objective(op, list(loss), (), model.metadata_props.get(keys.LOSS))
    shown = dict.fromkeys([*objective.outputs, *graph.outputs])
    prune(graph, list(shown))
    inline_composites(op)
    prune(graph, list(graph.outputs))
    inline_functions(model)
    update_in_turn(op)
    relabel(model)
    return model


def loss_graph(forward: ir.Model, loss: Sequence[str] = (), trained: Iterable[str] = ()) -> LossGraph:
    """What `evaluation_graph` makes, with the accuracy and a divisor in place of the model's own outputs.

    Args:
        forward: a model in normal form, loaded for inference.
        loss: as for :func:`ckplan.autodiff.build_training_graph`.
        trained: names of the weights that a training changes.

    Raises:
        UsageError: a loss does not exist or cannot be used.
        ModelError: the model has no floating-point output.
    """
    model = evaluation_graph(forward, loss)
    graph = model.graph
    own = {str(value.name) for value in (*forward.graph.inputs, *forward.graph.outputs)}
    labels = [value for value in graph.inputs if value.name not in own and not is_floating(value)]
    scores = [value for value in graph.outputs if value.name in own and is_floating(value)]
    total = graph.outputs[0]
    accuracy: list[ir.Value] = []
    if len(labels) == 1 and len(loss) < 2:
        chosen = loss[0].partition(":")[2] if loss else ""
        named = [value for value in scores if value.name == chosen] or scores
        accuracy = _accuracy(Builder(graph, graph.opset_imports), named[0], labels[0])
    weights = {graph.initializers[name] for name in trained if name in graph.initializers}
    divisor = divisor_of(total, {value for value in graph.inputs if not value.is_initializer()}, weights)
    if divisor is not None and divisor.producer() is None:  # fed as it is, and no output of a file
        divisor = None
    prune(graph, [total, *accuracy, *([] if divisor is None else [divisor])])
    shown = accuracy[0].name if accuracy else None
    return LossGraph(model, str(total.name), shown or "", "" if divisor is None else str(divisor.name))


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


def _leave_training(graph: ir.Graph) -> None:
    """Put BatchNormalization into inference form where nothing but outputs of the graph read what it learns."""
    learnt: set[ir.Value] = set()
    for node in graph:
        if not is_op(node, "BatchNormalization") or not attr_int(node, "training_mode", 0):
            continue
        rest = node.outputs[1:]
        if any(value.uses() for value in rest):
            continue
        learnt.update(rest)
        node.attributes["training_mode"] = ir.AttrInt64("training_mode", 0)
        kept = [value for value in graph.outputs if value not in learnt]
        graph.outputs.clear()
        graph.outputs.extend(kept)
        node.resize_outputs(1)

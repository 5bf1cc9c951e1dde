"""What finishes a training graph: names, merging of equal nodes, metadata."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from ckplan import keys
from ckplan.autodiff.builder import FORWARD, Builder
from ckplan.autodiff.idioms.presence import there
from ckplan.autodiff.loss_scale import finished_type
from ckplan.autodiff.pieces.regions import told
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.record import TrainingGraph
from ckplan.keys import PHASE
from ckplan.model.traits import is_backward

#: Called with a forward node and the gradient nodes that were appended for it.
Callback = Callable[[ir.Node, Sequence[ir.Node]], None]

_TRAINING_KEYS = (
    keys.LOSS,
    keys.OBJECTIVE,
    keys.PARAMETERS,
    keys.GRADIENTS,
    keys.RETAINED,
    keys.LOSS_SCALE,
    keys.CHUNKS,
    keys.UPDATES,
)

_DRAWING = frozenset({"Bernoulli", "Dropout"})
"""Random operators that the pass for common subexpressions takes for pure functions."""


def name_nodes(graph: ir.Graph) -> None:
    """Make sure that every node has a name of its own."""
    taken: set[str] = set()
    for index, node in enumerate(graph.all_nodes()):
        name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name = f"{name}_{index}"
        node.name = name
        taken.add(name)


def name_gradients(op: Builder, gradients: dict[str, ir.Value]) -> None:
    """Give every gradient a value of its own named after what it is the gradient of, in place."""
    taken: set[ir.Value] = set()
    for name, gradient in gradients.items():
        node = gradient.producer()
        # Two parameters may have one gradient, and a gradient may be a constant or a value of the forward pass.
        if node is None or not is_backward(node) or gradient in taken:
            with op.scope(f"{name}/grad"):
                gradient = op.Identity(gradient)
        taken.add(gradient)
        gradient.name = op.unique_name(f"{name}_grad")
        gradients[name] = gradient


def zeros(op: Builder, value: ir.Value, after: ir.Value, scaled: bool) -> ir.Value:
    """Return a gradient of zeros, in the element type of the other gradients.

    Args:
        op: the builder.
        value: whose gradient it is.
        after: a tensor that has to be there before.
        scaled: whether gradients are divided by a loss scale; those of half precision are float32 then.
    """
    with op.scope(f"{value.name}/grad"):
        zero = op.Cast(op.Not(there(op, after)), to=finished_type(value) if scaled else value.dtype)
        return op.expand(zero, shape_of(value))


def merge_twins(model: ir.Model) -> None:
    """Compute nothing twice that onnxruntime would merge at load time: a plan has to see the graph that will run.

    The biases of two branches that are added have one gradient, for example.
    """
    if any(node.op_type in _DRAWING for node in model.graph):
        return
    CommonSubexpressionEliminationPass()(model)
    for node in model.graph:
        if PHASE not in node.metadata_props:  # the copy of a gradient that two parameters share
            node.name = f"{node.outputs[0].name}/copy"
            node.metadata_props[PHASE] = "backward"


def describe(training: TrainingGraph, losses: Sequence[str]) -> None:
    """Write into the model's metadata what its outputs are, and which losses were asked for."""
    properties = training.model.metadata_props
    for key in _TRAINING_KEYS:
        properties.pop(key, None)
    properties[keys.LOSS] = training.loss
    properties[keys.OBJECTIVE] = json.dumps(list(losses))
    properties[keys.PARAMETERS] = json.dumps(list(training.gradients))
    properties[keys.GRADIENTS] = json.dumps(training.gradients)
    if training.retained:
        properties[keys.RETAINED] = json.dumps(training.retained)
    if training.loss_scale:
        properties[keys.LOSS_SCALE] = training.loss_scale
    if cut := told(training.regions):
        properties[keys.CHUNKS] = json.dumps(cut)
    if training.updates:
        properties[keys.UPDATES] = json.dumps(training.updates)


def call_back(graph: ir.Graph, callbacks: Sequence[Callback]) -> None:
    """Tell which gradient nodes belong to each forward node."""
    if not callbacks:
        return
    appended: dict[ir.Node, list[ir.Node]] = {}
    for node in graph:
        if node.meta.get(FORWARD) is not None:
            appended.setdefault(node.meta[FORWARD], []).append(node)
    for forward, nodes in appended.items():
        for callback in callbacks:
            callback(forward, nodes)

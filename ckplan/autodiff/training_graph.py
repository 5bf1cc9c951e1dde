"""From a forward model to a training graph: forward pass, loss and gradients in one ONNX graph."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from ckplan.autodiff.builder import PHASE, Builder
from ckplan.autodiff.engine import differentiate
from ckplan.autodiff.loss import add_loss
from ckplan.autodiff.parameters import floating_initializers, select_parameters, shortened
from ckplan.autodiff.paths import prune
from ckplan.autodiff.rules.conv_batch_norm import conv_batch_norms
from ckplan.errors import ModelError

_DRAWING = frozenset({"Bernoulli", "Dropout"})
"""Random operators that the pass for common subexpressions takes for pure functions."""

LOSS_KEY = "pkg.ckplan.loss"
PARAMETERS_KEY = "pkg.ckplan.parameters"
GRADIENTS_KEY = "pkg.ckplan.gradients"


@dataclass(frozen=True)
class TrainingGraph:
    """A model that computes a loss and its gradients.

    Attributes:
        model: outputs the loss, then the gradients in the order of the parameters. The parameters are initializers and
            graph inputs at once, so that onnxruntime does not take them for constants and a caller may feed new ones.
        loss: name of the loss.
        gradients: name of the gradient by name of the parameter.
        description: what the loss is, for people.
        notes: what was decided on the way and may surprise.
    """

    model: ir.Model
    loss: str
    gradients: dict[str, str]
    description: str
    notes: tuple[str, ...] = ()


def build_training_graph(
    forward: ir.Model, *, loss: str | None = None, wrt: Sequence[str] = (), no_grad: Sequence[str] = ()
) -> TrainingGraph:
    """Append a loss and gradients to a copy of a model.

    Args:
        forward: a model with static shapes everywhere and all its functions inlined; see :func:`ckplan.load`.
        loss: what to differentiate; see :func:`ckplan.autodiff.loss.add_loss`.
        wrt: patterns of the parameters to differentiate by; none means all.
        no_grad: patterns of parameters to leave out.

    Raises:
        UsageError: an option names something that does not exist or cannot be used.
        ModelError: the model has nothing to differentiate, or (UnsupportedOperatorsError) has nodes on the way from a
            parameter to the loss that cannot be differentiated; all of them are listed.
    """
    model = forward.clone()
    graph = model.graph
    _name_nodes(graph)
    op = Builder(graph, graph.opset_imports)
    candidates = floating_initializers(graph)
    found = add_loss(op, loss)
    composites = {**found.composites, **conv_batch_norms(graph, found.value)}
    selection = select_parameters(op, candidates, wrt, no_grad, composites)
    prune(graph, [found.value])
    for node in graph:
        node.metadata_props[PHASE] = "forward"
    gradients = differentiate(op, selection.parameters, found.value, composites)
    if not gradients:
        raise ModelError(
            f"no parameter reaches the loss ({found.description})",
            "choose another output with --loss, or other parameters with --wrt",
        )
    notes = list(selection.notes)
    idle = [str(value.name) for value in selection.parameters if value not in gradients]
    if idle:
        notes.append(
            f"{len(idle)} parameter(s) get no gradient because the loss does not depend on them: {shortened(idle)}"
        )
    names = _name_gradients(op, gradients)
    prune(graph, [found.value, *names.values()])
    _merge_twins(model)
    for parameter in gradients:
        graph.inputs.append(parameter)
    named = {str(parameter.name): str(gradient.name) for parameter, gradient in names.items()}
    model.metadata_props[LOSS_KEY] = str(found.value.name)
    model.metadata_props[PARAMETERS_KEY] = json.dumps(list(named))
    model.metadata_props[GRADIENTS_KEY] = json.dumps(named)
    return TrainingGraph(model, str(found.value.name), named, found.description, tuple(notes))


def _merge_twins(model: ir.Model) -> None:
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


def _name_gradients(op: Builder, gradients: Mapping[ir.Value, ir.Value]) -> dict[ir.Value, ir.Value]:
    """Give every gradient a value of its own named after its parameter."""
    named: dict[ir.Value, ir.Value] = {}
    taken: set[ir.Value] = set()
    for parameter, gradient in gradients.items():
        node = gradient.producer()
        # Two parameters may have one gradient, and a gradient may be a constant or a value of the forward pass.
        if node is None or node.metadata_props.get(PHASE) != "backward" or gradient in taken:
            with op.scope(f"{parameter.name}/grad"):
                gradient = op.Identity(gradient)
        taken.add(gradient)
        gradient.name = op.unique_name(f"{parameter.name}_grad")
        named[parameter] = gradient
    return named


def _name_nodes(graph: ir.Graph) -> None:
    """Make sure that every node has a name of its own."""
    taken: set[str] = set()
    for index, node in enumerate(graph.all_nodes()):
        name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name = f"{name}_{index}"
        node.name = name
        taken.add(name)

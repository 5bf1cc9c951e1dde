"""From a forward model to a training graph: forward pass, loss and gradients in one ONNX graph."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal, get_args

import onnx_ir as ir
from onnx_ir.passes.common import CommonSubexpressionEliminationPass

from ckplan import keys
from ckplan.autodiff.accumulation import Accumulation, settle_sums
from ckplan.autodiff.anchors import Anchors
from ckplan.autodiff.breaks import breaks, listed
from ckplan.autodiff.builder import FORWARD, Builder, shape_of
from ckplan.autodiff.control_flow.chunks import Chunks, prepare_recurrences
from ckplan.autodiff.engine import backpropagate
from ckplan.autodiff.loss_scale import add_loss_scale, finished_type
from ckplan.autodiff.names import floating_tensors
from ckplan.autodiff.objective import add_objective
from ckplan.autodiff.parameters import request_of, select_parameters, shortened
from ckplan.autodiff.paths import prune
from ckplan.autodiff.quantisation import pass_straight_through, refuse_quantised
from ckplan.autodiff.rules.conv_batch_norm import conv_batch_norms
from ckplan.autodiff.training_mode import TrainingForms, enter_training
from ckplan.errors import ModelError, UsageError
from ckplan.keys import PHASE
from ckplan.model.own_files import forget_training

Unused = Literal["absent", "zero"]

_DRAWING = frozenset({"Bernoulli", "Dropout"})
"""Random operators that the pass for common subexpressions takes for pure functions."""

#: Called with a forward node and the gradient nodes that were appended for it.
Callback = Callable[[ir.Node, Sequence[ir.Node]], None]

_TRAINING_KEYS = (keys.LOSS, keys.PARAMETERS, keys.GRADIENTS, keys.RETAINED, keys.LOSS_SCALE, keys.UPDATES)


@dataclass(frozen=True)
class TrainingGraph:
    """A model that computes a loss and its gradients.

    Attributes:
        model: outputs the loss (of several losses their sum, then each), then the tensors whose gradients are given,
            then the gradients of the parameters in their order, then those of inputs and activations, then new running
            statistics; with an optimizer, see :func:`ckplan.autodiff.optimizers.add_optimizer`. The parameters
            are initializers and graph inputs at once, so that onnxruntime does not take them for constants and a
            caller may feed new ones.
        loss: name of the loss; without a loss, of the first tensor whose gradient is given.
        gradients: name of the gradient by name of the parameter.
        description: what the loss is, for people.
        notes: what was decided on the way and may surprise.
        updates: name of the output with the new value by name of the input that takes it in the next step: running
            statistics, and with an optimizer parameters and states.
        retained: name of the gradient by name of the graph input or activation.
        loss_scale: the factor in the backward pass, or the name of the input that holds it; empty without scaling.
    """

    model: ir.Model
    loss: str
    gradients: dict[str, str]
    description: str
    notes: tuple[str, ...] = ()
    updates: dict[str, str] = field(default_factory=dict)
    retained: dict[str, str] = field(default_factory=dict)
    loss_scale: str = ""


def build_training_graph(
    forward: ir.Model,
    *,
    loss: str | Sequence[str] | None = None,
    wrt: Sequence[str] = (),
    no_grad: Sequence[str] = (),
    retain_grad: Sequence[str] = (),
    grad_ys: Sequence[str] = (),
    unused: Unused = "absent",
    accumulation: Accumulation = "auto",
    loss_scale: float | str | None = None,
    callbacks: Sequence[Callback] = (),
    straight_through: bool = False,
    training: bool = False,
    time_checkpoints: Chunks | None = None,
    store: Sequence[str] = (),
) -> TrainingGraph:
    """Append a loss and gradients to a copy of a model.

    Patterns are names, or patterns as in a shell. One that matches parameters names those only; else it names the
    graph inputs that match, else the activations (outputs of nodes of the main graph).

    Args:
        forward: a model with static shapes everywhere and all its functions inlined; see :func:`ckplan.load`. It may
            be a training graph itself: gradients of gradients.
        loss: what to differentiate; see :func:`ckplan.autodiff.loss.add_loss`. Several losses are summed.
        wrt: patterns of what to differentiate by: parameters, graph inputs, activations; none means all parameters.
        no_grad: patterns of parameters to leave out, and of inputs and activations that count as constants: gradients
            stop there.
        retain_grad: patterns of inputs and activations whose gradients become outputs besides.
        grad_ys: names of tensors of any shape that are differentiated from given gradients, which are inputs
            ``<name>_given_grad``, instead of from ones.
        unused: whether parameters that the loss does not depend on have no gradient (``absent``) or ``zero``.
        accumulation: how the gradients of a value with several readers are summed: ``eager``, ``lazy``, or by what
            takes less memory; see :mod:`ckplan.autodiff.accumulation`.
        loss_scale: a factor of the gradients in the backward pass, or ``input`` to feed it as the float32 scalar
            ``loss_scale``. The loss stays as it is, and the gradients that come out are divided by the factor, those
            of float16 and bfloat16 as float32.
        callbacks: each is called, when the graph is finished, once for every forward node with a gradient, from the
            last one to the first.
        straight_through: whether gradients pass quantisation as if it were the identity, but not where it cuts numbers
            off; see :mod:`ckplan.autodiff.quantisation`.
        training: whether BatchNormalization and Dropout are turned into their training forms; see
            :func:`ckplan.autodiff.training_mode.enter_training`. The model has to be loaded for that.
        time_checkpoints: into how many chunks along time each recurrence is cut, of which only the states between them
            are kept; ``sqrt``: about the root of the number of steps.
        store: patterns of the values in the bodies of loops that are kept for each step; ``none``: nothing but the
            carried states. Without any, these and the results of heavy operators are; the rest is computed again.

    Raises:
        UsageError: an option names something that does not exist or cannot be used.
        ModelError: the model has nothing to differentiate, or (UnsupportedOperatorsError) has nodes on the way from a
            parameter to the loss that cannot be differentiated; all of them are listed.
    """
    if unused not in get_args(Unused):
        raise UsageError(f"unused parameters cannot be `{unused}`", f"choose {' or '.join(get_args(Unused))}")
    model = forward.clone()
    graph = model.graph
    forget_training(model)
    _name_nodes(graph)
    op = Builder(graph, graph.opset_imports)
    forms = _enter_training(op, model) if training else TrainingForms()
    time_notes = prepare_recurrences(op, time_checkpoints, store)
    tensors = floating_tensors(graph)
    request = request_of(tensors, wrt, no_grad, retain_grad)
    objective = add_objective(
        op, [loss] if isinstance(loss, str) else loss or (), grad_ys, model.metadata_props.get(keys.LOSS)
    )
    scale = None if loss_scale is None else add_loss_scale(op, loss_scale, objective.targets)
    composites = {**objective.composites, **forms.composites}
    anchors = Anchors(op)
    anchors.detach(_current(graph, request.detached), composites)
    others = {str(value.name): anchors.add(value) for value in _current(graph, request.others)}
    anchors.hold(objective.targets, composites)
    composites.update(conv_batch_norms(graph, objective.targets))
    if straight_through:
        composites.update(pass_straight_through(op, composites))
    sought = [*tensors.parameters] if request.all_parameters else [*request.parameters]
    sought = [*(value for value in sought if value not in request.frozen), *others.values()]
    refuse_quantised(op, sought, [anchors[value] for value in objective.targets], composites)
    before = json.loads(model.metadata_props.get(keys.PARAMETERS, "[]"))
    selection = select_parameters(op, tensors.parameters, request, composites, before)
    running = forms.running_of(graph, [anchors[value] for value in objective.outputs])
    prune(graph, [*(anchors[value] for value in objective.outputs), *running.values()])
    for node in graph:
        node.metadata_props[PHASE] = "forward"
    targets = {anchors[value]: seed for value, seed in objective.targets.items()}
    found = backpropagate(
        op,
        [*selection.parameters, *others.values()],
        targets if scale is None else scale.seeds(op, targets),
        composites,
        factor=1.0 if scale is None else scale.constant,
        finish=Builder.scale if scale is None else scale.finish,
    )
    stops = partial(breaks, graph, graph.opset_imports, targets=targets, composites=composites)
    if not found:
        cuts = stops([*selection.parameters, *others.values()])
        raise ModelError(
            f"no parameter reaches the loss ({objective.description})"
            + (f": no gradient passes {listed(cuts)}" if cuts else ""),
            "choose another output with --loss, or other parameters with --wrt",
        )
    asked = {str(value.name): value for value in (*selection.parameters, *selection.idle)} | others
    gradients = {name: found[value] for name, value in asked.items() if value in found}
    idle = [name for name in asked if name not in gradients]
    notes = [*forms.notes, *time_notes, *selection.notes]
    if idle:
        what = "a gradient of zero" if unused == "zero" else "no gradient"
        cuts = stops([asked[name] for name in idle])
        cause = f"no gradient passes {listed(cuts)}" if cuts else "the loss does not depend on them"
        kind = "tensor" if any(name in others for name in idle) else "parameter"
        notes.append(f"{len(idle)} {kind}(s) get {what} because {cause}: {shortened(idle)}")
    if unused == "zero":
        gradients |= {name: _zeros(op, asked[name], objective.outputs[0], scale is not None) for name in idle}
    _name_gradients(op, gradients)
    results = [anchors[value] for value in objective.outputs]
    parameters = [name for name in gradients if name not in others]
    ordered = [gradients[name] for name in (*parameters, *others) if name in gradients]
    prune(graph, [*results, *ordered, *running.values()])
    anchors.remove()
    settle_sums(op, accumulation)
    _merge_twins(model)
    for name in parameters:
        if name not in graph.initializers:
            graph.register_initializer(asked[name])
        graph.inputs.append(asked[name])
    graph.inputs.extend(running)
    outputs = iter(graph.outputs)
    shown = [str(next(outputs).name) for _ in results]
    named = {name: str(next(outputs).name) for name in parameters}
    made = TrainingGraph(
        model,
        shown[0],
        named,
        objective.description,
        tuple(notes),
        retained={name: str(next(outputs).name) for name in others if name in gradients},
        updates={str(old.name): str(next(outputs).name) for old in running},
        loss_scale="" if scale is None else scale.text,
    )
    _describe(made)
    _call_back(graph, callbacks)
    return made


def _enter_training(op: Builder, model: ir.Model) -> TrainingForms:
    """Put a forward model into training form.

    Raises:
        UsageError: the model is a training graph, or lacks Dropout nodes that were removed when it was loaded.
    """
    if keys.LOSS in model.metadata_props:
        raise UsageError("the model is a training graph already", "--training is for forward models")
    removed = model.metadata_props.get(keys.REMOVED_DROPOUTS)
    if removed:
        raise UsageError(
            f"{removed} Dropout node(s) were removed when the model was loaded",
            "keep them with ckplan.load(..., training=True)",
        )
    return enter_training(op)


def _describe(training: TrainingGraph) -> None:
    """Write into the model's metadata what its outputs are."""
    properties = training.model.metadata_props
    for key in _TRAINING_KEYS:
        properties.pop(key, None)
    properties[keys.LOSS] = training.loss
    properties[keys.PARAMETERS] = json.dumps(list(training.gradients))
    properties[keys.GRADIENTS] = json.dumps(training.gradients)
    if training.retained:
        properties[keys.RETAINED] = json.dumps(training.retained)
    if training.loss_scale:
        properties[keys.LOSS_SCALE] = training.loss_scale
    if training.updates:
        properties[keys.UPDATES] = json.dumps(training.updates)


def _call_back(graph: ir.Graph, callbacks: Sequence[Callback]) -> None:
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


def _current(graph: ir.Graph, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the values that bear these names now: a loss operator may have been replaced by simpler nodes."""
    named = {value.name: value for node in graph for value in node.outputs}
    return [named.get(value.name, value) for value in values]


def _zeros(op: Builder, value: ir.Value, after: ir.Value, scaled: bool) -> ir.Value:
    """Return a gradient of zeros, in the element type of the other gradients."""
    with op.scope(f"{value.name}/grad"):
        zero = op.Cast(op.Not(op.OptionalHasElement(after)), to=finished_type(value) if scaled else value.dtype)
        return op.expand(zero, shape_of(value))


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


def _name_gradients(op: Builder, gradients: dict[str, ir.Value]) -> None:
    """Give every gradient a value of its own named after what it is the gradient of, in place."""
    taken: set[ir.Value] = set()
    for name, gradient in gradients.items():
        node = gradient.producer()
        # Two parameters may have one gradient, and a gradient may be a constant or a value of the forward pass.
        if node is None or node.metadata_props.get(PHASE) != "backward" or gradient in taken:
            with op.scope(f"{name}/grad"):
                gradient = op.Identity(gradient)
        taken.add(gradient)
        gradient.name = op.unique_name(f"{name}_grad")
        gradients[name] = gradient


def _name_nodes(graph: ir.Graph) -> None:
    """Make sure that every node has a name of its own."""
    taken: set[str] = set()
    for index, node in enumerate(graph.all_nodes()):
        name = node.name or f"{node.op_type}_{index}"
        while name in taken:
            name = f"{name}_{index}"
        node.name = name
        taken.add(name)

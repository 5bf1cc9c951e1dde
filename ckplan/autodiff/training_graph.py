"""From a forward model to a training graph: forward pass, loss and gradients in one ONNX graph."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, MutableMapping, Sequence
from typing import Literal, get_args

import onnx_ir as ir

from ckplan import keys
from ckplan.arguments import check_word
from ckplan.autodiff.accumulation import Accumulation, settle_sums
from ckplan.autodiff.anchors import Anchors
from ckplan.autodiff.assembly import Callback, call_back, describe, merge_twins, name_gradients, name_nodes, zeros
from ckplan.autodiff.attention.stretches import cut_again
from ckplan.autodiff.breaks import reached_beside
from ckplan.autodiff.builder import Builder, Device
from ckplan.autodiff.composites import inline_composites, refuse_own_domain
from ckplan.autodiff.control_flow.chunks import Chunks as TimeChunks
from ckplan.autodiff.control_flow.chunks import prepare_recurrences
from ckplan.autodiff.engine import backpropagate
from ckplan.autodiff.formulas.layer_norms import join_layer_norms
from ckplan.autodiff.formulas.softmaxes import join_softmaxes
from ckplan.autodiff.forward_forms import ForwardForms, prepare_forward
from ckplan.autodiff.inline import inline_functions
from ckplan.autodiff.loss_scale import LossScale, add_loss_scale
from ckplan.autodiff.objective import add_objective
from ckplan.autodiff.paths import prune
from ckplan.autodiff.pieces.packed_masks import pack_masks
from ckplan.autodiff.pieces.passed_on import pass_blocks_on
from ckplan.autodiff.pieces.regions import OFF, Chunks, Pieces, Region, refuse_idle, told
from ckplan.autodiff.quantisation import pass_straight_through, refuse_quantised, stored_notes
from ckplan.autodiff.reading import is_floating
from ckplan.autodiff.record import TrainingGraph
from ckplan.autodiff.rewrites.depthwise import convolve_by_rows
from ckplan.autodiff.rewrites.differences import subtract_in_products
from ckplan.autodiff.rewrites.expands import add_before_copies, read_past_expands
from ckplan.autodiff.rewrites.racing_updates import update_in_turn
from ckplan.autodiff.rewrites.reshapes import join_reshapes
from ckplan.autodiff.rewrites.spread_rows import scatter_rows
from ckplan.autodiff.rewrites.subpixels import interleave_convolutions
from ckplan.autodiff.selection.evidence import judge
from ckplan.autodiff.selection.idle import cause_of, idle_note
from ckplan.autodiff.selection.names import floating_tensors
from ckplan.autodiff.selection.parameters import Request, request_of, select_parameters
from ckplan.autodiff.selection.uses import Use, uses_of
from ckplan.autodiff.training_mode import (
    TrainingForms,
    enter_training,
    join_running_statistics,
    write_out_batch_statistics,
)
from ckplan.errors import ModelError, UsageError
from ckplan.keys import PHASE
from ckplan.model.files.metadata import listed_names
from ckplan.model.files.own_files import forget_training
from ckplan.model.node_reads import fed_tensor, made_by_name
from ckplan.model.normal_form.opset import relabel
from ckplan.model.torch_files.detached import detached_inputs

Unused = Literal["absent", "zero"]


def build_training_graph(
    forward: ir.Model,
    *,
    loss: str | Sequence[str] | None = None,
    wrt: Sequence[str] = (),
    no_grad: Sequence[str] = (),
    params: Sequence[str] = (),
    retain_grad: Sequence[str] = (),
    grad_ys: Sequence[str] = (),
    unused: Unused = "absent",
    accumulation: Accumulation = "auto",
    loss_scale: float | str | None = None,
    callbacks: Sequence[Callback] = (),
    straight_through: bool = False,
    training: bool = False,
    time_checkpoints: TimeChunks | None = None,
    store: Sequence[str] = (),
    chunks: Chunks = OFF,
    device: Device = "cpu",
) -> TrainingGraph:
    """Append a loss and gradients to a copy of a model.

    Patterns are names, or patterns as in a shell. One that matches parameters names those only; else it names the
    graph inputs that match, else the activations (outputs of nodes of the main graph).

    Args:
        forward: a model with static shapes everywhere and all its functions inlined; see :func:`ckplan.load`. It may
            be a training graph itself: gradients of gradients.
        loss: what to differentiate; see :func:`ckplan.autodiff.losses.loss.add_loss`. Several losses are summed.
        wrt: patterns of what to differentiate by: parameters, graph inputs, activations; none means all parameters.
        no_grad: patterns of parameters to leave out, and of inputs and activations that count as constants: gradients
            stop there.
        params: names of the parameters to differentiate by, as a state dict has them; what the model lacks is passed
            over. Not with ``wrt``.
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
            carried states. Without any, these and the results of heavy operators are; the rest is recomputed.
        chunks: into how many pieces regions go, so that what is large inside them never exists whole: ``off``, a number
            for all of them, or numbers by kind, as in ``loss=16``; see :mod:`ckplan.autodiff.pieces.regions`.
        device: whose kernels gradients are written for, ``cpu`` or ``cuda``; what they say is the same.

    Raises:
        UsageError: an option names something that does not exist or cannot be used.
        ModelError: the model has nothing to differentiate, or (UnsupportedOperatorsError) has nodes on the way from a
            parameter to the loss that cannot be differentiated; all of them are listed.
    """
    check_word("the gradient of unused parameters", unused, get_args(Unused))
    check_word("the device", device, get_args(Device))
    model = forward.clone()
    graph = model.graph
    forget_training(model)
    unread, ruled_out = (listed_names(model.metadata_props, key) for key in (keys.UNREAD, keys.RULED_OUT))
    for key in (keys.UNREAD, keys.RULED_OUT):
        model.metadata_props.pop(key, None)
    refuse_own_domain(graph)
    name_nodes(graph)
    uses = {value: uses_of(value) for value in graph.initializers.values() if is_floating(value)}
    op = Builder(graph, graph.opset_imports, functions=model.functions, device=device)
    forms = _enter_training(op, model) if training else TrainingForms()
    write_out_batch_statistics(op)
    time_notes = prepare_recurrences(op, time_checkpoints, store)
    tensors = floating_tensors(graph, unread, ruled_out)
    request = request_of(tensors, wrt, no_grad, retain_grad, params)
    losses = [loss] if isinstance(loss, str) else loss or ()
    _join_formulas(op, request, grad_ys, uses)
    objective = add_objective(op, losses, grad_ys, model.metadata_props.get(keys.LOSS))
    beside = reached_beside(graph, graph.opset_imports, objective.targets)
    scale = None if loss_scale is None else add_loss_scale(op, loss_scale, objective.targets)

    anchors = Anchors(op)
    is_detached = _detach(graph, anchors, request)
    others = {str(value.name): anchors.add(value) for value in _current(graph, request.others)}
    anchors.hold(objective.targets)
    straight_notes = pass_straight_through(op) if straight_through else []
    targets = {anchors[value]: seed for value, seed in objective.targets.items()}
    results = [anchors[value] for value in objective.outputs]
    refuse_quantised(op, [*request.sought(tensors), *others.values()], list(targets), straight_through)
    before = listed_names(model.metadata_props, keys.PARAMETERS)
    selection = select_parameters(op, tensors.parameters, request, uses, before, results)
    running = forms.running_of(graph, results)
    prune(graph, [*results, *running.values()])
    stored = stored_notes(graph) if request.all_parameters else []
    pieces = Pieces.of(chunks)
    wanted = [*selection.parameters, *others.values()]
    # A parameter that is left out may be all zeros for now only.
    left_out = set(tensors.parameters).difference(wanted)
    forward_forms = prepare_forward(
        op,
        pieces,
        targets,
        results,
        parameters=selection.parameters,
        wanted=wanted,
        left_out={value for value in left_out if judge(value, uses.get(value, set())).trained},
        running=running.values(),
    )
    results = forward_forms.results
    for node in graph:
        node.metadata_props[PHASE] = "forward"

    found = _swept(op, wanted, forward_forms, scale)
    asked = {str(value.name): value for value in (*selection.parameters, *selection.idle)} | others
    gradients = {name: found[value] for name, value in asked.items() if value in found}
    idle = {name: value for name, value in asked.items() if name not in gradients}
    cause = cause_of(op, idle.values(), forward_forms.targets, is_detached)
    if not found:
        raise ModelError(
            f"no parameter reaches the loss ({objective.description})" + (f": {cause}" if cause else ""),
            "choose another output with --loss, or other parameters with --wrt",
        )
    region_notes = [*told(forward_forms.regions), *forward_forms.notes]
    notes = [*forms.notes, *time_notes, *straight_notes, *region_notes, *request.notes, *selection.notes, *stored]
    if idle:
        kind = "parameter" if others.keys().isdisjoint(idle) else "tensor"
        notes.append(idle_note(kind, idle, unused, cause, beside))
    if unused == "zero":
        gradients |= {name: zeros(op, value, results[0], scale is not None) for name, value in idle.items()}

    name_gradients(op, gradients)
    parameters = [asked[name] for name in gradients if name not in others]
    retained = [name for name in others if name in gradients]
    ordered = [gradients[str(value.name)] for value in parameters] + [gradients[name] for name in retained]
    prune(graph, [*results, *ordered, *running.values()])
    notes += _write_out(op, model, anchors, wanted, forward_forms, accumulation)
    masks = _merge(op, model, running, pieces.masks)
    notes += told(masks)
    notes += relabel(model)  # what needed a newer one may have been inlined
    _feed(graph, parameters, running)
    made = TrainingGraph.of_outputs(
        model,
        results=len(results),
        parameters=parameters,
        retained=retained,
        updated=running,
        description=objective.description,
        notes=tuple(notes),
        loss_scale="" if scale is None else scale.text,
        regions=(*forward_forms.regions, *masks),
    )
    describe(made, losses)
    call_back(graph, callbacks)
    return made


def _feed(graph: ir.Graph, parameters: Sequence[ir.Value], running: Iterable[ir.Value]) -> None:
    """Make inputs of parameters and running statistics, which have a default then and are no constants."""
    for parameter in parameters:
        if str(parameter.name) not in graph.initializers:  # nothing reads it
            graph.register_initializer(parameter)
    graph.inputs.extend((*parameters, *running))


def _detach(graph: ir.Graph, anchors: Anchors, request: Request) -> bool:
    """Stop gradients where the model detaches values and at what is to count as constant; tell whether there is any."""
    detached = [(node, index) for node in graph for index in detached_inputs(node)]
    for node, index in detached:
        anchors.stop(node, index)
    anchors.detach(_current(graph, request.detached))
    return bool(request.detached or detached)


def _swept(
    op: Builder, wanted: Sequence[ir.Value], forms: ForwardForms, scale: LossScale | None
) -> dict[ir.Value, ir.Value]:
    """Append the backward pass to the forward one; the gradients that were found of what is wanted."""
    if scale is None:
        begin = fed_tensor(op.graph.inputs) if forms.blocks else None  # no block waits for the loss of all
        return backpropagate(op, wanted, forms.targets, begin=begin)
    seeds = scale.seeds(op, forms.targets)
    return backpropagate(op, wanted, seeds, factor=scale.constant, finish=scale.finish)


def _write_out(
    op: Builder,
    model: ir.Model,
    anchors: Anchors,
    wanted: Sequence[ir.Value],
    forward_forms: ForwardForms,
    accumulation: Accumulation,
) -> tuple[str, ...]:
    """Write a finished training graph in standard operators, and join what gradients of neighbours have in common.

    Returns:
        Notes.
    """
    graph = op.graph
    inline_composites(op)
    prune(graph, list(graph.outputs))
    for region in forward_forms.batches:
        pass_blocks_on(op, forward_forms.blocks.values(), region.rows, region.pieces)
    prune(graph, list(graph.outputs))
    anchors.remove()
    inline_functions(model, wanted)
    settle_sums(op, accumulation)
    cut_again(op)
    notes = update_in_turn(op)
    scatter_rows(op)
    subtract_in_products(op)
    read_past_expands(op)
    add_before_copies(op)
    convolve_by_rows(op)
    interleave_convolutions(op)
    join_reshapes(op)
    return notes


def _merge(op: Builder, model: ir.Model, running: Mapping[ir.Value, ir.Value], packed: int) -> tuple[Region, ...]:
    """Make once what was made twice, new running statistics and masks in bits included.

    Args:
        op: builder of the training graph.
        model: its model.
        running: new running statistics, the last outputs, by the old ones.
        packed: how many masks a byte is to hold; see :func:`ckplan.autodiff.pieces.packed_masks.pack_masks`.

    Returns:
        The masks that wait for the backward pass in bits.

    Raises:
        UsageError: masks are to be packed, and there are none.
    """
    graph = op.graph
    join_running_statistics(op, dict(zip(running, list(graph.outputs)[-len(running) :], strict=False)))
    prune(graph, list(graph.outputs))
    merge_twins(model)
    masks = pack_masks(op, packed)
    refuse_idle(Pieces(masks=packed), masks)
    return tuple(masks)


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
            f"{removed} Dropout node(s) were removed when the model was loaded, or before it was written",
            "take the original file, which --training, or ckplan.load(..., training=True), leaves them in",
        )
    return enter_training(op)


def _join_formulas(
    op: Builder, request: Request, grad_ys: Collection[str], uses: MutableMapping[ir.Value, set[Use]]
) -> None:
    """Make one node each of softmaxes and layer normalisations that are written out.

    Args:
        op: builder of the forward graph.
        request: what gradients are asked for.
        grad_ys: names of tensors whose gradients are given.
        uses: how initializers are used; learns which of them are scales and shifts.
    """
    given = [value for node in op.graph for value in node.outputs if value.name in grad_ys]
    held = {*request.others, *request.detached, *given}
    named = () if request.all_parameters else request.parameters

    def is_constant(value: ir.Value) -> bool:
        return value not in named and not value.is_graph_input() and not judge(value, uses.get(value, set())).trained

    join_softmaxes(op, held)
    for value in join_layer_norms(op, held, is_constant):
        uses.setdefault(value, set()).add(Use.AFFINE)


def _current(graph: ir.Graph, values: Sequence[ir.Value]) -> list[ir.Value]:
    """Return the values that bear these names now: a loss operator may have been replaced by simpler nodes."""
    named = made_by_name(graph)
    return [named.get(str(value.name), value) for value in values]

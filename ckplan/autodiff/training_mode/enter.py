"""Turns the nodes of a forward graph that inference and training treat differently into their training forms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder
from ckplan.autodiff.reading import attr_int, required_input, shape_of
from ckplan.autodiff.training_mode.batch_norm import batch_normalization, splits
from ckplan.autodiff.training_mode.dropout import dropout
from ckplan.errors import ModelError
from ckplan.model.inference.infer import static_shape
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import needed_nodes
from ckplan.operators.matching import input_of, is_op

_FORMS = ("BatchNormalization", "Dropout")


@dataclass
class TrainingForms:
    """What became of the nodes that have a training form.

    Attributes:
        running: the new running statistic by the initializer that holds the old one.
        notes: what was turned and what was left, for people.
    """

    running: dict[ir.Value, ir.Value] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _normalised: dict[ir.Value, list[ir.Value]] = field(default_factory=dict)

    def running_of(self, graph: ir.Graph, outputs: Sequence[ir.Value]) -> dict[ir.Value, ir.Value]:
        """Return the running statistics of those layers that some values depend on."""
        needed = needed_nodes(graph, outputs)
        layers = {old: [y.producer() for y in made] for old, made in self._normalised.items()}
        return {old: new for old, new in self.running.items() if not needed.isdisjoint(layers[old])}


def enter_training(op: Builder) -> TrainingForms:
    """Replace BatchNormalization and Dropout in a graph by their training forms.

    BatchNormalization normalises by the mean and the population variance of the batch and makes new running
    statistics; those are made by nodes of their own, which no plan repeats, so that they are updated once.
    Dropout draws a mask. A Dropout whose training_mode is fed keeps its form.

    Args:
        op: builder of the forward graph.

    Raises:
        ModelError: a Dropout has an impossible ratio.
    """
    graph, forms = op.graph, TrainingForms()
    normalisations = [node for node in graph if is_op(node, "BatchNormalization") and _has_running(node)]
    dropouts = [node for node in graph if is_op(node, "Dropout") and _has_known_mode(op, node)]
    latest: dict[ir.Value, ir.Value] = {}
    for node, own in splits(normalisations).items():
        held = required_input(node, 3), required_input(node, 4)
        if own:
            held = _copy(op, held[0], f"{node.name}/mean"), _copy(op, held[1], f"{node.name}/var")
        with op.scope(str(node.name), "forward", before=node):
            before = latest.get(held[0], held[0]), latest.get(held[1], held[1])
            made = batch_normalization(op, node, before)
        for old, new in zip(held, made[1:], strict=True):
            forms.running[old] = latest[old] = new
            forms._normalised.setdefault(old, []).append(made[0])
        _replace(node, made)
    for node in dropouts:
        with op.scope(str(node.name), "forward", before=node):
            drawn = dropout(op, node)
        if drawn is not None:
            _replace(node, drawn)
    for old, new in forms.running.items():
        new.name = op.unique_name(f"{old.name}_new")
    _take_notes(forms, graph, len(normalisations), len(dropouts))
    return forms


def write_out_batch_statistics(op: Builder) -> None:
    """Write BatchNormalizations that a file has in training form in operators that leave their inputs alone, in place.

    onnxruntime's kernel writes new running statistics over the old ones unless they are outputs of the model, be these
    constants of the file or arrays of the caller (``Alias`` in ``core/providers/cpu/nn/batch_norm.cc``). Of up to eight
    channels it holds equal constants once: zeros and ones that gradients read would change with every step. In a body
    it does so each time the body runs.

    Args:
        op: builder of the forward graph; the bodies of its nodes are gone through as well.

    Raises:
        ModelError: the shape of what one in a body normalises differs from run to run.
    """
    for node in list(op.graph):
        for body in graphs_in(node):
            write_out_batch_statistics(BodyBuilder(op, body))
        if not is_op(node, "BatchNormalization") or not attr_int(node, "training_mode", 0):
            continue
        shape = static_shape(required_input(node, 0))
        if shape is None:
            raise ModelError(
                f"BatchNormalization '{node.name}' is in training form in a body where the shape of what it normalises "
                "is not the same in every run, and onnxruntime would write over the statistics that it is given",
                "export the model in inference form (torch: model.eval()), or set training_mode to 0",
            )
        if len(shape) < 2:
            continue
        is_read = any(value.uses() or value.is_graph_output() for value in node.outputs[1:])
        old = [required_input(node, 3), required_input(node, 4)] if is_read else []
        with op.scope(str(node.name), "forward", before=node):
            made = batch_normalization(op, node, old)
        _replace(node, made)


def _has_running(node: ir.Node) -> bool:
    """Say whether a BatchNormalization has running statistics to update; computed ones are somebody else's."""
    statistics = [input_of(node, index) for index in (3, 4)]
    held = all(value is not None and value.is_initializer() and not value.is_graph_input() for value in statistics)
    return held and len(shape_of(required_input(node, 0))) > 1


def _has_known_mode(op: Builder, node: ir.Node) -> bool:
    mode = input_of(node, 2)
    return mode is None or op.constant_of(mode) is not None


def _copy(op: Builder, initializer: ir.Value, name: str) -> ir.Value:
    copy = ir.Value(
        name=op.unique_name(name),
        type=initializer.type,
        shape=initializer.shape,
        const_value=initializer.const_value,
    )
    op.graph.register_initializer(copy)
    return copy


def _replace(node: ir.Node, made: Sequence[ir.Value]) -> None:
    """Let the readers of a node read what was made in its place, under the names that the file has for it."""
    graph = node.graph
    assert graph is not None
    names = [output.name for output in node.outputs]
    for output, value in zip(node.outputs, made, strict=False):
        output.replace_all_uses_with(value, replace_graph_outputs=True)
    settings = [value for value in node.inputs if value is not None and value.is_initializer()]
    graph.remove(node, safe=True)
    for value, name in zip(made, names, strict=False):
        value.name = name or value.name
    for value in settings:  # a ratio, for one, that nothing else reads is no parameter without a gradient
        holder = value.graph  # the graph around a body holds what the body reads
        if holder is not None and not value.uses() and not value.is_graph_output():
            holder.initializers.pop(str(value.name), None)


def _take_notes(forms: TrainingForms, graph: ir.Graph, normalisations: int, dropouts: int) -> None:
    if normalisations:
        forms.notes.append(
            f"{normalisations} BatchNormalization node(s) use the statistics of the batch; running variances take the "
            "population variance, as ONNX has it (torch: the unbiased one)"
        )
    if dropouts:
        forms.notes.append(f"{dropouts} Dropout node(s) drop")
    shared = sum(len(made) > 1 for made in forms._normalised.values())
    if shared:
        forms.notes.append(
            f"{shared} running statistic(s) serve several nodes and are updated by each of them; if these nodes are "
            "different layers, export the model with initializers for each"
        )
    left = [node for node in graph if is_op(node, _FORMS)]
    left += [inner for node in graph for body in graphs_in(node) for inner in body.all_nodes() if is_op(inner, _FORMS)]
    if left:
        named = ", ".join(f"{node.op_type} '{node.name}'" for node in left[:3])
        forms.notes.append(f"{len(left)} node(s) stay as they are in the file ({named}{', ...' if left[3:] else ''})")
    if not (normalisations or dropouts):
        forms.notes.append(
            "the model holds no BatchNormalization and no Dropout to turn into training form: exporters fold and drop "
            "them (torch: ckplan.export of a model in train mode keeps both)"
        )

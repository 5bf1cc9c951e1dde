"""Remove what computes nothing: identities, Dropout in its inference form, nodes that no output needs."""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir
from onnx_ir.passes.common import NameFixPass, RemoveUnusedNodesPass

from ckplan import keys
from ckplan.model.inference.fold import Sweep
from ckplan.model.inference.infer import static_shape
from ckplan.model.nested_graphs import all_nodes
from ckplan.model.rewiring import put_in_place
from ckplan.model.torch_files.detached import hand_on
from ckplan.model.validity import sort
from ckplan.operators.matching import is_op


def drop_no_ops(model: ir.Model, state: Sweep, *, reshapes: bool = False, dropouts: bool = True) -> tuple[str, ...]:
    """Make identities of nodes that pass their input on unchanged, then remove identities, in place.

    A Dropout goes when its training_mode is absent or false and nobody reads its mask; with training_mode true it
    stays. An Identity between a graph input (or an initializer) and a graph output stays, for ONNX needs it.

    Args:
        model: swept.
        state: the sweep's result.
        reshapes: drop a Reshape or Flatten to the shape its input has, too, as opset conversion leaves them around
            Softmax. Off for other models: in a rewritten file such a Reshape is a barrier.
        dropouts: drop Dropout in inference form. Off for a model that is to be put into training form.

    Returns:
        Notes.
    """
    removed = 0
    for node in list(model.graph):
        if node.domain != "" or not node.inputs or node.inputs[0] is None:
            continue
        if node.op_type == "Dropout" and dropouts and _is_inference_dropout(node, state):
            removed += 1
        elif not _passes_on(node, state) and not (reshapes and _keeps_shape(node)):
            continue
        _make_identity(node)
    for node in list(model.graph):
        if is_op(node, "Identity"):
            _bypass(model.graph, node)
    if not removed:
        return ()
    model.metadata_props[keys.REMOVED_DROPOUTS] = str(removed)
    return (f"{removed} Dropout node(s) in inference form removed",)


def _is_inference_dropout(node: ir.Node, state: Sweep) -> bool:
    if len(node.outputs) > 1 and (node.outputs[1].uses() or node.outputs[1].is_graph_output()):
        return False
    if len(node.inputs) < 3 or node.inputs[2] is None:
        return True
    training = state.constant(node.inputs[2])
    return training is not None and not training.reshape(-1)[0]


def _passes_on(node: ir.Node, state: Sweep) -> bool:
    source = node.inputs[0]
    assert source is not None
    match node.op_type:
        case "Cast":
            return source.dtype is not None and source.dtype == ir.DataType(node.attributes.get_int("to", 0))
        case "Concat" | "Sum" | "Max" | "Min" | "Mean":
            return len(node.inputs) == 1
        case "Pad":  # as exporters leave it where nothing has to be filled up
            pads = state.constant(node.inputs[1])
            return pads is not None and not pads.any()
    return False


def _keeps_shape(node: ir.Node) -> bool:
    if node.op_type not in ("Reshape", "Flatten") or node.inputs[0] is None:
        return False
    before, after = static_shape(node.inputs[0]), static_shape(node.outputs[0])
    return before is not None and before == after


def _make_identity(node: ir.Node) -> None:
    assert node.graph is not None
    identity = ir.node("Identity", inputs=[node.inputs[0]], name=node.name)
    identity.metadata_props.update(node.metadata_props)
    old, new = node.outputs[0], identity.outputs[0]
    new.type, new.shape = old.type, old.shape
    node.graph.insert_before(node, identity)
    put_in_place(node, new)


def _bypass(graph: ir.Graph, node: ir.Node) -> None:
    """Let the readers of an Identity read its input.

    One that makes a graph output goes only when its input can take over that name: an input, an initializer or
    another output of the graph cannot. (Bodies of loops are left alone: onnxruntime misreads a value that stands
    twice among a body's outputs.)
    """
    source, output = node.inputs[0], node.outputs[0]
    if source is None:
        return
    name = output.name
    is_output = output.is_graph_output()
    if is_output and (source.producer() is None or source.is_graph_output()):
        return
    if source.shape is None:
        source.shape = output.shape
    if source.type is None:
        source.type = output.type
    hand_on(node)
    ir.convenience.replace_all_uses_with(output, source, replace_graph_outputs=True)
    graph.remove(node, safe=True)
    if is_output:
        source.name = name


def drop_unread_initializers(graph: ir.Graph) -> None:
    """Remove the initializers of a graph that no node reads, in place; those that a caller may feed stay."""
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


def tidy(model: ir.Model) -> None:
    """Drop dead nodes and unread initializers, sort the graph, and name every node and value uniquely, in place."""
    RemoveUnusedNodesPass()(model)
    for node in all_nodes(model.graph):
        if is_op(node, "Loop") and len(node.inputs) < 2:  # the pass above drops a condition that is left out
            node.resize_inputs(2)
    sort(model.graph)
    NameFixPass()(model)
    counts: Counter[str] = Counter()
    taken = {node.name for node in model.graph}
    for node in ir.traversal.RecursiveGraphIterator(model.graph):
        # NameFixPass leaves names of different graphs free to clash; a plan addresses nodes by name alone.
        name = node.name or node.op_type
        counts[name] += 1
        if counts[name] > 1:
            number = counts[name]
            while f"{name}_{number}" in taken or f"{name}_{number}" in counts:
                number += 1
            node.name = f"{name}_{number}"
            counts[node.name] += 1

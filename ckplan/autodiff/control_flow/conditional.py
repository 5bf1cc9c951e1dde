"""Gradient of If: an If whose branches take the gradients of the results to those of what the branches captured.

What a branch's gradient reads of the branch is recomputed from the captured values, in the branch of the backward
If; what is random, or what the user says, comes out of the forward If instead. The other branch has an empty tensor in
its place, so that storing costs nothing there.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.control_flow.bodies import (
    BodyBuilder,
    close,
    close_body,
    copy_nodes,
    demand_static,
    dims_of,
    emit_control,
    new_value,
    origin,
    zeros,
)
from ckplan.autodiff.control_flow.cone import cone_of, read_from_outside
from ckplan.autodiff.control_flow.policy import is_stored
from ckplan.autodiff.control_flow.scan import backward_metadata
from ckplan.autodiff.control_flow.trim import extra_outputs, trim
from ckplan.autodiff.engine import backpropagate, reachable
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.autodiff.registry import NoGradientError
from ckplan.errors import UnsupportedOperatorsError
from ckplan.model.node_reads import captured

_BRANCHES = ("then_branch", "else_branch")


def if_gradient(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Differentiate both branches.

    Args:
        op: builder of the graph that holds the node.
        node: an If (https://onnx.ai/onnx/operators/onnx__If.html).
        dy: gradients of its outputs.

    Returns:
        Gradients of its inputs, of which there are none, then of the values that its branches capture.

    Raises:
        NoGradientError: a branch cannot be differentiated, or the branches' results differ in shape.
    """
    outside = captured(node)
    wanted = [value for value in outside if op.wants(value)]
    branches = [node.attributes[name].as_graph() for name in _BRANCHES]
    for branch in branches:
        close_body(BodyBuilder(op, branch))
        reachable(BodyBuilder(op, branch), wanted)  # functions are inlined before shapes are looked at
    demand_static(node)
    for index, gradient in enumerate(dy):
        if gradient is not None and any(dims_of(b.outputs[index]) != shape_of(gradient) for b in branches):
            raise NoGradientError(f"its branches give '{node.outputs[index].name}' different shapes")
    extras = [extra_outputs(branch) for branch in branches]
    found = [_sweep(op, branch, wanted, dy) for branch in branches]
    reasons = [reason for *_, reason in found if reason]
    if reasons:
        raise NoGradientError("; ".join(reasons))
    chosen = [value for value in wanted if any(value in gradients for _, gradients, _ in found)]
    if not chosen:
        return [None] * (len(node.inputs) + len(outside))
    after = next(gradient for gradient in dy if gradient is not None)
    graphs = [
        _backward_branch(op, node, branch, backward, gradients, chosen, after)
        for branch, (backward, gradients, _) in zip(branches, found, strict=True)
    ]
    for branch, (backward, _, _), extra in zip(branches, found, extras, strict=True):
        discard(branch, reversed(backward))
        trim(extra)
    name = f"{node.name}/grad/If"
    outputs = [new_value(op, f"{name}_out", value.dtype, shape_of(value)) for value in chosen]
    attributes = [ir.AttrGraph(key, graph) for key, graph in zip(_BRANCHES, graphs, strict=True)]
    emit_control(op, "If", name, [node.inputs[0]], attributes, outputs, backward_metadata(node))
    by_value = dict(zip(chosen, outputs, strict=True))
    return [*([None] * len(node.inputs)), *(by_value.get(value) for value in outside)]


def _sweep(
    op: Builder, branch: ir.Graph, wanted: Sequence[ir.Value], dy: Gradients
) -> tuple[list[ir.Node], dict[ir.Value, ir.Value], str]:
    """Differentiate a branch in place; return the new nodes, the gradients, and why there are none."""
    forward = set(branch)
    inside = BodyBuilder(op, branch)
    targets: dict[ir.Value, ir.Value | None] = {
        value: gradient for value, gradient in zip(branch.outputs, dy, strict=False) if gradient is not None
    }
    try:
        gradients = backpropagate(inside, wanted, targets)
    except UnsupportedOperatorsError as error:
        listed = ", ".join(f"{name} ({reason})" for name, reason in error.nodes)
        return [], {}, f"no gradient for {len(error.nodes)} node(s) of a branch: {listed}"
    return [node for node in branch if node not in forward], gradients, ""


def _backward_branch(
    op: Builder,
    node: ir.Node,
    branch: ir.Graph,
    backward: Sequence[ir.Node],
    gradients: dict[ir.Value, ir.Value],
    chosen: Sequence[ir.Value],
    after: ir.Value,
) -> ir.Graph:
    """Move the gradient nodes of a branch into a branch of the backward If, with what they need of the forward one."""
    made = set(backward)
    forward = [inner for inner in branch if inner not in made]
    members = set(forward)
    graph = ir.Graph([], [], nodes=[], name=f"{branch.name}_grad")
    inside = BodyBuilder(op, graph)
    ends = [gradients[value] for value in chosen if value in gradients]

    def is_taken(value: ir.Value) -> bool:
        return is_stored(node, origin(value), heavy=False) if origin(value).producer() in members else False

    cone = cone_of(read_from_outside(backward, ends), members, is_taken)
    values: dict[ir.Value, ir.Value] = {}
    for value in cone.taken:
        source = origin(value)
        if source not in values:
            with inside.scope(f"{source.name}/again"):
                values[source] = _stored(op, inside, node, branch, source)
        values[value] = values[source]
    graph.extend(copy_nodes(op, [inner for inner in forward if inner in cone.repeated], values, "backward"))
    graph.extend(copy_nodes(op, backward, values, "backward"))
    outputs = []
    for value in chosen:
        gradient = gradients.get(value)
        if gradient is None:
            with inside.scope(f"{value.name}/grad"):
                gradient = zeros(inside, value, after)
        outputs.append(values.get(gradient, gradient))
    graph.outputs.extend(close(inside, outputs))
    return graph


def _stored(op: Builder, inside: BodyBuilder, node: ir.Node, branch: ir.Graph, value: ir.Value) -> ir.Value:
    """Let a value of a branch come out of the forward If; return it as a backward branch reads it.

    In the other branch an empty tensor takes its place, so it comes out flat. Its dimension is named after it alone:
    onnxruntime gives a dead buffer to a value whose dimensions have the same names, whatever their sizes. Inside a
    body, where a loop around may have to stack it, all its runs must give the same shape, and zeros take its place.
    """
    shape = dims_of(value)
    flat = not isinstance(op, BodyBuilder)
    size = int(np.prod(shape, dtype=np.int64))
    for name in _BRANCHES:
        there = BodyBuilder(op, node.attributes[name].as_graph())
        with there.scope(f"{value.name}/kept", "forward"):
            if there.graph is branch:
                row = there.Reshape(value, np.asarray([size])) if flat else there.Identity(value)
            elif flat:
                row = there.Identity(op.constant(np.zeros(0, dtype=dtype_of(value))))
            else:
                row = there.Expand(op.constant(np.zeros((), dtype=dtype_of(value))), np.asarray(shape, dtype=np.int64))
        there.graph.outputs.append(row)
    node.resize_outputs(len(node.outputs) + 1)
    outer = node.outputs[-1]
    outer.name = op.unique_name(f"{value.name}/kept")
    outer.type, outer.shape = value.type, ir.Shape((f"{size}@{outer.name}",) if flat else shape)
    if not flat:
        return outer
    back = ir.Node(
        "",
        "Reshape",
        [outer, op.constant(np.asarray(shape, dtype=np.int64))],
        outputs=[new_value(op, f"{value.name}_again", value.dtype, shape)],
        name=op.unique_name(f"{value.name}/again"),
    )
    inside.insert(back)
    return back.outputs[0]

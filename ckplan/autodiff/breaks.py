"""Where the way from the parameters to the loss is cut: nodes that pass no gradient on although numbers pass."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import onnx_ir as ir

from ckplan.autodiff.composites import DETACH
from ckplan.autodiff.paths import differentiable_inputs, entry_of
from ckplan.autodiff.reading import is_floating
from ckplan.autodiff.registry import ZERO_DERIVATIVE
from ckplan.display import shortened
from ckplan.model.node_reads import reads
from ckplan.model.torch_files.detached import detached_inputs
from ckplan.operators.matching import is_op


def between(graph: ir.Graph, sources: Iterable[ir.Value], targets: Iterable[ir.Value]) -> list[ir.Node]:
    """Return the nodes through which anything at all, integers included, passes from sources to targets, in order."""
    needed = _needed(graph, targets)
    reached = set(sources)
    found = []
    for node in graph:
        if not reached.isdisjoint(reads(node)):
            reached.update(node.outputs)
            if not needed.isdisjoint(node.outputs):
                found.append(node)
    return found


def breaks(
    graph: ir.Graph,
    opset_imports: dict[str, int],
    parameters: Iterable[ir.Value],
    targets: Iterable[ir.Value],
) -> list[ir.Node]:
    """Return the nodes behind which nothing of a parameter's gradient path is left, in the order of the graph.

    Such a node reads a value that depends differentiably on a parameter, something that a target needs depends on the
    node, and none of its outputs depends on a parameter differentiably. What the user detaches is no such node.

    Args:
        graph: the forward graph.
        opset_imports: opset versions by domain.
        parameters: what gradients are asked for.
        targets: what is differentiated.
    """
    needed = _needed(graph, targets)
    reached = reached_by(graph, opset_imports, parameters)
    return [
        node
        for node in graph
        if reached.isdisjoint(differentiable_inputs(node, entry_of(node, opset_imports)))
        and not reached.isdisjoint(reads(node))
        and not needed.isdisjoint(node.outputs)
        and node.op_type != DETACH
    ]


def reached_by(graph: ir.Graph, opset_imports: dict[str, int], parameters: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the values that depend differentiably on a parameter, function bodies not counted; see :func:`breaks`.

    Nothing is reached through what the model detaches.
    """
    reached = set(parameters)
    for node in graph:
        passing = differentiable_inputs(node, entry_of(node, opset_imports))
        if stops := detached_inputs(node):
            passing &= {value for index, value in enumerate(node.inputs) if index not in stops and value is not None}
        if not reached.isdisjoint(passing):
            reached.update(node.outputs)
    return reached


def sources_of(graph: ir.Graph, opset_imports: dict[str, int], targets: Iterable[ir.Value]) -> set[ir.Value]:
    """Return the initializers that targets depend on differentiably, function bodies not counted."""
    needed = set(targets)
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs):
            needed |= differentiable_inputs(node, entry_of(node, opset_imports))
    return {value for value in needed if value.is_initializer()}


def reached_beside(
    graph: ir.Graph, opset_imports: dict[str, int], targets: Iterable[ir.Value]
) -> dict[str, set[ir.Value]]:
    """Return by name of an output the initializers that it depends on differentiably and targets do not, if any."""
    outputs = [value for value in graph.outputs if is_floating(value)]
    if len(outputs) < 2:
        return {}
    reached = sources_of(graph, opset_imports, targets)
    if sources_of(graph, opset_imports, outputs) <= reached:
        return {}
    beside = {str(value.name): sources_of(graph, opset_imports, [value]) - reached for value in outputs}
    return {name: found for name, found in beside.items() if found}


def _needed(graph: ir.Graph, targets: Iterable[ir.Value]) -> set[ir.Value]:
    """Return all values that targets depend on, in whatever way."""
    needed = set(targets)
    for node in reversed(graph):
        if not needed.isdisjoint(node.outputs):
            needed.update(reads(node))
    return needed


def why(node: ir.Node) -> str:
    """Say why a node passes no gradient on."""
    if is_op(node, ZERO_DERIVATIVE):
        return "is constant between its steps"
    kinds = {output.dtype for output in node.outputs if output.dtype is not None}
    if kinds == {ir.DataType.BOOL}:
        return "outputs true or false"
    if not any(is_floating(output) for output in node.outputs):
        return "outputs integers" if kinds else "outputs no tensor of numbers"
    return "has no derivative by that input"


def listed(nodes: Sequence[ir.Node], most: int = 5) -> str:
    """List nodes for people with the reasons why they pass no gradient on, the first few of them."""
    return shortened([f"{node.op_type} '{node.name}' ({why(node)})" for node in nodes], most)

"""Which values a gradient can flow through: the graph as the backward sweep sees it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, is_floating
from ckplan.autodiff.registry import NON_DIFFERENTIABLE, ZERO_DERIVATIVE, Entry, lookup


@dataclass(frozen=True)
class Composite:
    """Several forward nodes that are differentiated as one, because the whole has a leaner gradient than its parts.

    Attributes:
        inputs: the values that get gradients.
        gradient: as a gradient rule, but without the node: takes the output gradients of the last node of the group
            and returns one gradient per value in ``inputs``.
        factor: a number that the gradients it returns still have to be multiplied by. Leaving it to the next matrix
            product saves a tensor of the gradients' size.
    """

    inputs: tuple[ir.Value, ...]
    gradient: Callable[[Builder, Sequence[ir.Value | None]], Sequence[ir.Value | None]]
    factor: float = 1.0


#: Composites by the last node of each group; the group's other nodes stand for None.
Composites = Mapping[ir.Node, Composite | None]


def captured(node: ir.Node) -> set[ir.Value]:
    """Return the outer values that the bodies of a control-flow node read."""
    read: set[ir.Value] = set()
    defined: set[ir.Value] = set()
    for graph in _bodies(node):
        defined.update(graph.inputs, graph.initializers.values())
        read.update(value for value in graph.outputs if value is not None)
        for inner in graph:
            defined.update(inner.outputs)
            read.update(value for value in inner.inputs if value is not None)
            read.update(captured(inner))
    return read - defined


def _bodies(node: ir.Node) -> list[ir.Graph]:
    graphs: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            graphs.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs.extend(attribute.as_graphs())
    return graphs


def reads(node: ir.Node) -> set[ir.Value]:
    """Return all values a node needs, those its bodies capture included."""
    return {value for value in node.inputs if value is not None} | captured(node)


def entry_of(node: ir.Node, opset_imports: Mapping[str, int]) -> Entry | None:
    """Return the gradient rule for a node, or None."""
    return lookup(node.op_type, opset_imports.get(node.domain, 1), node.domain)


def differentiable_inputs(node: ir.Node, entry: Entry | None, composites: Composites) -> set[ir.Value]:
    """Return the values a node passes gradients to, given that its outputs get some.

    A node without a rule counts as passing gradients to all it reads, so that it is found on the way and reported.
    """
    if node in composites:
        composite = composites[node]
        return set(composite.inputs) if composite else set()
    if node.op_type in ZERO_DERIVATIVE and not node.domain:
        return set()
    if not any(is_floating(output) or output.dtype is None for output in node.outputs):
        return set()
    if entry is None or (node.op_type in NON_DIFFERENTIABLE and not node.domain):
        return {value for value in reads(node) if is_floating(value)}
    pairs = enumerate(node.inputs)
    return {value for i, value in pairs if value is not None and i not in entry.fixed and is_floating(value)}


def needed_nodes(graph: ir.Graph, outputs: Iterable[ir.Value]) -> set[ir.Node]:
    """Return the nodes that these values depend on."""
    found: set[ir.Node] = set()
    pending = [value.producer() for value in outputs]
    while pending:
        node = pending.pop()
        if node is None or node in found or node.graph is not graph:
            continue
        found.add(node)
        pending.extend(value.producer() for value in reads(node))
    return found


def prune(graph: ir.Graph, outputs: Sequence[ir.Value]) -> None:
    """Make these values the graph's outputs; remove the nodes and initializers that none of them depends on."""
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    keep = needed_nodes(graph, outputs)
    for node in reversed(list(graph)):
        if node not in keep:
            graph.remove(node, safe=True)
    for name, value in list(graph.initializers.items()):
        if not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]

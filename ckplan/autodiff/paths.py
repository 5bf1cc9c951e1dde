"""Which values a gradient can flow through: the graph as the backward sweep sees it."""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence

import onnx_ir as ir

from ckplan.autodiff.reading import is_floating
from ckplan.autodiff.registry import NON_DIFFERENTIABLE, ZERO_DERIVATIVE, Entry, lookup
from ckplan.model.cleanup import drop_unread_initializers
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import captured, needed_nodes, reads
from ckplan.operators.matching import is_op

_ANY_VERSION = 1 << 30


def entry_of(node: ir.Node, opset_imports: Mapping[str, int]) -> Entry | None:
    """Return the gradient rule for a node, or None."""
    return lookup(node.op_type, opset_imports.get(node.domain, 1), node.domain)


def differentiable_inputs(node: ir.Node, entry: Entry | None) -> set[ir.Value]:
    """Return the values a node passes gradients to, given that its outputs get some.

    A node without a rule counts as passing gradients to all it reads, so that it is found on the way and reported.
    """
    if is_op(node, ZERO_DERIVATIVE):
        return set()
    if not any(is_floating(output) or output.dtype is None for output in node.outputs):
        return set()
    if entry is None or is_op(node, NON_DIFFERENTIABLE):
        return {value for value in reads(node) if is_floating(value)}
    if graphs_in(node):
        return _through_bodies(node)
    return {
        value
        for i, value in enumerate(node.inputs[: entry.leading])
        if value is not None
        and is_floating(value)
        and i not in entry.fixed
        and (i not in entry.settings or value.producer() is not None)
    }


def _through_bodies(node: ir.Node) -> set[ir.Value]:
    """Return the values of the enclosing graph from which a gradient path leads through a body to a floating output."""
    found: set[ir.Value] = set()
    for graph in graphs_in(node):
        needed = {value for value in graph.outputs if is_floating(value)}
        for inner in reversed(graph):
            if not needed.isdisjoint(inner.outputs):
                # Rules of different opset versions agree on which inputs can have a gradient.
                needed |= differentiable_inputs(inner, lookup(inner.op_type, _ANY_VERSION, inner.domain))
        # Inputs of Scan and Loop stand in the order of their body's; a Loop of no iterations hands its states on.
        passed = zip(node.inputs, graph.inputs, strict=False)
        found.update(v for v, inner in passed if v is not None and (inner in needed or node.op_type == "Loop"))
        found.update(needed.intersection(captured(node)))
    return {value for value in found if is_floating(value)}


def discard(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Remove nodes from a graph so that nothing in them, their bodies included, counts as a reader any more.

    Args:
        graph: the graph that holds them.
        nodes: readers stand before what they read.
    """
    for node in nodes:
        for body in graphs_in(node):
            body.outputs.clear()
            discard(body, reversed(list(body)))
        graph.remove(node, safe=True)


def prune(graph: ir.Graph, outputs: Sequence[ir.Value]) -> None:
    """Make these values the graph's outputs; remove the nodes and initializers that none of them depends on."""
    graph.outputs.clear()
    graph.outputs.extend(outputs)
    keep = needed_nodes(graph, outputs)
    discard(graph, [node for node in reversed(list(graph)) if node not in keep])
    drop_unread_initializers(graph)


def depends(value: ir.Value, wanted: Container[ir.Value]) -> bool:
    """Whether a value is made of one that a gradient is asked for."""
    return any(one in wanted for one in _upstream(value))


def _upstream(value: ir.Value) -> Iterator[ir.Value]:
    """A value and all that it is made of."""
    seen: set[ir.Value] = set()
    pending = [value]
    while pending:
        one = pending.pop()
        if one in seen:
            continue
        seen.add(one)
        yield one
        node = one.producer()
        if node is not None:
            pending += reads(node)

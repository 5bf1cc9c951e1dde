"""The graphs inside nodes: branches of an If, bodies of a Loop, a Scan, a SequenceMap."""

from __future__ import annotations

from collections.abc import Iterator

import onnx_ir as ir

_WITH_BODIES = frozenset({"If", "Loop", "Scan", "SequenceMap"})


def may_hold_graphs(node: ir.Node) -> bool:
    """Whether a node's operator is one that holds graphs; of those of other domains that is not known."""
    return bool(node.domain) or node.op_type in _WITH_BODIES


def graphs_in(node: ir.Node) -> list[ir.Graph]:
    """The graphs among a node's attributes."""
    if not may_hold_graphs(node):
        return []
    found: list[ir.Graph] = []
    for attribute in node.attributes.values():
        if attribute.type == ir.AttributeType.GRAPH:
            found.append(attribute.as_graph())
        elif attribute.type == ir.AttributeType.GRAPHS:
            found.extend(attribute.as_graphs())
    return found


def all_nodes(graph: ir.Graph) -> Iterator[ir.Node]:
    """The nodes of a graph and of the graphs inside it; onnx-ir's own looks at every attribute."""
    return ir.traversal.RecursiveGraphIterator(graph, recursive=may_hold_graphs)


def written_nodes(model: ir.Model) -> list[ir.Node]:
    """The nodes of a model's graph, of the graphs inside it, and of its functions."""
    return [*all_nodes(model.graph), *(node for one in model.functions.values() for node in one.all_nodes())]


def subgraphs(graph: ir.Graph) -> list[ir.Graph]:
    """The graphs inside a graph, at any depth."""
    return [body for node in all_nodes(graph) for body in graphs_in(node)]

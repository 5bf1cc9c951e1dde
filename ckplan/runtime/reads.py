"""What a node reads, in its bodies too."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.model.traits import may_hold_graphs


def captured(node: ir.Node) -> list[ir.Value]:
    """Values of the enclosing graph that a node's subgraphs read, each once."""
    if not may_hold_graphs(node):
        return []
    found: dict[ir.Value, None] = {}
    for attribute in node.attributes.values():
        graphs: Sequence[ir.Graph] = ()
        if attribute.type == ir.AttributeType.GRAPH:
            graphs = (attribute.as_graph(),)
        elif attribute.type == ir.AttributeType.GRAPHS:
            graphs = attribute.as_graphs()
        for graph in graphs:
            inner = {*graph.inputs, *graph.initializers.values()}
            inner.update(value for member in graph for value in member.outputs)
            read = [value for member in graph for value in (*member.inputs, *captured(member)) if value is not None]
            found.update(dict.fromkeys(value for value in (*read, *graph.outputs) if value not in inner))
    return list(found)


def reads(node: ir.Node) -> list[ir.Value]:
    """What a node reads: its inputs with their multiplicity, then what its subgraphs capture."""
    return [value for value in (*node.inputs, *captured(node)) if value is not None]

"""What a node reads, in its bodies too."""

from __future__ import annotations

import onnx_ir as ir

from ckplan.model.traits import graphs_in, may_hold_graphs


def captured(node: ir.Node) -> list[ir.Value]:
    """Values of the enclosing graph that a node's subgraphs read, each once."""
    found: dict[ir.Value, None] = {}
    for graph in graphs_in(node):
        inner = {*graph.inputs, *graph.initializers.values()}
        inner.update(value for member in graph for value in member.outputs)
        read = [value for member in graph for value in (*member.inputs, *captured(member)) if value is not None]
        found.update(dict.fromkeys(value for value in (*read, *graph.outputs) if value not in inner))
    return list(found)


def reads(node: ir.Node) -> list[ir.Value]:
    """What a node reads: its inputs with their multiplicity, then what its subgraphs capture."""
    read = [value for value in node.inputs if value is not None]
    return [*read, *captured(node)] if may_hold_graphs(node) else read

"""What nodes read, in their bodies too, what they make, which are needed, and what a graph is fed."""

from __future__ import annotations

from collections.abc import Container, Iterable

import onnx_ir as ir

from ckplan.model.nested_graphs import graphs_in, may_hold_graphs
from ckplan.operators.matching import input_of


def captured(node: ir.Node) -> list[ir.Value]:
    """Values of enclosing graphs that the bodies of a control-flow node read, each once, in the order of reading."""
    found: dict[ir.Value, None] = {}
    for graph in graphs_in(node):
        inner = {*graph.inputs, *graph.initializers.values()}
        inner.update(value for member in graph for value in member.outputs)
        read = [value for member in graph for value in (*member.inputs, *captured(member)) if value is not None]
        found.update(dict.fromkeys(value for value in (*read, *graph.outputs) if value not in inner))
    return list(found)


def reads(node: ir.Node) -> list[ir.Value]:
    """What a node reads: its inputs with their multiplicity, then what its bodies capture."""
    read = [value for value in node.inputs if value is not None]
    return [*read, *captured(node)] if may_hold_graphs(node) else read


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


def made_by_name(nodes: Iterable[ir.Node]) -> dict[str, ir.Value]:
    """The values that nodes make, by name."""
    return {value.name: value for node in nodes for value in node.outputs if value.name}


def fed_tensor(inputs: Iterable[ir.Value], besides: Container[str | None] = ()) -> ir.Value | None:
    """The first tensor that a graph is fed, such as its batch: what waits for it reads its Size, which optionals lack.

    Args:
        inputs: of the graph; what has an initializer need not be fed.
        besides: names of inputs that are not meant.
    """
    tensors = (value for value in inputs if isinstance(value.type, ir.TensorType) and not value.is_initializer())
    return next((value for value in tensors if value.name not in besides), None)


def fixed_tensor(value: ir.Value | None) -> ir.TensorProtocol | None:
    """The tensor of a value that the file fixes, a weight or a constant; None if it is left out, computed or fed."""
    return None if value is None or value.is_graph_input() else value.const_value


def fixed_integers(node: ir.Node, index: int) -> list[int] | None:
    """The integers of an input that the file fixes, such as axes; None if it is left out, computed or fed."""
    tensor = fixed_tensor(input_of(node, index))
    return None if tensor is None else [int(number) for number in tensor.numpy().reshape(-1)]

"""Copies of nodes with all that is inside them.

Values inside a body must not bear the name of any other value of the model, so whoever copies says how to rename.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

import onnx_ir as ir

Rename = Callable[[str], str]


def copy_nodes(
    nodes: Iterable[ir.Node],
    values: dict[ir.Value, ir.Value],
    rename: Rename,
    metadata: Mapping[str, str],
) -> list[ir.Node]:
    """Copy nodes.

    Args:
        nodes: in topological order.
        values: what to read instead of a value, also inside; what the copies make is added.
        rename: makes the name of a copy, of a node or of a value, from that of the original.
        metadata: added to that of every copied node, also inside.
    """
    made = []
    for node in nodes:
        inputs = [None if value is None else values.get(value, value) for value in node.inputs]
        attributes = [copy_attribute(a, values, rename, metadata) for a in node.attributes.values()]
        made.append(
            ir.Node(
                node.domain,
                node.op_type,
                inputs,
                attributes,
                overload=node.overload,
                outputs=[_copy_value(value, values, rename) for value in node.outputs],
                version=node.version,
                name=rename(node.name or node.op_type),
                metadata_props={**node.metadata_props, **metadata},
            )
        )
    return made


def copy_attribute(
    attribute: ir.Attr, values: dict[ir.Value, ir.Value], rename: Rename, metadata: Mapping[str, str]
) -> ir.Attr:
    """Copy the bodies in an attribute; return any other attribute as it is. The rest is as for :func:`copy_nodes`."""
    if attribute.type == ir.AttributeType.GRAPH:
        return ir.AttrGraph(attribute.name, copy_graph(attribute.as_graph(), values, rename, metadata))
    if attribute.type == ir.AttributeType.GRAPHS:
        copied = [copy_graph(graph, values, rename, metadata) for graph in attribute.as_graphs()]
        return ir.AttrGraphs(attribute.name, copied)
    return attribute


def copy_graph(
    graph: ir.Graph, values: dict[ir.Value, ir.Value], rename: Rename, metadata: Mapping[str, str]
) -> ir.Graph:
    """Copy a body; the rest is as for :func:`copy_nodes`."""
    inputs = [_copy_value(value, values, rename) for value in graph.inputs]
    own = [value for value in graph.initializers.values() if not value.is_graph_input()]
    initializers = [_copy_value(value, values, rename) for value in own]
    nodes = copy_nodes(graph, values, rename, metadata)
    outputs = [values.get(value, value) for value in graph.outputs]
    imports = dict(graph.opset_imports)
    copy = ir.Graph(inputs, outputs, nodes=nodes, initializers=initializers, name=graph.name, opset_imports=imports)
    for value in graph.initializers.values():
        if value.is_graph_input():
            copy.register_initializer(values[value])
    return copy


def _copy_value(value: ir.Value, values: dict[ir.Value, ir.Value], rename: Rename) -> ir.Value:
    shape = None if value.shape is None else ir.Shape(value.shape.dims)
    name = rename(value.name) if value.name else ""
    copy = ir.Value(name=name, type=value.type, shape=shape, const_value=value.const_value)
    copy.metadata_props.update(value.metadata_props)
    values[value] = copy
    return copy

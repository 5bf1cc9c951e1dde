"""Composites: several nodes that are differentiated as one, because the gradient of the whole takes less memory.

A composite is a node of the domain :data:`DOMAIN` with a gradient rule like that of any operator, and what it computes
is a local function of the model, so that the graph stays a valid model. All that its nodes read from outside is an
input of it, and all that its rule reads of what they make is an output: whoever replaces a value of the graph replaces
it for the composite as well. When the gradients are there, the nodes take its place again.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from typing import Any

import onnx_ir as ir
from onnx_ir.convenience import convert_attributes

from ckplan.autodiff.builder import Builder
from ckplan.errors import ModelError
from ckplan.keys import PHASE
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_copies import copy_nodes
from ckplan.model.node_reads import captured

DOMAIN = "pkg.ckplan"
"""The domain of composites; a finished graph has none."""

DETACH = "Detach"
"""The composite that passes no gradient on: an Identity at which the user wants gradients to stop."""


def is_composite(node: ir.Node | None) -> bool:
    """Say whether a node stands for several."""
    return node is not None and node.domain == DOMAIN


def refuse_own_domain(graph: ir.Graph) -> None:
    """Make sure that a model brings no nodes of ckplan's domain.

    Raises:
        ModelError: it does.
    """
    for node in graph.all_nodes():
        if is_composite(node):
            raise ModelError(
                f"{node.op_type} '{node.name}' is of the domain `{DOMAIN}`, which ckplan keeps for nodes that it makes",
                "give the domain of that operator another name",
            )


def known_outputs(node: ir.Node) -> Sequence[ir.Value]:
    """Return those outputs of a node that users know; of a composite, the others are what its gradient reads."""
    return node.outputs[:1] if is_composite(node) else node.outputs


def outline(
    op: Builder,
    op_type: str,
    nodes: Iterable[ir.Node],
    inputs: Sequence[ir.Value | None],
    outputs: Sequence[ir.Value],
    attributes: Mapping[str, Any] | None = None,
) -> Sequence[ir.Value]:
    """Put a composite in the place of some nodes; return its outputs.

    The node that makes the first output becomes the composite, until :func:`inline_composites`. So that output is the
    same value all the time. The others become new values, which those outside read from then on.

    Args:
        op: builder of the main graph.
        op_type: operator of the composite, under which its gradient rule is registered.
        nodes: in the order of the graph.
        inputs: what the rule knows as inputs. Whatever else the nodes read from outside comes behind.
        outputs: what the rule knows as outputs; the node that makes the first makes nothing else. Whatever else of the
            nodes is read outside comes behind.
        attributes: those of the composite.
    """
    nodes = list(nodes)
    main = outputs[0].producer()
    assert main is not None
    around = main.graph
    assert around is not None
    operands = [*inputs, *(value for value in _read_outside(nodes) if value not in inputs)]
    formals = [_formal(value, op.unique_name(f"{main.name}/in{index}")) for index, value in enumerate(operands)]
    # An operand that stands there twice is read by its first name.
    inside = {v: formal for v, formal in reversed(list(zip(operands, formals, strict=True))) if v is not None}

    around.remove([node for node in nodes if node is not main])
    twin = ir.Node(main.domain, main.op_type, main.inputs, main.attributes, outputs=[_twin(outputs[0])], name=main.name)
    inside[outputs[0]] = twin.outputs[0]
    body = [twin if node is main else node for node in nodes]
    members = dict.fromkeys(_with_inner(body)).keys()
    for node in members:
        _read_instead(node, inside)
    become(main, (DOMAIN, op_type, str(main.name)), operands, convert_attributes(attributes or {}))
    inner = [*outputs[1:], *(value for value in _known_outside(body, members) if value not in outputs)]
    _return_more(main, inner, members)

    op.opset_imports[DOMAIN] = 1
    imports = {domain: version for domain, version in op.opset_imports.items() if domain != DOMAIN}
    graph = ir.Graph(formals, [*twin.outputs, *inner], nodes=body, opset_imports=imports, name=op_type)
    function = ir.Function(*main.op_identifier(), graph=graph, attributes=main.attributes)
    op.functions[function.identifier()] = function
    return main.outputs


def _read_outside(nodes: Sequence[ir.Node]) -> list[ir.Value]:
    """What nodes, and those in their bodies, read of what others make, each value once."""
    made = {value for node in nodes for value in node.outputs}
    read = (value for node in nodes for value in (*node.inputs, *captured(node)))
    return list(dict.fromkeys(value for value in read if value is not None and value not in made))


def _known_outside(nodes: Sequence[ir.Node], members: Set[ir.Node]) -> list[ir.Value]:
    """What nodes make and others than ``members`` read, or the graph returns."""
    made = (value for node in nodes for value in node.outputs)
    return [v for v in made if v.is_graph_output() or any(use.node not in members for use in v.uses())]


def _return_more(main: ir.Node, inner: Sequence[ir.Value], members: Set[ir.Node]) -> None:
    """Give a composite outputs for values of its nodes; all others than these ``members`` read them from then on."""
    graph = main.graph
    assert graph is not None
    main.resize_outputs(1 + len(inner))
    for value, output in zip(inner, main.outputs[1:], strict=True):
        output.name, output.type, output.shape = value.name, value.type, value.shape
        for use in tuple(value.uses()):
            if use.node not in members:
                use.node.replace_input_with(use.idx, output)
        for index, result in enumerate(graph.outputs):
            if result is value:
                graph.outputs[index] = output


def inline_composites(op: Builder) -> None:
    """Put the nodes of all composites in their place, those in bodies included.

    Args:
        op: builder of the main graph.
    """
    graphs = [op.graph, *op.graph.subgraphs()]
    # A gradient that runs part of a body again copies the composites in it. The first keeps the names.
    found = [node for graph in graphs for node in graph if is_composite(node)]
    left = Counter(node.op_identifier() for node in found)
    for node in reversed(found):
        left[node.op_identifier()] -= 1
        _inline(op, node, copied=left[node.op_identifier()] > 0)
    for identifier in [identifier for identifier in op.functions if identifier[0] == DOMAIN]:
        del op.functions[identifier]
    op.opset_imports.pop(DOMAIN, None)


def _inline(op: Builder, node: ir.Node, *, copied: bool) -> None:
    """Put the nodes of a composite in its place, or copies of them under new names."""
    function = op.functions[node.op_identifier()]
    values = {formal: value for formal, value in zip(function.inputs, node.inputs, strict=True) if value is not None}
    results = list(function.outputs)
    if copied:
        body = copy_nodes(function, values, op.unique_name, {})
        results = [values[value] for value in results]
    else:
        body = list(function)
        function.outputs.clear()
        function.graph.remove(body)
        for member in _with_inner(body):
            _read_instead(member, values)
    twin = results[0].producer()
    assert twin is not None
    phase = node.metadata_props.get(PHASE)
    if phase is not None:  # a node in the body of another has none of its own
        for member in body:
            member.metadata_props[PHASE] = phase
    for result, output in zip(results[1:], node.outputs[1:], strict=True):
        output.replace_all_uses_with(result, replace_graph_outputs=True)
        result.name = output.name
    node.resize_outputs(1)
    results[0].replace_all_uses_with(node.outputs[0])
    become(node, twin.op_identifier(), twin.inputs, list(twin.attributes.values()))
    twin.resize_inputs(0)
    graph, place = node.graph, body.index(twin)
    assert graph is not None
    graph.insert_before(node, body[:place])
    graph.insert_after(node, body[place + 1 :])


def become(
    node: ir.Node,
    identifier: tuple[str, str, str],
    inputs: Sequence[ir.Value | None],
    attributes: Iterable[ir.Attr],
) -> None:
    """Make another operator of a node, with other inputs and attributes.

    Args:
        node: keeps its name and its outputs.
        identifier: domain, operator and overload.
        inputs: in the place of all that it reads.
        attributes: in the place of all that it has.
    """
    node.domain, node.op_type, node.overload = identifier
    node.resize_inputs(len(inputs))
    for index, value in enumerate(inputs):
        node.replace_input_with(index, value)
    node.attributes.clear()
    node.attributes.update((attribute.name, attribute) for attribute in attributes)


def _with_inner(nodes: Iterable[ir.Node]) -> list[ir.Node]:
    """Nodes, and those in their bodies."""
    return [inner for node in nodes for inner in (node, *_with_inner(n for graph in graphs_in(node) for n in graph))]


def _read_instead(node: ir.Node, values: Mapping[ir.Value, ir.Value]) -> None:
    for index, value in enumerate(node.inputs):
        if value is not None and value in values:
            node.replace_input_with(index, values[value])


def _formal(value: ir.Value | None, name: str) -> ir.Value:
    return ir.Value(name=name) if value is None else ir.Value(name=name, type=value.type, shape=value.shape)


def _twin(value: ir.Value) -> ir.Value:
    return ir.Value(name=value.name, type=value.type, shape=value.shape)

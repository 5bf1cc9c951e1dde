"""A weight that a local function holds is one weight, however often the function is called.

A body's Constant nodes are copied to each call when the function is inlined, and each copy would be a parameter of its
own: a block that is called for every layer would have weights for each. So they go to the main graph before, and a call
hands them in.
"""

from __future__ import annotations

from collections import Counter

import onnx_ir as ir

from ckplan.operators.matching import is_op


def share_constants(model: ir.Model) -> None:
    """Make inputs of what functions that are called more than once hold as floating-point tensors, in place.

    Single numbers stay: they are no weights. So does what a body returns as it is: it has to be made there.

    Args:
        model: all its calls are valid, and no function calls itself.
    """
    calls: dict[ir.OperatorIdentifier, list[ir.Node]] = {key: [] for key in model.functions}
    callers: dict[ir.Node, ir.Graph | ir.Function] = {}
    scopes: list[ir.Graph | ir.Function] = [model.graph, *model.functions.values()]
    for scope in scopes:
        for node in scope.all_nodes():
            if node.op_identifier() in calls:
                calls[node.op_identifier()].append(node)
                callers[node] = scope
    order = _callers_first(model, calls, callers)
    times: Counter[ir.OperatorIdentifier] = Counter()
    for key in order:
        times[key] = sum(_times(callers[node], times) for node in calls[key])
    for key in reversed(order):
        function = model.functions[key]
        for constant in [node for node in function.all_nodes() if times[key] > 1 and _is_weight(node)]:
            _hand_in(function, constant, {node: callers[node] for node in calls[key]})


def _callers_first(
    model: ir.Model,
    calls: dict[ir.OperatorIdentifier, list[ir.Node]],
    callers: dict[ir.Node, ir.Graph | ir.Function],
) -> list[ir.OperatorIdentifier]:
    """The functions of a model, each behind those that call it."""
    found: dict[ir.OperatorIdentifier, None] = {}

    def visit(key: ir.OperatorIdentifier) -> None:
        for node in calls[key]:
            caller = callers[node]
            if isinstance(caller, ir.Function) and caller.identifier() not in found:
                visit(caller.identifier())
        found[key] = None

    for key in model.functions:
        if key not in found:
            visit(key)
    return list(found)


def _times(caller: ir.Graph | ir.Function, times: Counter[ir.OperatorIdentifier]) -> int:
    """How often a scope stands in the inlined model."""
    return times[caller.identifier()] if isinstance(caller, ir.Function) else 1


def _is_weight(node: ir.Node) -> bool:
    if not is_op(node, "Constant") or node.outputs[0].is_graph_output():
        return False
    attribute = node.attributes.get("value") or node.attributes.get("value_floats")
    if attribute is None or attribute.is_ref():
        return False
    if attribute.type == ir.AttributeType.FLOATS:
        return len(attribute.as_floats()) > 1
    tensor = attribute.as_tensor()
    return tensor.dtype.is_floating_point() and tensor.size > 1


def _hand_in(function: ir.Function, constant: ir.Node, calls: dict[ir.Node, ir.Graph | ir.Function]) -> None:
    """Make an input of a function out of a Constant node of it, and such a node in each scope that calls it."""
    (held,) = constant.outputs
    wanted, held.name = str(held.name), None
    given = ir.Value(name=_unused_name(function, wanted), type=held.type, shape=held.shape)
    held.replace_all_uses_with(given)
    body = constant.graph
    assert body is not None
    body.remove(constant, safe=True)
    function.inputs.append(given)
    place = len(function.inputs)
    made: dict[ir.Graph | ir.Function, ir.Value] = {}
    for call, caller in calls.items():
        if caller not in made:
            node = ir.node("Constant", inputs=[], attributes=constant.attributes)
            (value,) = node.outputs
            value.name = _unused_name(caller, wanted)
            caller.insert_before(caller[0], node)
            made[caller] = value
        call.resize_inputs(place)
        call.replace_input_with(place - 1, made[caller])


def _unused_name(scope: ir.Graph | ir.Function, wanted: str) -> str:
    taken = {value.name for node in scope.all_nodes() for value in (*node.inputs, *node.outputs) if value is not None}
    taken |= {value.name for value in scope.inputs}
    if isinstance(scope, ir.Graph):
        taken |= set(scope.initializers)
    name, number = wanted, 0
    while name in taken:
        number += 1
        name = f"{wanted}_{number}"
    return name

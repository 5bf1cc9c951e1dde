"""How often a Loop runs whose condition counts and depends on no data, as in `while` loops of TensorFlow.

The nodes that the condition is made by are evaluated step by step until it is false. The Loop then gets that number for
its trip count and no condition, so that its rows have a known number, and its gradient is that of a Scan.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ckplan.model.bodies import bodies_of, fixed_trips, most_trips

_MOST_STEPS = 1 << 12
"""Steps that are counted at most: each takes some dozens of microseconds a node."""
_MOST_ELEMENTS = 64
"""Elements that a counter may have at most."""

Constant = Callable[[ir.Value | None], np.ndarray | None]
Evaluate = Callable[[ir.Node], list[np.ndarray] | None]


def fix_trip_count(
    node: ir.Node,
    constants: dict[ir.Value, np.ndarray],
    constant: Constant,
    evaluate: Evaluate,
    initializer: Callable[[np.ndarray], ir.Value],
) -> bool:
    """Give a Loop the trip count that its condition comes to, in place, if it depends on no data.

    Args:
        node: a Loop (https://onnx.ai/onnx/operators/onnx__Loop.html) whose inputs and body have been visited; a node of
            another kind stays as it is.
        constants: arrays of values that are known; those of a step are put in while it is evaluated.
        constant: the array of a value, if it is known.
        evaluate: the arrays that a node gives, from those of its inputs; None if it cannot tell.
        initializer: makes a constant of the main graph.

    Returns:
        Whether it has a fixed trip count only now.
    """
    if node.op_type != "Loop" or fixed_trips(node) is not None:
        return False
    before = dict(constants)
    trips = _count(node, constants, constant, evaluate)
    constants.clear()
    constants.update(before)
    if trips is None:
        return False
    (body,) = bodies_of(node)
    node.resize_inputs(max(2, len(node.inputs)))
    node.replace_input_with(0, initializer(np.asarray(trips, dtype=np.int64)))
    node.replace_input_with(1, None)
    always = ir.node("Identity", [body.inputs[1]])
    always.outputs[0].name = f"{body.inputs[1].name}/always"
    always.outputs[0].type, always.outputs[0].shape = ir.TensorType(ir.DataType.BOOL), ir.Shape(())
    body.append(always)
    body.outputs[0] = always.outputs[0]
    return True


def _count(node: ir.Node, constants: dict[ir.Value, np.ndarray], constant: Constant, evaluate: Evaluate) -> int | None:
    """Count the steps of a Loop; None if data decide, or if there are too many."""
    (body,) = bodies_of(node)
    deciding, most = _deciding(body), most_trips(node)
    given, start = [*node.inputs, None, None][:2]
    if deciding is None or (given is not None and constant(given) is None):
        return None
    states, inner = deciding
    goes_on = np.asarray(True) if start is None else constant(start)
    current = {index: constant(node.inputs[index + 2]) for index in states}
    if goes_on is None or any(array is None or array.size > _MOST_ELEMENTS for array in current.values()):
        return None
    for step in range(_MOST_STEPS):
        if step == most or not goes_on.reshape(-1)[0]:
            return step
        constants[body.inputs[0]], constants[body.inputs[1]] = np.asarray(step, dtype=np.int64), np.asarray(True)
        for index, array in current.items():
            assert array is not None
            constants[body.inputs[index + 2]] = array
        for made in inner:
            arrays = evaluate(made)
            if arrays is None or any(array.size > _MOST_ELEMENTS for array in arrays):
                return None
            constants.update(zip(made.outputs, arrays, strict=False))
        goes_on = constant(body.outputs[0])
        current = {index: constant(body.outputs[index + 1]) for index in states}
        if goes_on is None or any(array is None for array in current.values()):
            return None
    return None


def _deciding(body: ir.Graph) -> tuple[list[int], list[ir.Node]] | None:
    """States of a Loop, by number, that its condition depends on, and the nodes that make it and them, in order.

    None where nodes with bodies are among these.
    """
    found: set[int] = set()
    needed: set[ir.Node] = set()
    waiting, seen = [body.outputs[0]], set()
    entering = {value: index for index, value in enumerate(body.inputs)}
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        index = entering.get(value)
        if index is not None:
            if index >= 2:
                found.add(index - 2)
                waiting.append(body.outputs[index - 1])
            continue
        producer = value.producer()
        if producer is None or producer.graph is not body:
            continue
        if bodies_of(producer):
            return None
        needed.add(producer)
        waiting.extend(one for one in producer.inputs if one is not None)
    return sorted(found), [made for made in body if made in needed]

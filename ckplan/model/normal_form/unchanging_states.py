"""States of a Loop or Scan that no step changes: `while` loops of TensorFlow carry their weights along so.

The body may as well read them where they are made. A gradient that took them for states would keep a copy for each
step.
"""

from __future__ import annotations

import onnx_ir as ir

from ckplan.model.bodies import bodies_of, state_count, through_identity


def capture_unchanging_states(node: ir.Node) -> None:
    """Let the body of a Loop or Scan read the states that it passes on as they are from outside, in place.

    Args:
        node: a node with bodies; one of another kind stays as it is.
    """
    if node.op_type not in ("Loop", "Scan"):
        return
    (body,) = bodies_of(node)
    first, ahead = (2, 1) if node.op_type == "Loop" else (0, 0)
    states, results = range(state_count(node)), list(body.outputs)
    going = [index for index in states if through_identity(results[ahead + index]) is body.inputs[first + index]]
    going = [index for index in going if _can_go(node, first + index, index, results)]
    if not going:
        return
    body.outputs.clear()
    body.outputs.extend(value for place, value in enumerate(results) if place - ahead not in going)
    for index in going:
        outer = node.inputs[first + index]
        assert outer is not None
        ir.convenience.replace_all_uses_with(body.inputs[first + index], outer)
        ir.convenience.replace_all_uses_with(node.outputs[index], outer)
    _drop_inputs(node, body, [first + index for index in going])
    _keep_outputs(node, [index for index in range(len(node.outputs)) if index not in going])


def _can_go(node: ir.Node, slot: int, index: int, results: list[ir.Value]) -> bool:
    (body,) = bodies_of(node)
    once = results.count(body.inputs[slot]) <= 1
    return once and node.inputs[slot] is not None and not node.outputs[index].is_graph_output()


def _drop_inputs(node: ir.Node, body: ir.Graph, going: list[int]) -> None:
    inputs = [value for place, value in enumerate(node.inputs) if place not in going]
    entering = [value for place, value in enumerate(body.inputs) if place not in going]
    body.inputs.clear()
    body.inputs.extend(entering)
    node.resize_inputs(len(inputs))
    for place, value in enumerate(inputs):
        node.replace_input_with(place, value)


def _keep_outputs(node: ir.Node, kept: list[int]) -> None:
    for place, index in enumerate(kept):
        if place != index:
            _move(node.outputs[index], node.outputs[place])
    node.resize_outputs(len(kept))


def _move(old: ir.Value, new: ir.Value) -> None:
    """Let one output of a node stand for another, under its name."""
    old.name, new.name = new.name, old.name
    new.type, new.shape = old.type, old.shape
    new.metadata_props.clear()
    new.metadata_props.update(old.metadata_props)
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)

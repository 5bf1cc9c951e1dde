"""Sequences to which a Loop appends one element a step are scan outputs of the Loop.

A list to which a scripted program of torch appends, and which it stacks or concatenates behind the loop, is written as
a sequence among the Loop's states, joined by a ConcatFromSequence. How long it is may be known at run time only; what
it holds is the same as what a scan output holds, which needs no sequence and has a gradient.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import onnx_ir as ir

from ckplan.model.bodies import bodies_of, state_count
from ckplan.model.contrib.emitter import Emitter
from ckplan.model.inference.infer import static_shape
from ckplan.model.sequences.resolved import Contents
from ckplan.operators.matching import is_op

_FIRST = 2
"""Where the states of a Loop begin among its inputs: behind the trip count and the condition."""


def write_appended(
    node: ir.Node,
    contents: Contents,
    visit: Callable[[ir.Node], None],
    constant: Callable[[ir.Value | None], np.ndarray | None],
) -> bool:
    """Write a Loop that appends to sequences as one that has scan outputs, and note what the sequences hold joined.

    Args:
        node: any node whose bodies were visited.
        contents: what is known of sequences; those of the Loop are added. The Loop itself stays, unread.
        visit: infers the outputs of a new node, and folds what is constant.
        constant: the content of a value that is known in advance, else None.

    Returns:
        Whether it was such a Loop.
    """
    if not is_op(node, "Loop") or node.graph is None:
        return False
    (body,) = bodies_of(node)
    states = range(state_count(node))
    places = [at for at in states if contents.of(node.inputs[at + _FIRST]) == () and _is_appended(node, body, at)]
    if not places:
        return False
    kept = [at for at in states if at not in places]
    copy = body.clone(allow_outer_scope_values=True)
    elements = [_appended(copy.outputs[at + 1]) for at in places]
    scans = list(copy.outputs[1 + len(states) :])
    copy.outputs[:] = [copy.outputs[0], *(copy.outputs[at + 1] for at in kept), *scans, *elements]
    inserts = [use.node for at in places for use in copy.inputs[at + _FIRST].uses()]
    copy.remove(inserts, safe=True)
    for at in reversed(places):
        del copy.inputs[at + _FIRST]
    loop = ir.Node(
        "",
        "Loop",
        [*node.inputs[:_FIRST], *(node.inputs[at + _FIRST] for at in kept)],
        [ir.AttrGraph("body", copy)],
        num_outputs=len(kept) + len(scans) + len(elements),
        name=f"{node.name}/scanned",
    )
    for index, value in enumerate(loop.outputs):
        value.name = f"{loop.name}_out{index}"
    node.graph.insert_before(node, loop)
    visit(loop)
    for at, value in zip([*kept, *range(len(states), len(node.outputs))], loop.outputs, strict=False):
        _take_place(node.outputs[at], value)
    op = Emitter(node, visit, constant)
    for at, element, scanned in zip(places, elements, loop.outputs[-len(places) :], strict=True):
        contents.elements[node.outputs[at]] = (_joined(op, node.outputs[at], element, scanned),)
    return True


def _is_appended(node: ir.Node, body: ir.Graph, at: int) -> bool:
    """Whether a state of a Loop is a sequence that each step appends to, all readers of which join it in one way."""
    before, after = body.inputs[at + _FIRST], body.outputs[at + 1]
    insert = after.producer()
    if insert is None or insert.op_type != "SequenceInsert" or insert.inputs[0] is not before:
        return False
    if len(insert.inputs) > 2 and insert.inputs[2] is not None:
        return False
    shape = static_shape(_appended(after))
    if insert.graph is not body or len(before.uses()) != 1 or after.uses() or shape is None or 0 in shape:
        return False
    readers = [use.node for use in node.outputs[at].uses()]
    alike = {(reader.op_type, *_form(reader)) for reader in readers}
    (kind, _, new_axis), *others = alike or {("", 0, 0)}
    joins = kind == "ConcatFromSequence" and not others and all(reader.graph is node.graph for reader in readers)
    return joins and bool(shape or new_axis) and not node.outputs[at].is_graph_output()


def _appended(after: ir.Value) -> ir.Value:
    """What a SequenceInsert appends."""
    insert = after.producer()
    assert insert is not None
    assert insert.inputs[1] is not None
    return insert.inputs[1]


def _form(reader: ir.Node) -> tuple[int, int]:
    """The axis of a ConcatFromSequence, and whether it is a new one."""
    return reader.attributes.get_int("axis", 0), reader.attributes.get_int("new_axis", 0)


def _joined(op: Emitter, sequence: ir.Value, element: ir.Value, scanned: ir.Value) -> ir.Value:
    """What all readers of a sequence make of it, made of the scan output; they join this one thing from now on."""
    readers = [use.node for use in sequence.uses()]
    axis, new_axis = _form(readers[0])
    shape = static_shape(element)
    assert shape is not None
    axis %= len(shape) + new_axis
    value = scanned
    if axis:
        value = op.Transpose(value, perm=[*range(1, axis + 1), 0, *range(axis + 1, len(shape) + 1)])
    if not new_axis:
        target = [*shape[:axis], -1, *shape[axis + 1 :]]
        value = op.Reshape(value, np.asarray(target, dtype=np.int64))
    for reader in readers:
        reader.attributes["axis"], reader.attributes["new_axis"] = (
            ir.AttrInt64(key, number) for key, number in (("axis", axis), ("new_axis", 0))
        )
    return value


def _take_place(old: ir.Value, new: ir.Value) -> None:
    """Let everybody read one value in the place of another, whose name it takes."""
    name = old.name
    ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    old.name, new.name = f"{name}/appended", name

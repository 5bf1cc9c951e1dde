"""Where torch's module stops gradients: by `detach`, which torch's exporter does not write down.

A straight-through estimate, `x + (quantised(x) - x).detach()`, has the gradient of x there; as plain operators it has
none. Each node still bears the line of the program that it was made of, and that line reads ``%detach`` where the node
reads what was detached.

Other exporters' nodes bear no such line. There a straight-through estimate is told by its form: nobody adds `q - x` to
x but to hide q from the gradient.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.torch_files.exporter_metadata import LINE, OPERAND, line_of, operands_of
from ckplan.operators.matching import is_op

_DETACHED = re.compile(r"detach(_\d+)?")
_IS_DETACH = "torch.ops.aten.detach.default]"
_STEPS = frozenset(
    {"ArgMax", "ArgMin", "Ceil", "Equal", "Floor", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "QuantizeLinear"}
    | {"Round", "Sign", "TopK"}
)
"""Operators by which a quantiser or a choice is made."""
_FARTHEST = 24
"""How many nodes a quantiser has at most between what it reads and what it makes."""
_SIZED = frozenset({"Expand", "Reshape", "Slice", "Squeeze", "Tile", "Unsqueeze"})
"""What is told sizes, which exporters compute of a batch that is free, by as many nodes as there are axes."""


def mark_detached(model: ir.Model) -> tuple[str, ...]:
    """Mark the inputs of nodes at which torch stops gradients with `keys.DETACHED`, in place.

    Returns:
        Notes: which values are detached, and where that cannot be told.
    """
    marked, doubtful = [], []
    for line, group in itertools.groupby(model.graph, line_of):
        nodes = list(group)
        if _IS_DETACH in line:
            marked += [str(nodes[-1].inputs[0].name)] if nodes[-1].inputs[0] is not None else []
            for use in list(nodes[-1].outputs[0].uses()):
                _mark(use.node, use.idx)
            continue
        names = list(dict.fromkeys(operands_of(line)))
        if not any(map(_DETACHED.fullmatch, names)):
            continue
        read = dict.fromkeys(value for _, _, value in _read_from_outside(nodes))
        unknown = [value for value in read if _name_of(value) not in names]
        lacking = [name for name in names if name not in map(_name_of, read)]
        stops = [name for name in lacking if _DETACHED.fullmatch(name)]
        places, in_order = list(_read_from_outside(nodes)), operands_of(line)
        if not unknown and len(nodes) == 1 and len(places) == len(in_order):  # one value, once detached and once not
            for (node, index, value), name in zip(places, in_order, strict=True):
                if name in stops:
                    marked.append(str(value.name))
                    _mark(node, index)
            continue
        if len(unknown) != len(lacking):
            doubtful += [f"'{nodes[-1].name}'"] if stops and unknown else []
            continue
        found = {value for value, name in zip(unknown, lacking, strict=True) if name in stops}
        marked += [str(value.name) for value in found]
        for node, index, value in _read_from_outside(nodes):
            if value in found:
                _mark(node, index)
    straight = _mark_straight_through(model.graph)
    notes = []
    if straight:
        notes.append(
            f"gradients pass straight through {len(straight)} quantisation(s), added as differences from what they "
            f"quantise: {shortened(straight, 3)}"
        )
    if marked:
        named = shortened([repr(name) for name in dict.fromkeys(marked)], 3)
        notes.append(f"gradients stop where torch's module detaches: {named}")
    if doubtful:
        notes.append(
            f"torch detaches something that {shortened(doubtful, 3)} read: what it is, is told by ckplan.export"
        )
    return tuple(notes)


def _mark_straight_through(graph: ir.Graph) -> list[str]:
    """Stop gradients at `q - x` in `x + (q - x)` and `x - (x - q)`, and return the names of what is made so."""
    found = []
    for node in graph:
        if not is_op(node, ("Add", "Sub")) or LINE in node.metadata_props:
            continue
        for index in (0, 1) if node.op_type == "Add" else (1,):
            change, kept = node.inputs[index], node.inputs[1 - index]
            difference = change.producer() if change is not None and len(change.uses()) == 1 else None
            if not is_op(difference, "Sub"):
                continue
            order = (0, 1) if node.op_type == "Add" else (1, 0)
            hidden, read = (difference.inputs[place] for place in order)
            if read is kept and kept is not hidden and (_is_quantised(hidden, kept) or _is_scaled(kept, hidden)):
                _mark(node, index)
                found.append(repr(node.outputs[0].name))
                break
    return found


def _is_quantised(value: ir.Value | None, of: ir.Value | None) -> bool:
    """Whether a step or a choice lies between two values."""
    behind, seen = [value], {of, None}
    while behind and len(seen) < _FARTHEST:
        value = behind.pop()
        if value in seen or value is None:
            continue
        seen.add(value)
        node = value.producer()
        if node is None:
            continue
        if is_op(node, _STEPS):
            return True
        behind.extend(node.inputs[:1] if is_op(node, _SIZED) else node.inputs)
    return False


def _is_scaled(value: ir.Value | None, of: ir.Value | None) -> bool:
    """Whether one value is a multiple of the other: what a gradient is scaled by is written so."""
    node = None if value is None else value.producer()
    return node is not None and node.op_type == "Mul" and of in node.inputs


def detached_inputs(node: ir.Node) -> list[int]:
    """The inputs of a node at which gradients stop."""
    found: list[int] = json.loads(node.metadata_props.get(keys.DETACHED, "[]"))
    return found


def hand_on(node: ir.Node) -> None:
    """Mark the readers of a node that is about to go, for it hands its first input on and that is detached."""
    if 0 in detached_inputs(node):
        for use in node.outputs[0].uses():
            _mark(use.node, use.idx)


def mark(node: ir.Node, indices: list[int]) -> None:
    """Say at which inputs of a node gradients stop, and at no others."""
    node.metadata_props[keys.DETACHED] = json.dumps(indices)


def _mark(node: ir.Node, index: int) -> None:
    mark(node, sorted({*detached_inputs(node), index}))


def _read_from_outside(nodes: list[ir.Node]) -> Iterator[tuple[ir.Node, int, ir.Value]]:
    """Floating-point inputs of nodes that none of these makes: the node, the place, and the value."""
    made = {output for node in nodes for output in node.outputs}
    for node in nodes:
        for index, value in enumerate(node.inputs):
            if value is not None and value not in made and (value.dtype is None or value.dtype.is_floating_point()):
                yield node, index, value


def _name_of(value: ir.Value) -> str:
    """How the program calls a value."""
    return value.metadata_props.get(OPERAND) or str(value.name)

"""Where torch's module stops gradients: `detach`, of which torch's exporter writes nothing.

A straight-through estimate, `x + (quantised(x) - x).detach()`, has the gradient of x there; as plain operators it has
none. Each node still bears the line of the program that it was made of, and that line reads ``%detach`` where the node
reads what was detached.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator

import onnx_ir as ir

from ckplan import keys
from ckplan.display import shortened
from ckplan.model.torch_export import LINE, OPERAND, operands_of

_DETACHED = re.compile(r"detach(_\d+)?")
_IS_DETACH = "torch.ops.aten.detach.default]"


def mark_detached(model: ir.Model) -> tuple[str, ...]:
    """Mark the inputs of nodes at which torch stops gradients with `keys.DETACHED`, in place.

    Returns:
        Notes: which values are detached, and where that cannot be told.
    """
    marked, doubtful = [], []
    for line, group in itertools.groupby(model.graph, lambda node: node.metadata_props.get(LINE, "")):
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
    notes = []
    if marked:
        named = shortened([repr(name) for name in dict.fromkeys(marked)], 3)
        notes.append(f"gradients stop where torch's module detaches: {named}")
    if doubtful:
        notes.append(
            f"torch detaches something that {shortened(doubtful, 3)} read: what it is, is told by ckplan.export"
        )
    return tuple(notes)


def detached_inputs(node: ir.Node) -> list[int]:
    """The inputs of a node at which gradients stop."""
    found: list[int] = json.loads(node.metadata_props.get(keys.DETACHED, "[]"))
    return found


def hand_on(node: ir.Node) -> None:
    """Mark the readers of a node that is about to go, for it hands its first input on and that is detached."""
    if 0 in detached_inputs(node):
        for use in node.outputs[0].uses():
            _mark(use.node, use.idx)


def _mark(node: ir.Node, index: int) -> None:
    node.metadata_props[keys.DETACHED] = json.dumps(sorted({*detached_inputs(node), index}))


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

"""Nodes of a graph that stand for one node of the model: itself, or what an operator was written in."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import onnx
import onnx_ir as ir

from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import reads
from ckplan.model.traits import is_heavy
from ckplan.operators.table import STANDARD

_NUMBERED = re.compile(r"_\d+$")


def operator_of(node: ir.Node) -> str:
    """The operator of a node, with its domain if that is not ONNX's own."""
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


@dataclass(frozen=True, slots=True)
class Unit:
    """Nodes that stand for one node of the model: itself, or what it was written in (`BatchNormalization` in training).

    Attributes:
        name: the operator.
        members: positions of the nodes, in order.
        heavy: whether it costs far more than its bytes.
    """

    name: str
    members: tuple[int, ...]
    heavy: bool


def units_of(nodes: Sequence[ir.Node]) -> list[Unit]:
    """For each node the unit that it belongs to.

    Nodes that a node was written in are called after it: ``<name>/<operator>_<number>``, each operator numbered from 0.
    An operator that has no number, or none from 0 on, is one of the model. The node itself may stand behind them.
    """
    found: dict[str, list[int]] = defaultdict(list)
    for index, node in enumerate(nodes):
        scope, slash, last = (node.name or "").rpartition("/")
        operator, _, number = last.rpartition("_")
        if slash and operator == node.op_type and number.isdigit():
            found[scope].append(index)
    units = [Unit(operator_of(node), (index,), _is_heavy(node)) for index, node in enumerate(nodes)]
    places = {node.name: index for index, node in enumerate(nodes)}
    for scope, members in found.items():
        name = _NUMBERED.sub("", scope.rpartition("/")[2])
        starts = {nodes[index].op_type for index in members if (nodes[index].name or "").endswith("_0")}
        if len(members) > 1 and onnx.defs.has(name) and starts == {nodes[index].op_type for index in members}:
            itself = places.get(scope)
            if itself is not None and nodes[itself].op_type == name:
                members = sorted([*members, itself])
            unit = Unit(name, tuple(members), name in STANDARD and STANDARD[name].heavy)
            for index in members:
                units[index] = unit
    return units


def _is_heavy(node: ir.Node) -> bool:
    """Whether a node begins a group: an expensive operator, or one with a body."""
    return is_heavy(node) or bool(graphs_in(node))


def unit_names(block: Sequence[int], units: Sequence[Unit]) -> list[str]:
    """The operators of a block, what was written in several nodes as one."""
    there = set(block)
    seen: dict[int, None] = {}
    for index in block:
        members = units[index].members
        seen.setdefault(members[0] if there.issuperset(members) else index)
    return [units[index].name for index in seen]


def producers_of(node: ir.Node, place: dict[ir.Node, int]) -> set[int]:
    """The forward nodes that a node reads from, its bodies included."""
    found = set()
    for value in reads(node):
        producer = value.producer()
        if producer is not None and producer in place:
            found.add(place[producer])
    return found

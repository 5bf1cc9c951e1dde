"""The repeated blocks of a network: what a person means by "the convolutions" or "a transformer block".

On two levels. A *group* is a node and the light nodes that only carry its result on, such as
``Conv+BatchNormalization+Relu``; every forward node is in one. A *layer* is a longer stretch of the forward pass that
stands there several times, such as a transformer block: same operators, attributes and connections, sizes apart.

Layers are repetitions in the sequence of forward nodes; see `ckplan.answers.periods`.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal

import numpy as np
import numpy.typing as npt
import onnx
import onnx_ir as ir

from ckplan.answers.periods import further_places, is_repetition, longest_free, repetitions
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import reads
from ckplan.model.traits import is_backward, is_heavy
from ckplan.operators.table import STANDARD

Level = Literal["layer", "group"]

_SMALLEST = 3
"""Nodes that make a layer."""
_SHOWN = 4
"""Operators in the name of a block."""

_NUMBERED = re.compile(r"_\d+$")

_MOVES = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Shape", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that compute nothing; the name of a long block leaves them out."""
_ANY_NUMBER = frozenset({"Concat", "Max", "Mean", "Min", "Sum"})
"""Operators of any number of inputs, which may grow from layer to layer (DenseNet)."""


@dataclass(frozen=True, slots=True)
class Pattern:
    """A block of nodes that stands in the forward pass once or more.

    Attributes:
        name: its operators, such as ``Conv+BatchNormalization+Relu``; long ones are shortened. Unique within a level.
        level: ``layer`` or ``group``.
        operators: the operators of the first occurrence, in order, node by node; what an operator of the model was
            written in is named by that operator in ``name``, and may differ a little from one occurrence to the next.
        occurrences: names of the nodes of each occurrence, in forward order.
    """

    name: str
    level: Level
    operators: tuple[str, ...]
    occurrences: tuple[tuple[str, ...], ...]

    @property
    def count(self) -> int:
        """How often it stands there."""
        return len(self.occurrences)


def patterns(model: ir.Model) -> tuple[Pattern, ...]:
    """Find the repeated blocks of the forward pass of a training graph, or of any other graph.

    Args:
        model: with nodes in a topological order; the phase of nodes is read off their metadata, none means forward.

    Returns:
        The layers, each of which occurs at least twice, then the groups, into which the forward nodes are divided
        without remainder, some of which occur once. Both by the nodes that they cover, most first. The layers of a
        network do not overlap each other.
    """
    nodes = [node for node in model.graph if not is_backward(node)]
    if not nodes:
        return ()
    units = _units(nodes)
    groups = _groups(nodes, units)
    stretches = _layers(nodes, groups)
    return (
        *_named("layer", nodes, stretches, units, _Signatures(nodes)),
        *_named("group", nodes, _members(groups), units, lambda block: tuple(_unit_names(block, units))),
    )


def _operator(node: ir.Node) -> str:
    return f"{node.domain}.{node.op_type}" if node.domain else node.op_type


@dataclass(frozen=True, slots=True)
class _Unit:
    """Nodes that stand for one node of the model: itself, or what it was written in (`BatchNormalization` in training).

    Attributes:
        name: the operator.
        members: positions of the nodes, in order.
        heavy: whether it costs far more than its bytes.
    """

    name: str
    members: tuple[int, ...]
    heavy: bool


def _units(nodes: Sequence[ir.Node]) -> list[_Unit]:
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
    units = [_Unit(_operator(node), (index,), _is_heavy(node)) for index, node in enumerate(nodes)]
    places = {node.name: index for index, node in enumerate(nodes)}
    for scope, members in found.items():
        name = _NUMBERED.sub("", scope.rpartition("/")[2])
        starts = {nodes[index].op_type for index in members if (nodes[index].name or "").endswith("_0")}
        if len(members) > 1 and onnx.defs.has(name) and starts == {nodes[index].op_type for index in members}:
            itself = places.get(scope)
            if itself is not None and nodes[itself].op_type == name:
                members = sorted([*members, itself])
            unit = _Unit(name, tuple(members), name in STANDARD and STANDARD[name].heavy)
            for index in members:
                units[index] = unit
    return units


def _is_heavy(node: ir.Node) -> bool:
    """Whether a node begins a group: an expensive operator, or one with a body."""
    return is_heavy(node) or bool(graphs_in(node))


def _unit_names(block: Sequence[int], units: Sequence[_Unit]) -> list[str]:
    """The operators of a block, what was written in several nodes as one."""
    there = set(block)
    seen: dict[int, None] = {}
    for index in block:
        members = units[index].members
        seen.setdefault(members[0] if there.issuperset(members) else index)
    return [units[index].name for index in seen]


def _members(groups: Sequence[int]) -> list[Sequence[int]]:
    """The nodes of each group, in order."""
    members: dict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    return list(members.values())


# -- groups ------------------------------------------------------------------------------------------------------------


def _groups(nodes: Sequence[ir.Node], units: Sequence[_Unit]) -> list[int]:
    """For each node the first node of its group.

    A light unit joins the group that ends in one of its inputs if nothing else reads that and it makes as many
    elements. A group all of whose inputs come from the end of another one, and that is the only reader of it, is a part
    of it (``x * sigmoid(x)``).
    """
    home = [unit.members[0] for unit in units]  # a unit is known by its first node
    flow = _flow(nodes, units, home)
    group, end = _joined(units, flow)
    merged = _merged(units, flow, group, end)
    return [merged[group[first]] for first in home]


@dataclass(frozen=True)
class _Flow:
    """Who reads from whom among units, which are known by their first nodes.

    Attributes:
        sources: the units that a unit reads from.
        readers: those that read from it.
        sizes: elements of the largest thing of it that others read; -1 where that is not known.
    """

    sources: Mapping[int, set[int]]
    readers: Mapping[int, set[int]]
    sizes: Mapping[int, int]


def _flow(nodes: Sequence[ir.Node], units: Sequence[_Unit], home: Sequence[int]) -> _Flow:
    """Who reads from whom, given the unit of each node."""
    place = {node: index for index, node in enumerate(nodes)}
    firsts = [index for index, first in enumerate(home) if first == index]
    sources: dict[int, set[int]] = {first: set() for first in firsts}
    readers: dict[int, set[int]] = {first: set() for first in firsts}
    sizes = dict.fromkeys(firsts, -1)
    for index, node in enumerate(nodes):
        if len(units[index].members) == 1:
            sizes[index] = _elements(node)
        for producer in _producers(node, place):
            source, reader = home[producer], home[index]
            if source != reader:
                sources[reader].add(source)
                readers[source].add(reader)
                sizes[source] = max(sizes[source], _elements(nodes[producer]))
    return _Flow(sources, readers, sizes)


def _joined(units: Sequence[_Unit], flow: _Flow) -> tuple[dict[int, int], dict[int, int]]:
    """The group of each unit, which a light one shares with what it alone reads; the last unit of each group."""
    group = {first: first for first in flow.sources}
    end = dict(group)
    for first, sources in flow.sources.items():
        if units[first].heavy:
            continue
        tails = [
            source
            for source in sources
            if flow.readers[source] == {first}
            and end[group[source]] == source
            and flow.sizes[source] == flow.sizes[first]
        ]
        if tails:
            group[first] = group[max(tails)]
            end[group[first]] = first
    return group, end


def _merged(units: Sequence[_Unit], flow: _Flow, group: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
    """For each group the one that it is a part of: that which alone it reads, if nothing else reads the end of that."""
    outside: dict[int, set[int]] = defaultdict(set)
    for first, sources in flow.sources.items():
        outside[group[first]].update(source for source in sources if group[source] != group[first])
    merged = dict(group)
    for first in group:
        if group[first] != first or units[first].heavy or len(outside[first]) != 1:
            continue
        (source,) = outside[first]
        alone = {group[reader] for reader in flow.readers[source]} == {first}
        if alone and end[group[source]] == source and flow.sizes[source] == flow.sizes[first]:
            merged[first] = merged[group[source]]
    return merged


def _elements(node: ir.Node) -> int:
    """Elements of a node's first output; -1 where that is not known."""
    shape = node.outputs[0].shape if node.outputs else None
    sizes = [size if isinstance(size, int) else -1 for size in shape] if shape is not None else [-1]
    return prod(sizes) if min(sizes, default=0) >= 0 else -1


def _producers(node: ir.Node, place: dict[ir.Node, int]) -> set[int]:
    """The forward nodes that a node reads from, its bodies included."""
    found = set()
    for value in reads(node):
        producer = value.producer()
        if producer is not None and producer in place:
            found.add(place[producer])
    return found


# -- layers ------------------------------------------------------------------------------------------------------------


def _layers(nodes: Sequence[ir.Node], groups: Sequence[int]) -> list[Sequence[int]]:
    """Stretches of nodes that repeat each other, without overlap."""
    ids: dict[Hashable, int] = {}
    labels = np.array([ids.setdefault(_label(node), len(ids)) for node in nodes], dtype=np.int32)
    heavy = np.array([is_heavy(node) for node in nodes])
    crossing = _crossing(nodes)
    taken = np.zeros(len(nodes), dtype=bool)
    found: list[Sequence[int]] = []
    for period, runs in repetitions(labels, _SMALLEST):
        for run in runs:
            start, end = longest_free(taken, *run)
            if end - start < 2 * period:
                continue
            first, count = _aligned(crossing, groups, start, end, period)
            block = slice(first, first + period)
            if len(set(groups[block])) < 2 or (heavy.any() and not heavy[block].any()) or is_repetition(labels[block]):
                continue
            places = [first + turn * period for turn in range(count)]
            taken[first : first + count * period] = True
            for place in further_places(labels, labels[block], taken):
                taken[place : place + period] = True
                places.append(place)
            found += [range(place, place + period) for place in places]
    return found


def _label(node: ir.Node) -> Hashable:
    """What makes two nodes the same kind of node: operator, attributes, and what it reads and makes, sizes apart."""
    attributes = tuple(sorted((name, _spelled(attribute)) for name, attribute in node.attributes.items()))
    inputs = tuple("" if value is None else _origin(value) for value in node.inputs)
    if node.op_type in _ANY_NUMBER:
        inputs = tuple(dict.fromkeys(inputs))
    outputs = tuple((str(value.dtype), len(value.shape) if value.shape is not None else -1) for value in node.outputs)
    return _operator(node), attributes, inputs, outputs


def _spelled(attribute: ir.Attr) -> str:
    if attribute.name == "group":
        return str(attribute.value != 1)  # a depthwise convolution has as many groups as channels
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype}{tuple(tensor.shape)}"
    if attribute.type == ir.AttributeType.GRAPH:
        return "+".join(_operator(node) for node in attribute.as_graph())
    return str(attribute.value)


def _origin(value: ir.Value) -> str:
    if value.is_initializer():
        return "parameter"
    return "input" if value.producer() is None else "activation"


def _crossing(nodes: Sequence[ir.Node]) -> npt.NDArray[np.int64]:
    """For each position in the forward order the number of values made before it and read after it."""
    place = {node: index for index, node in enumerate(nodes)}
    last: dict[int, int] = {}
    for index, node in enumerate(nodes):
        for source in _producers(node, place):
            last[source] = index
    change = np.zeros(len(nodes) + 1, dtype=np.int64)
    for source, reader in last.items():
        change[source + 1] += 1
        change[reader + 1 : reader + 2] -= 1
    return np.cumsum(change)


def _aligned(
    crossing: npt.NDArray[np.int64], groups: Sequence[int], start: int, end: int, period: int
) -> tuple[int, int]:
    """Where the blocks of a run begin, ``(first, count)``.

    Where the fewest values pass from block to block, and no group is torn apart if that can be.
    """
    best = (float("inf"), True, 0, start)
    for first in range(start, min(start + period, end - 2 * period + 1)):
        count = (end - first) // period
        turn = first + period  # the beginning of the second block: the first may follow something else
        between = float(np.mean(crossing[turn : first + count * period : period]))
        best = min(best, (between, groups[turn] < turn, -count, first))
    return best[3], -best[2]


class _Signatures:
    """What makes two stretches of nodes the same layer: labels, and connections within the stretch."""

    def __init__(self, nodes: Sequence[ir.Node]) -> None:
        self._nodes = nodes
        self._place = {node: index for index, node in enumerate(nodes)}

    def __call__(self, block: Sequence[int]) -> Hashable:
        """The signature of the nodes at some positions."""
        return tuple((_label(self._nodes[index]), self._connections(index, block)) for index in block)

    def _connections(self, index: int, block: Sequence[int]) -> tuple[int, ...]:
        """For each input its maker's place in the block, or -1."""
        found = []
        for value in self._nodes[index].inputs:
            producer = value.producer() if value is not None else None
            place = self._place.get(producer, -1) if producer is not None else -1
            found.append(place - block[0] if place >= block[0] else -1)
        return tuple(dict.fromkeys(found)) if self._nodes[index].op_type in _ANY_NUMBER else tuple(found)


# -- names -------------------------------------------------------------------------------------------------------------


def _named(
    level: Level,
    nodes: Sequence[ir.Node],
    blocks: Sequence[Sequence[int]],
    units: Sequence[_Unit],
    signature: Callable[[Sequence[int]], Hashable],
) -> list[Pattern]:
    """Blocks that are the same, as one pattern with a name of its own."""
    alike: dict[Hashable, list[Sequence[int]]] = defaultdict(list)
    for block in sorted(blocks, key=lambda block: block[0]):
        alike[signature(block)].append(block)
    kept = [same for same in alike.values() if level == "group" or len(same) > 1]
    kept.sort(key=lambda same: (-len(same) * len(same[0]), same[0][0]))
    made = []
    names: set[str] = set()
    for same in kept:
        operators = tuple(_operator(nodes[index]) for index in same[0])
        name = plain = short_name(_unit_names(same[0], units), distinct=level == "layer")
        if name in names:
            name = plain = f"{plain} ({len(operators)} node{'' if len(operators) == 1 else 's'})"
        turn = 2
        while name in names:
            name, turn = f"{plain} {turn}", turn + 1
        names.add(name)
        occurrences = tuple(tuple(nodes[index].name or "" for index in block) for block in same)
        made.append(Pattern(name, level, operators, occurrences))
    return made


def short_name(operators: Sequence[str], *, distinct: bool = False) -> str:
    """Operators joined by ``+``; of many, those that compute, and of these the first few.

    Args:
        operators: in order.
        distinct: whether to name each operator once.
    """
    short = [operator.rpartition(".")[2] for operator in operators]
    if distinct:
        short = list(dict.fromkeys(short))
    if len(short) > _SHOWN:
        short = [name for name in short if name not in _MOVES] or short
        short = [name for index, name in enumerate(short) if index == 0 or name != short[index - 1]]
    return "+".join([*short[:_SHOWN], "…"] if len(short) > _SHOWN else short)

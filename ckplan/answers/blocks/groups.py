"""Groups: a node and the light nodes that only carry its result on, such as ``Conv+BatchNormalization+Relu``."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod

import onnx_ir as ir

from ckplan.answers.blocks.units import Unit, producers_of


def groups_of(nodes: Sequence[ir.Node], units: Sequence[Unit]) -> list[int]:
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


def _flow(nodes: Sequence[ir.Node], units: Sequence[Unit], home: Sequence[int]) -> _Flow:
    """Who reads from whom, given the unit of each node."""
    place = {node: index for index, node in enumerate(nodes)}
    firsts = [index for index, first in enumerate(home) if first == index]
    sources: dict[int, set[int]] = {first: set() for first in firsts}
    readers: dict[int, set[int]] = {first: set() for first in firsts}
    sizes = dict.fromkeys(firsts, -1)
    for index, node in enumerate(nodes):
        if len(units[index].members) == 1:
            sizes[index] = _elements(node)
        for producer in producers_of(node, place):
            source, reader = home[producer], home[index]
            if source != reader:
                sources[reader].add(source)
                readers[source].add(reader)
                sizes[source] = max(sizes[source], _elements(nodes[producer]))
    return _Flow(sources, readers, sizes)


def _joined(units: Sequence[Unit], flow: _Flow) -> tuple[dict[int, int], dict[int, int]]:
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


def _merged(units: Sequence[Unit], flow: _Flow, group: Mapping[int, int], end: Mapping[int, int]) -> dict[int, int]:
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


def members_of(groups: Sequence[int]) -> list[Sequence[int]]:
    """The nodes of each group, in order."""
    members: dict[int, list[int]] = defaultdict(list)
    for index, group in enumerate(groups):
        members[group].append(index)
    return list(members.values())

"""The blocks of a network and their names, on two levels.

A *group* is a node and the light nodes that only carry its result on; every forward node is in one. A *layer* is a
longer stretch of the forward pass that stands there several times.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Literal

import onnx_ir as ir

from ckplan.answers.blocks.groups import groups_of, members_of
from ckplan.answers.blocks.layers import Signatures, layers_of
from ckplan.answers.blocks.units import Unit, operator_of, unit_names, units_of
from ckplan.model.traits import is_backward

Level = Literal["layer", "group"]

_SHOWN = 4
"""Operators in the name of a block."""
_MOVES = frozenset(
    {"Cast", "Expand", "Flatten", "Identity", "Reshape", "Shape", "Split", "Squeeze", "Transpose", "Unsqueeze"}
)
"""Operators that compute nothing; the name of a long block leaves them out."""


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
    units = units_of(nodes)
    groups = groups_of(nodes, units)
    stretches = layers_of(nodes, groups)
    return (
        *_named("layer", nodes, stretches, units, Signatures(nodes)),
        *_named("group", nodes, members_of(groups), units, lambda block: tuple(unit_names(block, units))),
    )


def _named(
    level: Level,
    nodes: Sequence[ir.Node],
    blocks: Sequence[Sequence[int]],
    units: Sequence[Unit],
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
        operators = tuple(operator_of(nodes[index]) for index in same[0])
        name = plain = short_name(unit_names(same[0], units), distinct=level == "layer")
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

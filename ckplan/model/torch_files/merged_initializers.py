"""Initializers that torch's optimiser merged, apart again where the lines of the program name others than are read.

A node says which line it was made of, and that line names its operands: parameters, buffers, and what the program
computed. Where a node reads another initializer in the place of one of them, both held equal numbers when the file was
written. What was computed of equal parameters was merged as well: there the lines of its readers name no parameter in
common.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from itertools import chain

import onnx_ir as ir

from ckplan import keys
from ckplan.model.constants import copy_initializer
from ckplan.model.structure import is_unstructured
from ckplan.model.torch_files.exporter_metadata import (
    KIND,
    OPERAND,
    Operand,
    folded_from,
    line_of,
    operand_of,
    operands_of,
    root_name,
)

_RECURRENT = frozenset({"GRU", "LSTM", "RNN"})
_BIASES = 3
"""The input of a recurrent layer that holds both of its biases."""
_STATES = 5
"""The first of its inputs that are states before the first step."""


@dataclass(frozen=True)
class _Place:
    """An initializer at an input of a node."""

    node: ir.Node
    index: int
    value: ir.Value

    @property
    def is_state(self) -> bool:
        """Whether a recurrent layer begins with the value."""
        return _takes_state(self.node, self.index)

    @property
    def shifts(self) -> bool:
        return self.node.op_type == "Add" or (self.index == 2 and self.node.op_type not in _RECURRENT)


@dataclass(frozen=True)
class _Readers:
    """Places at which one initializer is read, and the parameters that the lines of the nodes there name."""

    names: set[str]
    places: list[_Place]


def separate_merged(graph: ir.Graph, operands: Mapping[str, Operand], present: dict[str, ir.Value]) -> int:
    """Let nodes read the operands that their lines name, where they read others in their places.

    Args:
        graph: the model's.
        operands: the tensors of the program.
        present: those of them that the file has; gets those that it has from now on.

    Returns:
        How many copies there are.
    """
    copies = 0
    for name, place in _matches(graph, operands, present):
        value, operand = place.value, operands[name]
        if operand_of(value):
            if name not in present:
                present[name] = copy_initializer(graph, value, operand.target)
                present[name].metadata_props.update({KIND: operand.kind, OPERAND: name})
                copies += 1
            place.node.replace_input_with(place.index, present[name])
        elif operand.is_parameter and name not in present:
            if value.metadata_props.get(keys.STANDS_FOR, operand.target) != operand.target:
                value = copy_initializer(graph, value, str(value.name))
                place.node.replace_input_with(place.index, value)
                copies += 1
            value.metadata_props[keys.STANDS_FOR] = operand.target
    return copies


def separate_computed(graph: ir.Graph, operands: Mapping[str, Operand]) -> int:
    """Copy what was computed of several equal parameters and merged: lines that read it name none in common.

    Zeros and the like may be of no parameter; of which they are, `_matches` tells.

    Returns:
        How many copies there are.
    """
    copies = 0
    parameters = {operand.target for operand in operands.values() if operand.is_parameter}
    for value, groups in _readers_of_computed(graph, operands).items():
        targets = {operands[name].target for group in groups for name in group.names}
        # What is computed of a parameter that no such line names, as a table of positions that layers share, is one.
        is_of_them = not targets.isdisjoint(folded_from(value)) if folded_from(value) else value.name in parameters
        recurrent = all(place.node.op_type in _RECURRENT for group in groups for place in group.places)
        for group in groups[1:] if is_of_them and (recurrent or is_unstructured(value)) else ():
            copy = copy_initializer(graph, value, str(value.name))
            copies += 1
            for place in group.places:
                place.node.replace_input_with(place.index, copy)
    return copies


def _readers_of_computed(graph: ir.Graph, operands: Mapping[str, Operand]) -> dict[ir.Value, list[_Readers]]:
    """Who reads what was computed of parameters, apart where the lines name no parameter in common."""
    readers: dict[ir.Value, list[_Readers]] = defaultdict(list)
    for node in graph:
        read = operands_of(line_of(node))
        named = {name for name in read if name in operands and operands[name].is_parameter}
        for place in _places([node]) if named else ():
            if operand_of(place.value):
                continue
            groups = readers[place.value]
            joined = [group for group in groups if not named.isdisjoint(group.names)]
            apart = [group for group in groups if named.isdisjoint(group.names)]
            names = named.union(*(group.names for group in joined))
            groups[:] = [*apart, _Readers(names, [*chain.from_iterable(group.places for group in joined), place])]
    return readers


def _matches(
    graph: ir.Graph, operands: Mapping[str, Operand], present: Mapping[str, ir.Value]
) -> list[tuple[str, _Place]]:
    """Which operands of the program are read in the place of others: each with where."""
    lines: dict[str, list[ir.Node]] = defaultdict(list)
    for node in graph:
        if line := line_of(node):
            lines[line].append(node)
    found: list[tuple[str, _Place]] = []
    for line, nodes in lines.items():
        named = [name for name in operands_of(line) if name in operands and _may_be_merged(present.get(name))]
        strange: list[_Place] = []
        layers = sum(node.op_type in _RECURRENT for node in nodes)
        for place in _places(nodes):
            name = operand_of(place.value)
            state = state_of(place.node, place.index)
            if state in named:
                named.remove(state)
                if layers == 1:  # else each reads a part
                    found.append((state, place))
                continue
            if name in named:
                named.remove(name)
            elif not _is_of_several(place) and not _is_named(place, line, operands):
                strange.append(place)
        for shifts in (False, True):
            names = [name for name in named if ("bias" in operands[name].target.rpartition(".")[2]) == shifts]
            places = [place for place in strange if place.shifts == shifts]
            if len(names) == len(places):
                found.extend(zip(names, places, strict=True))
            elif len(named) == len(strange):
                found.extend(zip(named, strange, strict=True))
                break
    return found


def _may_be_merged(value: ir.Value | None) -> bool:
    """Whether an operand may be missing where it is read: nodes read indices as they are, which places do not count."""
    return value is None or value.dtype is None or value.dtype.is_floating_point()


def _is_named(place: _Place, line: str, operands: Collection[str]) -> bool:
    """Whether a line names what a node reads as something that the program computed, or something merged with that."""
    computed = (root_name(name) for name in operands_of(line) if name not in operands)
    return root_name(str(place.value.name)) in computed


def _is_of_several(place: _Place) -> bool:
    """Whether what a node reads stands for no parameter: for several, or for none."""
    if place.node.op_type in _RECURRENT:
        return place.index == _BIASES or place.is_state
    return place.value.metadata_props.get(keys.STANDS_FOR) == ""


def _places(nodes: list[ir.Node]) -> list[_Place]:
    return [
        _Place(node, index, value)
        for node in nodes
        for index, value in enumerate(node.inputs)
        if value is not None
        and value.is_initializer()
        and value.dtype is not None
        and value.dtype.is_floating_point()
        and (operand_of(value) or len(value.shape or ()) > 0)
    ]


def is_state(value: ir.Value) -> bool:
    """Whether an initializer is what recurrent layers begin with, ``[directions, batch, hidden]``, and nothing else."""
    return bool(value.uses()) and all(_takes_state(node, index) for node, index in value.uses())


def state_of(node: ir.Node, index: int) -> str:
    """What the program calls the states of which a recurrent layer reads its first, if these are at an input of a node.

    Args:
        node: any.
        index: the number of the input.

    Returns:
        The name; empty where the input takes no states, or the node's line names none.
    """
    named = operands_of(line_of(node))
    number = 1 + index - _STATES  # behind the sequence
    return named[number] if _takes_state(node, index) and number < len(named) else ""


def _takes_state(node: ir.Node, index: int) -> bool:
    return node.op_type in _RECURRENT and index in (_STATES, _STATES + 1)

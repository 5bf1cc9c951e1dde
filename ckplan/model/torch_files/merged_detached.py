"""Nodes that torch's optimiser merged although the module detaches what one of them reads.

Since `detach` is not written down, a term and the same term of what is detached look alike, as the two of a vector
quantiser's loss do: the codebook moves to the encoder's output in one, the encoder's output to the codebook in the
other. One is left, and its line says what that one detaches.

Of a term of one difference, of which one side is detached, the other term detaches the other side: torch numbers what
it detaches, and where the next number is gone, it went with that term. Elsewhere it cannot be known where gradients
stop in what is gone.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable

import onnx_ir as ir

from ckplan.display import shortened
from ckplan.model.node_copies import copy_nodes
from ckplan.model.torch_files.detached import detached_inputs, mark
from ckplan.model.torch_files.exporter_metadata import (
    is_moved_name,
    known_names,
    line_of,
    made_by,
    operands_of,
    root_name,
)

_READERS = re.compile(r"\[num_users=(\d+)\]")
_DETACHED = re.compile(r"detach(?:_(\d+))?")
_MOST_NODES = 16
"""The longest term that is computed of a difference."""

_Readers = dict[tuple[ir.Node, str], list[ir.Node]]
"""Nodes that read a value under the name of what was merged with it, by the node that makes it and that name."""


def separate_merged_detached(model: ir.Model) -> tuple[str, ...]:
    """Take terms apart, in place, that were merged though they detach different things, as far as that is known.

    Returns:
        Notes: which are apart again, and of which it cannot be known.
    """
    graph = model.graph
    merged = _merged(graph)
    lost = _lost_numbers(graph) if merged else []
    apart, doubtful = [], []
    for (maker, twin), readers in merged.items():
        told = f"'{twin}' with '{made_by(maker)}'"
        alone = sum(one is maker for one, _ in merged) == 1
        if alone and (number := _separate(graph, maker, twin, readers, lost)) is not None:
            lost.remove(number)
            apart.append(told)
        else:
            doubtful.append(told)
    notes = []
    if apart:
        notes.append(
            "terms of a difference that torch's exporter merged are apart again, each with another side detached: "
            f"{shortened(apart, 3)}"
        )
    if doubtful:
        values = shortened(doubtful, 3)
        notes.append(
            f"torch's exporter merged values that are equal but for what the module detaches ({values}): "
            "where gradients stop in those that are gone, the file does not say, and they may be wrong; ckplan.export "
            "keeps them apart"
        )
    return tuple(notes)


def _merged(graph: ir.Graph) -> _Readers:
    """What was merged with nodes that read something detached.

    A merged node shows in a reader whose line has another name of the same operation for it, one that nothing in the
    file has.
    """
    found: _Readers = {}
    detached = _reading_detached(graph)
    if not detached:
        return found
    known = known_names(graph)
    for reader in graph:
        lost = [name for name in operands_of(line_of(reader)) if name not in known]
        for value in dict.fromkeys(reader.inputs) if lost else ():
            maker = None if value is None else value.producer()
            own = "" if maker is None else made_by(maker)
            if maker is None or not own or is_moved_name(own):
                continue
            twins = [name for name in lost if root_name(name) == root_name(own)]
            for twin in twins if maker in detached else ():
                found.setdefault((maker, twin), []).append(reader)
    return found


def _lost_numbers(graph: ir.Graph) -> list[int]:
    """The numbers of what the program detaches and no line reads, but for the last ones, which leave no gap."""
    names = itertools.chain.from_iterable(operands_of(line) for line in {line_of(node) for node in graph})
    there = set(_numbers(names))
    return [number for number in range(max(there, default=0)) if number not in there]


def _numbers(names: Iterable[str]) -> list[int]:
    """The numbers of those among some names that are of something detached."""
    return [int(found[1] or 0) for found in map(_DETACHED.fullmatch, names) if found]


def _separate(
    graph: ir.Graph, maker: ir.Node, twin: str, readers: Iterable[ir.Node], lost: Collection[int]
) -> int | None:
    """Write the term that was merged with another one for its readers; the number of what it detaches, None if unknown.

    Args:
        graph: of torch's default exporter.
        maker: the last node of the term that is left.
        twin: what the program calls the other one.
        readers: nodes that read it.
        lost: numbers of what is detached in lines that are gone.
    """
    nodes = _term(maker)
    places = [place for reader in readers for place in _places(reader, maker, twin)]
    own = _numbers(operands_of(line_of(nodes[0]))) if nodes else []
    number = own[0] + 1 if own else 0
    if number not in lost or not places:
        return None
    outputs = {str(value.name): twin if value is maker.outputs[0] else "" for node in nodes for value in node.outputs}
    copies: dict[ir.Value, ir.Value] = {}
    made = copy_nodes(nodes, copies, lambda name: outputs.get(name) or f"{twin}/{name}", {})
    graph.insert_after(maker, made)
    (side,) = detached_inputs(nodes[0])
    mark(made[0], [1 - side])
    for reader, index in places:
        reader.replace_input_with(index, copies[maker.outputs[0]])
    return number


def _term(maker: ir.Node) -> list[ir.Node]:
    """The nodes from a difference, of which one side is detached, to what is computed of nothing else; or none."""
    nodes, waiting = {maker}, [maker]
    differences = []
    while waiting:
        node = waiting.pop()
        computed = [value for value in node.inputs if value is not None and not value.is_initializer()]
        if detached_inputs(node):
            is_difference = node.op_type == "Sub" and len(computed) == 2 and len(detached_inputs(node)) == 1
            differences.append(node if is_difference else None)
            continue
        for value in computed:
            before = value.producer()
            if before is None or len(nodes) > _MOST_NODES:
                return []
            if before not in nodes:
                nodes.add(before)
                waiting.append(before)
    if len(differences) != 1 or differences[0] is None or maker.graph is None:
        return []
    return [node for node in maker.graph if node in nodes]


def _places(reader: ir.Node, maker: ir.Node, twin: str) -> list[tuple[ir.Node, int]]:
    """Where a node reads a term under the name of the one that was merged with it, as far as its line tells."""
    places = [index for index, value in enumerate(reader.inputs) if value is maker.outputs[0]]
    names = [name for name in operands_of(line_of(reader)) if name in (twin, made_by(maker))]
    if set(names) == {twin}:
        names = [twin] * len(places)
    if len(names) != len(places):
        return []
    return [(reader, index) for index, name in zip(places, names, strict=True) if name == twin]


def _reading_detached(graph: ir.Graph) -> set[ir.Node]:
    """The nodes that read something detached, or read what such a node makes that may have been merged as well.

    What the program has more readers of than the file was not merged: they share that value as it is.
    """
    waiting = [node for node in graph if detached_inputs(node)]
    found = set(waiting)
    while waiting:
        maker = waiting.pop()
        whole = _readers(maker) >= _readers_in_program(maker)
        for reader in (use.node for value in maker.outputs for use in value.uses()):
            if reader not in found and (whole or line_of(reader) == line_of(maker)):
                found.add(reader)
                waiting.append(reader)
    return found


def _readers(node: ir.Node) -> int:
    """How many other lines of the program read what a node makes, in the file."""
    return len({line_of(use.node) for value in node.outputs for use in value.uses()} - {line_of(node)})


def _readers_in_program(node: ir.Node) -> int:
    """How many lines read what a node's line makes, in the program."""
    found = _READERS.search(line_of(node))
    return int(found[1]) if found else 0

"""Layers: longer stretches of the forward pass that stand there several times, such as a transformer block.

They have the same operators, attributes and connections, sizes apart, and are repetitions in the sequence of forward
nodes; see `ckplan.answers.blocks.periods`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np
import numpy.typing as npt
import onnx_ir as ir

from ckplan.answers.blocks.periods import further_places, is_repetition, longest_free, repetitions
from ckplan.answers.blocks.units import operator_of, producers_of
from ckplan.model.traits import is_heavy

_SMALLEST = 3
"""Nodes that make a layer."""
_ANY_NUMBER = frozenset({"Concat", "Max", "Mean", "Min", "Sum"})
"""Operators of any number of inputs, which may grow from layer to layer (DenseNet)."""


def layers_of(nodes: Sequence[ir.Node], groups: Sequence[int]) -> list[Sequence[int]]:
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
    return operator_of(node), attributes, inputs, outputs


def _spelled(attribute: ir.Attr) -> str:
    if attribute.name == "group":
        return str(attribute.value != 1)  # a depthwise convolution has as many groups as channels
    if attribute.type == ir.AttributeType.TENSOR:
        tensor = attribute.as_tensor()
        return f"{tensor.dtype}{tuple(tensor.shape)}"
    if attribute.type == ir.AttributeType.GRAPH:
        return "+".join(operator_of(node) for node in attribute.as_graph())
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
        for source in producers_of(node, place):
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


class Signatures:
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

"""Which nodes of a forward body a backward body recomputes, and which values it takes from storage."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, field

import onnx_ir as ir

from ckplan.model.node_reads import reads


@dataclass
class Cone:
    """The part of a forward body that gradients need.

    Attributes:
        repeated: nodes to run again.
        taken: values to take from storage, in the order they were met.
        entering: other values read: inputs of the body and values from outside.
    """

    repeated: set[ir.Node] = field(default_factory=set)
    taken: dict[ir.Value, None] = field(default_factory=dict)
    entering: dict[ir.Value, None] = field(default_factory=dict)


def read_from_outside(nodes: Iterable[ir.Node], results: Iterable[ir.Value]) -> list[ir.Value]:
    """Return the values that some nodes and a list of results need and that none of the nodes makes."""
    nodes = list(nodes)
    made = {output for node in nodes for output in node.outputs}
    read = dict.fromkeys(value for node in nodes for value in sorted(reads(node), key=lambda v: str(v.name)))
    read.update(dict.fromkeys(results))
    return [value for value in read if value not in made]


def cone_of(frontier: Iterable[ir.Value], forward: Collection[ir.Node], is_taken: Callable[[ir.Value], bool]) -> Cone:
    """Walk back from what gradients read to what is stored or enters the body.

    Args:
        frontier: values that the gradients read.
        forward: the nodes of the forward body.
        is_taken: whether a value that one of these nodes makes comes from storage.
    """
    cone = Cone()
    pending = list(frontier)
    while pending:
        value = pending.pop()
        producer = value.producer()
        if producer is None or producer not in forward:
            cone.entering[value] = None
        elif is_taken(value):
            cone.taken[value] = None
        elif producer not in cone.repeated:
            cone.repeated.add(producer)
            pending.extend(sorted(reads(producer), key=lambda v: str(v.name), reverse=True))
    return cone


def leaner_cone(
    frontier: Sequence[ir.Value],
    forward: Sequence[ir.Node],
    is_taken: Callable[[ir.Value], bool],
    weight: Callable[[ir.Value], int],
) -> Cone:
    """Walk back as :func:`cone_of` does, but store the result of a node in place of what it reads where that is less.

    The sum of two matrix products is as good for the gradient as the two, and takes half of their memory.

    Args:
        frontier: values that the gradients read.
        forward: the nodes of the forward body, in order.
        is_taken: whether a value that one of these nodes makes comes from storage if it is needed.
        weight: bytes that storing a value takes, 0 where it is there anyway.
    """
    members, swapped = set(forward), set[ir.Value]()

    def cone(more: set[ir.Value]) -> Cone:
        return cone_of(frontier, members, lambda value: value in more or is_taken(value))

    best = cone(swapped)
    for node in forward:
        if node not in best.repeated or len(node.outputs) != 1 or best.taken.keys().isdisjoint(reads(node)):
            continue
        tried = {*swapped, *node.outputs}
        found = cone(tried)
        before, after = (sum(weight(value) for value in one.taken) for one in (best, found))
        if after < before or (after == before and len(found.repeated) < len(best.repeated)):
            best, swapped = found, tried
    return best

"""The forward pass as a graph of weighted nodes, and its lower sets: what `lower_sets` works on."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckplan.planner.problem import Kind, Problem

_MOST_NODES = 640
"""Graphs of more forward ops are coarsened to about this many nodes."""


@dataclass(frozen=True)
class ForwardGraph:
    """Forward ops, one or several consecutive ones a node, in a topological order.

    Attributes:
        ops: the op ids of each node.
        bytes: bytes of activations that each node makes.
        held: the part of it that later nodes read.
        cost: seconds of each node that keeping its outputs saves.
        edges: [i, j]: node j reads what node i makes.
    """

    ops: tuple[tuple[int, ...], ...]
    bytes: npt.NDArray[np.float64]
    held: npt.NDArray[np.float64]
    cost: npt.NDArray[np.float64]
    edges: npt.NDArray[np.bool_]


def contract(problem: Problem, most_nodes: int = _MOST_NODES) -> ForwardGraph:
    """The forward graph of a problem, with runs of consecutive ops as one node where there are too many.

    Views are free, and so is an activation whose only reader overwrites it. What cannot be recomputed is held
    in any case and counts nothing.
    """
    forward = problem.forward
    length = -(-len(forward) // most_nodes) if forward else 1
    ops = tuple(tuple(forward[start : start + length]) for start in range(0, len(forward), length))
    node_of = {index: node for node, members in enumerate(ops) for index in members}
    size = np.zeros(len(ops))
    held = np.zeros(len(ops))
    cost = np.zeros(len(ops))
    edges = np.zeros((len(ops), len(ops)), bool)
    for index, node in node_of.items():
        op = problem.ops[index]
        if op.recomputable:
            cost[node] += op.cost
        for tensor in op.outputs:
            readers = [node_of[reader] for reader in problem.consumers[tensor] if reader in node_of]
            for reader in readers:
                if reader != node:
                    edges[node, reader] = True
            if op.recomputable and _takes_memory(problem, tensor):
                size[node] += problem.tensors[tensor].bytes
                if any(reader != node for reader in readers):
                    held[node] += problem.tensors[tensor].bytes
    return ForwardGraph(ops, size, held, cost, edges)


def _takes_memory(problem: Problem, tensor: int) -> bool:
    if problem.view_root[tensor] != tensor or problem.tensors[tensor].kind is not Kind.ACTIVATION:
        return False
    readers = problem.consumers[tensor]
    return not (len(readers) == 1 and any(tensor in bases for bases in problem.ops[readers[0]].inplace.values()))


def principal_lower_sets(graph: ForwardGraph) -> npt.NDArray[np.bool_]:
    """The empty set, each node with all that it needs, and the whole graph; a row each."""
    count = len(graph.ops)
    needs = np.eye(count, dtype=bool)
    for node in range(count):
        for source in np.flatnonzero(graph.edges[:node, node]):
            needs[node] |= needs[source]
    rows = np.packbits(np.vstack([np.zeros((1, count), bool), needs, np.ones((1, count), bool)]), axis=1)
    found = np.frombuffer(b"".join(sorted({row.tobytes() for row in rows})), np.uint8)
    return np.unpackbits(found.reshape(-1, rows.shape[1]), axis=1, count=count).astype(bool)


def all_lower_sets(graph: ForwardGraph, limit: int) -> npt.NDArray[np.bool_] | None:
    """All lower sets, a row each, or None if there are more than ``limit``."""
    count = len(graph.ops)
    needs = [sum(1 << source for source in np.flatnonzero(graph.edges[:, node]).tolist()) for node in range(count)]
    readers = [np.flatnonzero(graph.edges[node]).tolist() for node in range(count)]
    found = {0}
    waiting = [(0, [node for node in range(count) if not needs[node]])]  # each set with the nodes that it may grow by
    while waiting:
        current, ready = waiting.pop()
        for node in ready:
            grown = current | 1 << node
            if grown in found:
                continue
            if len(found) >= limit:
                return None
            found.add(grown)
            freed = [reader for reader in readers[node] if needs[reader] & ~grown == 0]
            waiting.append((grown, sorted([*(other for other in ready if other != node), *freed])))
    rows = [[bool(members >> node & 1) for node in range(count)] for members in found]
    return np.array(rows, bool)

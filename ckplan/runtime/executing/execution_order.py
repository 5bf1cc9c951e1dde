"""A model of the order in which onnxruntime executes a graph by default.

``ExecutionOrder.DEFAULT`` walks back from the leaves, the nodes whose outputs no node reads: the leaf that stands last
in the file is finished first, and among the nodes that a node reads from, the one that stands last is finished first
(``core/graph/graph_viewer.cc``, ``Graph::ReverseDFSFrom``). A node that optimisers put in place of others stands behind
all nodes of the file; they go through a graph in this order, too.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from collections.abc import Set as AbstractSet

import onnx_ir as ir

from ckplan.model.node_reads import reads


def predecessors(nodes: Sequence[ir.Node]) -> list[list[int]]:
    """For each node, the positions of the nodes it reads from, ascending, each once.

    The nodes may stand in any order.
    """
    place = {node: position for position, node in enumerate(nodes)}
    found = []
    for node in nodes:
        makers = {producer for value in reads(node) if (producer := value.producer()) is not None}
        found.append(sorted(place[maker] for maker in makers if maker in place))
    return found


def by_rank(before: Sequence[Sequence[int]], rank: Sequence[int]) -> list[int]:
    """Positions by the ranks of their nodes, each behind those that it reads from; of equal ranks the first is first.

    Args:
        before: for each node the positions it reads from; see `predecessors`.
        rank: of each node.
    """
    readers: list[list[int]] = [[] for _ in before]
    for position, makers in enumerate(before):
        for maker in makers:
            readers[maker].append(position)
    waits = [len(makers) for makers in before]
    ready = [(rank[position], position) for position, waited in enumerate(waits) if not waited]
    heapq.heapify(ready)
    order = []
    while ready:
        _, position = heapq.heappop(ready)
        order.append(position)
        for reader in readers[position]:
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, (rank[reader], reader))
    return order


def default_order(
    before: Sequence[Sequence[int]], fused: AbstractSet[int] = frozenset(), file: Sequence[int] | None = None
) -> list[int]:
    """Positions in the order of ``ExecutionOrder.DEFAULT``.

    Args:
        before: for each node the positions it reads from, ascending (see `predecessors`).
        fused: the positions of nodes that optimisers make of several ones of the file.
        file: the positions as their nodes stand in the file, by default ascending.
    """
    order = _walk(before) if file is None else order_of_file(before, file)
    if not fused:
        return order
    place = {position: step for step, position in enumerate(order)}
    made = sorted(fused, key=place.__getitem__)
    left = (position for position in file or range(len(before)) if position not in fused)
    return order_of_file(before, [*left, *made])


def order_of_file(before: Sequence[Sequence[int]], file: Sequence[int]) -> list[int]:
    """The order of ``ExecutionOrder.DEFAULT`` for nodes that stand in another order.

    Args:
        before: for each node the nodes it reads from.
        file: the nodes as they stand in the file.
    """
    place = {node: position for position, node in enumerate(file)}
    return [file[position] for position in _walk([sorted(place[other] for other in before[node]) for node in file])]


def _walk(before: Sequence[Sequence[int]]) -> list[int]:
    """Positions in the order in which a walk back from the leaves finishes them, what stands last first."""
    is_leaf = [True] * len(before)
    for positions in before:
        for position in positions:
            is_leaf[position] = False
    visited = [False] * len(before)
    order: list[int] = []
    stack = [(position, False) for position, leaf in enumerate(is_leaf) if leaf]
    while stack:
        position, finished = stack.pop()
        if finished:
            order.append(position)
        elif not visited[position]:
            visited[position] = True
            stack.append((position, True))
            stack.extend((maker, False) for maker in before[position] if not visited[maker])
    return order

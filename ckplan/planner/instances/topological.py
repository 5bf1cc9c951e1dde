"""Topological order that finishes one branch before it starts the next."""

from __future__ import annotations

from collections.abc import Sequence

from ckplan.errors import ModelError


def depth_first_order(predecessors: Sequence[Sequence[int]], priority: Sequence[int]) -> list[int]:
    """Order nodes so that each stands after its predecessors and, where possible, right after one of them.

    Running a branch to its end keeps fewer branches open than running all of them abreast.

    Args:
        predecessors: for each node the nodes that it needs.
        priority: among nodes that are equally good the one with the lowest number comes first.

    Raises:
        ModelError: the graph has a cycle.
    """
    successors: list[list[int]] = [[] for _ in predecessors]
    waiting = [len(set(before)) for before in predecessors]
    for node, before in enumerate(predecessors):
        for source in set(before):
            successors[source].append(node)
    # The top of the stack is the node that became ready last.
    stack = sorted((node for node, count in enumerate(waiting) if not count), key=lambda node: -priority[node])
    order = []
    while stack:
        node = stack.pop()
        order.append(node)
        for follower in sorted(successors[node], key=lambda node: -priority[node]):
            waiting[follower] -= 1
            if not waiting[follower]:
                stack.append(follower)
    if len(order) < len(predecessors):
        raise ModelError("the graph has a cycle")
    return order

"""Orders without repeats: when each backward op runs.

A weight gradient that reads the last copy of an activation frees it; a sum that merges two partial gradients
frees one of them. Running such ops as soon as they can run is never worse locally, and costs no compute. Nor does
running those late that make more than they free: a gradient right before the op that reads it, so that a derivative
that it is multiplied by is made, and what that is made of gone, before it is there.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ckplan.planner.beam_order import forward_orders
from ckplan.planner.demanded_order import demanded_order
from ckplan.planner.peak import peak_of
from ckplan.planner.phases import backward_phases, phase_order
from ckplan.planner.problem import Op, Problem

_GROUPS = (2, 4, 8, 16, 32)
"""Numbers of groups of the forward pass by which the backward pass is ordered."""
_MOST_OPS = 20_000
"""Ops of the largest graph for which orders by groups are made."""
_LATE = 0.995
"""Below which part of another order's peak that of a demanded or a late order must lie: strategies find more in a
natural one."""


def eager_order(problem: Problem) -> list[int]:
    """The natural order with every backward op that shrinks memory pulled forward to where it becomes ready.

    Greedy list scheduling, almost linear in the number of reads. An op shrinks memory when the activations that it is
    the last reader of are at least twice as large as what it makes, outputs of the file included in neither: both are
    alive while it runs, so less would only move the peak.
    """
    ops, root = problem.ops, problem.view_root
    waiting = [sum(problem.producer[t] >= 0 for t in set(op.inputs)) for op in ops]
    left, readers = _reads(problem)
    done = [False] * len(ops)
    order: list[int] = []
    shrinking: dict[int, int] = {}  # ready ops that shrink memory, and by how much

    def consider(index: int) -> None:
        if ops[index].backward and not done[index] and not waiting[index]:
            gain = _shrinks_by(problem, ops[index], left)
            if gain:
                shrinking[index] = gain

    def run(index: int) -> None:
        done[index] = True
        order.append(index)
        shrinking.pop(index, None)
        read = {root[tensor] for tensor in ops[index].inputs}
        for tensor in set(ops[index].inputs):
            left[root[tensor]] -= 1
        for tensor in ops[index].outputs:
            for reader in problem.consumers[tensor]:
                waiting[reader] -= 1
                consider(reader)
        for base in read:
            if 0 < left[base] <= 2:
                for reader in readers[base]:
                    consider(reader)

    for index in range(len(ops)):
        while ops[index].backward and shrinking:
            run(max(shrinking, key=lambda ready: (shrinking[ready], -ready)))
        if not done[index]:
            run(index)
    return order


def _reads(problem: Problem) -> tuple[list[int], list[list[int]]]:
    """How often all views of each root are read, and the backward ops among those that read them."""
    count = [0] * len(problem.tensors)
    backward: list[list[int]] = [[] for _ in problem.tensors]
    for index, op in enumerate(problem.ops):
        for tensor in set(op.inputs):
            root = problem.view_root[tensor]
            count[root] += 1
            if op.backward:
                backward[root].append(index)
    return count, backward


def _shrinks_by(problem: Problem, op: Op, left: Sequence[int]) -> int:
    """Bytes of activations that an op frees beyond those that it makes; 0 where it does not shrink memory.

    Args:
        problem: the ops and tensors.
        op: an op that is ready.
        left: reads left of all views of each root.
    """
    made = problem.activation_bytes(tensor for tensor in op.outputs if tensor not in op.views)
    read = [problem.view_root[tensor] for tensor in set(op.inputs)]
    freed = problem.activation_bytes(base for base in set(read) if left[base] == read.count(base))
    return freed - made if freed >= 2 * made else 0


def late_order(problem: Problem, order: Sequence[int]) -> list[int]:
    """An order with every backward op that makes more than it frees put off until right before its first reader.

    The mirror of `eager_order`, made of an order that is there. Almost linear in the number of reads. What an op frees
    is told by the order as it was.

    Args:
        problem: the ops and tensors.
        order: op ids, none of them twice.
    """
    ops, root = problem.ops, problem.view_root
    last = {root[tensor]: index for index in order for tensor in ops[index].inputs}

    def grows(index: int) -> bool:
        op = ops[index]
        freed = {root[tensor] for tensor in op.inputs if last[root[tensor]] == index}
        made = problem.activation_bytes(tensor for tensor in op.outputs if tensor not in op.views)
        return made > problem.activation_bytes(freed)

    # An op that stays and all that is put off until before it, in reverse; the last group first. What waits for an op
    # stands behind it and is deeper.
    groups: list[list[int]] = []
    group, depth = [0] * len(ops), [0] * len(ops)
    for index in reversed(order):
        op = ops[index]
        readers = {reader for tensor in op.outputs for reader in problem.consumers[tensor]}
        if op.backward and readers and (set(op.outputs) <= op.views.keys() or grows(index)):
            group[index] = max(group[reader] for reader in readers)
            members = groups[group[index]]
            place = next(place for place in reversed(range(len(members))) if members[place] in readers)
            depth[index] = depth[members[place]] + 1
            place += 1
            while place < len(members) and depth[members[place]] >= depth[index]:
                place += 1
            members.insert(place, index)
        else:
            group[index] = len(groups)
            groups.append([index])
    return [index for members in reversed(groups) for index in reversed(members)]


def best_order(problem: Problem) -> Sequence[int]:
    """The order without repeats that has the lowest simulated peak.

    Of the natural, the eager and the demanded one, and the late one made of that; in a graph without a backward pass,
    of the natural one and those of `ckplan.planner.beam_order.forward_orders`.
    """
    return searched_orders(problem)[0]


@lru_cache(maxsize=8)
def searched_orders(problem: Problem) -> tuple[Sequence[int], ...]:
    """The best order, and where that is a demanded one, the best of those that run the forward pass first.

    A demanded order makes all gradients of a block before the next one begins, and holds what they are summed up to
    meanwhile: the lowest peak with recomputation may be that of the other.
    """
    usual: Sequence[int] = min(_usual_orders(problem), key=lambda order: peak_of(problem, order))
    if not problem.backward:
        return (usual,)
    demanded = demanded_order(problem)
    if peak_of(problem, demanded) < _LATE * peak_of(problem, usual):
        return _or_late(problem, demanded), _or_late(problem, usual)
    return (_or_late(problem, usual),)


def _or_late(problem: Problem, order: Sequence[int]) -> Sequence[int]:
    """The late order made of one that is there, if its peak is lower."""
    late = late_order(problem, order)
    return late if peak_of(problem, late) < _LATE * peak_of(problem, order) else order


@lru_cache(maxsize=8)
def orders(problem: Problem) -> tuple[tuple[int, ...], ...]:
    """Orders without repeats, the one of the lowest peak first: those of `best_order`, and orders by phases.

    In these the backward ops that read what a group of forward ops makes run one after the other, as they have to where
    groups are recomputed.
    """
    found = [tuple(order) for order in (best_order(problem), *_usual_orders(problem))]
    if problem.backward and len(problem.ops) <= _MOST_OPS:
        for count in _GROUPS:
            group = [0] * len(problem.ops)
            for place, index in enumerate(problem.forward):
                group[index] = place * count // len(problem.forward)
            found.append(tuple(phase_order(problem, backward_phases(problem, group))))
    return tuple(sorted(dict.fromkeys(found), key=lambda order: peak_of(problem, order)))


@lru_cache(maxsize=2)
def _usual_orders(problem: Problem) -> tuple[Sequence[int], ...]:
    others = [eager_order(problem)] if problem.backward else forward_orders(problem)
    return (range(len(problem.ops)), *others)

"""The true optimum of a small problem, by looking at every state that a schedule can come to.

Written without regard to speed and without a thought shared with `ckplan.planner.exact`: copies are let go one at a
time, whenever one likes, and an op may run whenever its inputs are there.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from ckplan.planner import Kind, Problem

UNCOUNTED = -1

Copy = tuple[int, int]
"""A tensor and the buffer that its latest copy lies in."""
State = tuple[frozenset[int], frozenset[Copy], tuple[tuple[int, int], ...]]
"""Ops that ran, copies that will still be read, bytes of the buffers."""


def least_cost(problem: Problem, budget: int) -> float | None:
    """Seconds of the cheapest schedule within a budget, over all orders and repeats; None if there is none."""
    start: State = (frozenset(), frozenset(), ())
    queue: list[tuple[float, int, State]] = [(0.0, 0, start)]
    seen: set[State] = set()
    count = 0
    while queue:
        cost, _, state = heapq.heappop(queue)
        if state in seen:
            continue
        seen.add(state)
        if len(state[0]) == len(problem.ops):
            return cost
        for price, after in moves(problem, state, budget):
            if after not in seen:
                count += 1
                heapq.heappush(queue, (cost + price, count, after))
    return None


def moves(problem: Problem, state: State, budget: int) -> Iterator[tuple[float, State]]:
    done, copies, sizes = state
    for copy in copies:
        yield 0.0, tidy(done, copies - {copy}, dict(sizes))
    for index, op in enumerate(problem.ops):
        if index in done and (op.backward or not op.recomputable):
            continue
        for last in ([], *([source] for source in dict.fromkeys(s for o in op.inplace.values() for s in o))):
            after = run(problem, state, index, budget, last)
            if after is not None:
                yield op.cost, after


def run(problem: Problem, state: State, index: int, budget: int, last: list[int]) -> State | None:
    """Run an op; `last` are inputs that nothing reads afterwards."""
    done, copies, sizes = state
    op, tensors = problem.ops[index], problem.tensors
    where = {tensor: buffer for tensor, buffer in copies if tensor not in op.outputs}
    size = dict(sizes)
    for tensor in op.inputs:
        if problem.producer[tensor] >= 0 and tensor not in where:
            return None
    sharing = {b: [t for t in where if where[t] == b] for b in where.values()}
    alive = {buffer for buffer in where.values() if buffer != UNCOUNTED}
    made: dict[int, int] = {}
    for tensor in op.outputs:
        source = op.views.get(tensor)
        overwritten = [
            where[other]
            for other in op.inplace.get(tensor, ())
            if other in last
            and where.get(other, UNCOUNTED) != UNCOUNTED
            and sharing[where[other]] == [other]
            and op.inputs.count(other) == 1
            and tensors[other].bytes == tensors[tensor].bytes
            and where[other] not in made.values()
        ]
        if tensors[tensor].kind is Kind.OUTPUT and index not in done:
            made[tensor] = UNCOUNTED
        elif source is not None:
            made[tensor] = where.get(source, UNCOUNTED)
        elif overwritten:
            made[tensor] = overwritten[0]
        else:
            fresh = max(size, default=0) + 1
            size[fresh] = tensors[tensor].bytes
            made[tensor] = fresh
            alive.add(fresh)
    if sum(size[buffer] for buffer in alive) + op.workspace > budget:
        return None
    left = {tensor: buffer for tensor, buffer in where.items() if tensor not in last} | made
    return tidy(done | {index}, frozenset((t, b) for t, b in left.items() if problem.consumers[t]), size)


def tidy(done: frozenset[int], copies: frozenset[Copy], size: dict[int, int]) -> State:
    """Buffers numbered in the order of their tensors, so that equal states are equal."""
    number = {UNCOUNTED: UNCOUNTED}
    for _, buffer in sorted(copies):
        number.setdefault(buffer, len(number))
    renamed = frozenset((tensor, number[buffer]) for tensor, buffer in copies)
    return done, renamed, tuple(sorted((new, size[old]) for old, new in number.items() if old != UNCOUNTED))

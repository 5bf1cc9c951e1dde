"""From a choice of what to keep to a schedule: everything else is recomputed where it is read.

The forward pass runs as it is. In the backward pass, an activation that is neither kept nor alive is
recomputed right before its first reader, from what is kept, and then stays until its last reader. For a set
of kept tensors that cuts the forward pass into segments this is Chen et al.'s schedule (arXiv:1604.06174):
a segment is run again as a whole when the backward pass arrives at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ckplan.planner.problem import Problem


def kept_closure(problem: Problem, kept: Collection[int]) -> set[int]:
    """All tensors that are available in the backward pass when ``kept`` are held.

    That is: the given tensors with every view of the same memory, what cannot be recomputed, and what is
    resident or returned anyway.
    """
    return set(np.flatnonzero(_available(problem, kept)).tolist())


def _available(problem: Problem, kept: Collection[int]) -> npt.NDArray[np.bool_]:
    """For each tensor whether it is in `kept_closure`."""
    root, held = _facts(problem).root, _facts(problem).always.copy()
    held[root[np.fromiter(kept, np.int64, len(kept))]] = True
    available: npt.NDArray[np.bool_] = held | held[root]
    return available


@dataclass(frozen=True)
class _Facts:
    """What does not depend on what is kept.

    Attributes:
        root: for each tensor its root.
        always: for each tensor whether no plan recomputes it.
        forward: for each tensor whether a forward op makes it.
        needs: for each op what it reads of what may have to be recomputed, the first one last.
        reader: a backward op for each tensor that it reads.
        read: these tensors.
    """

    root: npt.NDArray[np.int64]
    always: npt.NDArray[np.bool_]
    forward: npt.NDArray[np.bool_]
    needs: list[tuple[int, ...]]
    reader: npt.NDArray[np.int64]
    read: npt.NDArray[np.int64]


@lru_cache(maxsize=8)
def _facts(problem: Problem) -> _Facts:
    always, forward = (np.zeros(len(problem.tensors), bool) for _ in range(2))
    always[list(problem.always_held)] = True
    forward[[tensor for index in problem.forward for tensor in problem.ops[index].outputs]] = True
    may_go = (forward & ~always).tolist()
    needs = [tuple(tensor for tensor in reversed(op.inputs) if may_go[tensor]) for op in problem.ops]
    pairs = np.array([(i, t) for i in problem.backward for t in problem.ops[i].inputs], np.int64).reshape(-1, 2)
    return _Facts(np.array(problem.view_root, np.int64), always, forward, needs, pairs[:, 0], pairs[:, 1])


def recompute_schedule(problem: Problem, kept: Collection[int], order: Sequence[int] | None = None) -> list[int]:
    """The schedule that keeps ``kept`` and recomputes the rest.

    Args:
        problem: the ops and tensors.
        kept: ids of forward tensors to hold until the backward pass has read them.
        order: order of all ops without repeats; the problem's own by default.

    Returns:
        Op ids in execution order.
    """
    ops, facts = problem.ops, _facts(problem)
    maker, needs = problem.producer, facts.needs
    gone = ~_available(problem, kept) & facts.forward
    missing = gone.tolist()
    schedule: list[int] = []
    start, order = 0, range(len(ops)) if order is None else order
    for place in _readers(problem, gone, order):
        schedule += order[start:place]
        start = place
        stack = list(needs[order[place]])
        while stack:
            tensor = stack.pop()
            if tensor < 0:  # by now all is there that the maker of its complement reads
                if missing[~tensor]:
                    schedule.append(maker[~tensor])
                    for made in ops[maker[~tensor]].outputs:
                        missing[made] = False
            elif missing[tensor]:
                stack.append(~tensor)
                stack += needs[maker[tensor]]
    schedule += order[start:]
    return schedule


def _readers(problem: Problem, gone: npt.NDArray[np.bool_], order: Sequence[int]) -> list[int]:
    """The places in an order of the backward ops that read what is gone when the forward pass has ended."""
    facts = _facts(problem)
    reads = np.zeros(len(problem.ops), bool)
    reads[facts.reader[gone[facts.read]]] = True
    places: list[int] = np.flatnonzero(reads[np.fromiter(order, np.int64, len(order))]).tolist()
    return places


@dataclass(frozen=True, slots=True)
class _Viewing:
    """What an op has to do with views that may be of memory that was made anew, and can be made anew themselves.

    Attributes:
        reads: the views that it reads, each with its root and the op that makes it.
        renews: the roots that it makes and that have views.
        views: the views that it makes, each with its root.
    """

    reads: tuple[tuple[int, int, int], ...]
    renews: tuple[int, ...]
    views: tuple[tuple[int, int], ...]


@lru_cache(maxsize=8)
def _viewing(problem: Problem) -> dict[int, _Viewing]:
    """What the ops have to do with views that have something to do with any."""
    root, producer, ops = problem.view_root, problem.producer, problem.ops

    def runs_again(maker: int) -> bool:
        return maker >= 0 and ops[maker].repeatable

    views = {t for t, base in enumerate(root) if base != t and runs_again(producer[t]) and runs_again(producer[base])}
    viewed = {root[tensor] for tensor in views}
    found: dict[int, _Viewing] = {}
    for index, op in enumerate(ops):
        one = _Viewing(
            tuple((tensor, root[tensor], producer[tensor]) for tensor in op.inputs if tensor in views),
            tuple(tensor for tensor in op.outputs if tensor in viewed),
            tuple((tensor, root[tensor]) for tensor in op.outputs if tensor in views),
        )
        if one.reads or one.renews or one.views:
            found[index] = one
    return found


def with_views(problem: Problem, schedule: Sequence[int]) -> list[int]:
    """The schedule, with views made anew where they are read after what they are views of was made anew."""
    viewing = _viewing(problem)
    if not viewing:
        return list(schedule)
    made = [0] * len(problem.tensors)
    stands_for = [-1] * len(problem.tensors)
    result: list[int] = []

    def run(index: int) -> None:
        viewed = viewing[index]
        for view, base, maker in viewed.reads:
            if stands_for[view] != made[base]:
                run(maker)
        result.append(index)
        for base in viewed.renews:
            made[base] += 1
        for view, base in viewed.views:
            stands_for[view] = made[base]

    done = 0
    for step in [step for step, index in enumerate(schedule) if index in viewing]:
        result += schedule[done:step]
        run(schedule[step])
        done = step + 1
    result += schedule[done:]
    return result

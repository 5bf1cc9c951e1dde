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
    """For each tensor its root, whether no plan recomputes it, and whether a forward op makes it."""

    root: npt.NDArray[np.int64]
    always: npt.NDArray[np.bool_]
    forward: npt.NDArray[np.bool_]


@lru_cache(maxsize=8)
def _facts(problem: Problem) -> _Facts:
    always, forward = (np.zeros(len(problem.tensors), bool) for _ in range(2))
    always[list(problem.always_held)] = True
    forward[[tensor for index in problem.forward for tensor in problem.ops[index].outputs]] = True
    return _Facts(np.array(problem.view_root, np.int64), always, forward)


def recompute_schedule(problem: Problem, kept: Collection[int], order: Sequence[int] | None = None) -> list[int]:
    """The schedule that keeps ``kept`` and recomputes the rest.

    Args:
        problem: the ops and tensors.
        kept: ids of forward tensors to hold until the backward pass has read them.
        order: order of all ops without repeats; the problem's own by default.

    Returns:
        Op ids in execution order.
    """
    ops, producer = problem.ops, problem.producer
    missing = set(np.flatnonzero(~_available(problem, kept) & _facts(problem).forward).tolist())
    schedule: list[int] = []
    for index in order if order is not None else range(len(ops)):
        if ops[index].backward and not missing.isdisjoint(ops[index].inputs):
            stack = list(reversed(ops[index].inputs))
            while stack:
                tensor = stack.pop()
                if tensor < 0:  # by now all is there that the maker of its complement reads
                    if ~tensor in missing:
                        schedule.append(producer[~tensor])
                        missing.difference_update(ops[producer[~tensor]].outputs)
                elif tensor in missing:
                    stack.append(~tensor)
                    stack += reversed(ops[producer[tensor]].inputs)
        schedule.append(index)
    return schedule


def with_views(problem: Problem, schedule: Sequence[int]) -> list[int]:
    """The schedule, with views made anew where they are read after what they are views of was made anew."""
    root, producer = problem.view_root, problem.producer
    if not any(op.views for op in problem.ops):
        return list(schedule)
    made = [0] * len(problem.tensors)
    stands_for = [-1] * len(problem.tensors)
    result: list[int] = []

    def run(index: int) -> None:
        for tensor in problem.ops[index].inputs:
            base = root[tensor]
            maker = producer[tensor]
            stale = tensor != base and maker >= 0 and stands_for[tensor] != made[base]
            if stale and problem.ops[maker].recomputable and not problem.ops[maker].backward:
                run(maker)
        result.append(index)
        for tensor in problem.ops[index].outputs:
            if root[tensor] == tensor:
                made[tensor] += 1
            stands_for[tensor] = made[root[tensor]]

    for index in schedule:
        run(index)
    return result

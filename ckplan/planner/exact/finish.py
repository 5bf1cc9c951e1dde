"""Finishing a plan by constraint programming: the cheapest schedule along the plan's own order."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Final

from ckplan.planner.exact.intervals import IntervalModel
from ckplan.planner.peak import peak_of
from ckplan.planner.phases import without_dead_repeats
from ckplan.planner.problem import Problem
from ckplan.planner.retain import retain

_SHORT: Final = 200
"""Ops of the longest order along which one search does. Along longer ones, for which there is too little work for a
proof, one thread searches the simplified model and then the model itself: each finds what the other does not."""


def repeatable(problem: Problem) -> int:
    """How many ops may run again: what the size of the model goes by."""
    return sum(op.repeatable for op in problem.ops)


def finished(
    problem: Problem,
    budget: int,
    start: Sequence[int] | None,
    order: Sequence[int],
    *,
    repeats: int = 1,
    seconds: float = math.inf,
    work: float = math.inf,
    workers: int = 1,
    seed: int = 0,
) -> tuple[list[int] | None, bool]:
    """The cheapest schedule within a budget that constraint programming finds along one order; None if none is found.

    And whether it is proven that with so many repeats there is no cheaper one, or none at all.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        start: a schedule within the budget whose first runs are in the order, to begin with; None if there is none.
        order: all ops once.
        repeats: how often an op may run again, where the start does not do so more often.
        seconds: time limit.
        work: limit in the solver's deterministic units; with one worker and no time limit the result is reproducible.
        workers: threads of the solver.
        seed: of its random choices.
    """
    runs = Counter(start or ())
    model = IntervalModel(problem, budget, order, [max(repeats, runs[index] - 1) for index in range(len(problem.ops))])
    attempts = (True,) if workers > 1 or len(order) <= _SHORT else (True, False)
    deadline = time.monotonic() + seconds
    best: list[int] | None = None
    for simplify in attempts:
        if (begin := best or start) is not None:
            model.hint(begin)
        left = max(deadline - time.monotonic(), 0.0)
        found, proven = model.solve(left, workers, seed, work / len(attempts), simplify=simplify)
        if found is not None:
            found = without_dead_repeats(problem, found)
            if peak_of(problem, found) <= budget:
                found = retain(problem, found, budget)
                best = found if best is None else min(best, found, key=problem.schedule_cost)
            else:
                proven = False
        if proven:
            break
    return best, proven

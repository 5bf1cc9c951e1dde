"""Finishing a plan by constraint programming: the cheapest schedule along the plan's own order."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence

from ckplan.planner.exact.intervals import IntervalModel
from ckplan.planner.peak import peak_of
from ckplan.planner.phases import without_dead_repeats
from ckplan.planner.problem import Problem
from ckplan.planner.retain import retain


def repeatable(problem: Problem) -> int:
    """How many ops may run again: what the size of the model goes by."""
    return sum(problem.ops[index].recomputable for index in problem.forward)


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
    if start is not None:
        model.hint(start)
    found, proven = model.solve(seconds, workers, seed, work)
    if found is None:
        return None, proven
    found = without_dead_repeats(problem, found)
    return (retain(problem, found, budget), proven) if peak_of(problem, found) <= budget else (None, False)

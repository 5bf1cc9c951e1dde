"""Ruin and recreate: repeats of a schedule are left out, and what is then too much is shaved off in another way.

Schrimpf et al., "Record Breaking Optimization Results Using the Ruin and Recreate Principle" (Journal of Computational
Physics 159, 2000). Eviction (`ckplan.planner.search.improve`) makes a whole schedule anew for each change. Here all
of it stays but what is near the repeats that were left out, so that many small changes add up: that finds what is
cheaper close to the lowest peak, where one tensor that is kept decides on all that follows.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from functools import partial
from statistics import NormalDist

import numpy as np

from ckplan.planner.copies import Copies
from ckplan.planner.problem import Problem
from ckplan.planner.recompute import with_views
from ckplan.planner.retain import retain
from ckplan.planner.shave import shave

_SHARES = (0.03, 0.07, 0.15, 0.3)
"""Shares of the repeats that are left out at once."""
_FACTORS = (
    None,
    *(tuple(math.exp(NormalDist(0.0, spread).inv_cdf((n + 0.5) / 256)) for n in range(256)) for spread in (0.3, 1.0)),
)
"""Of which the factors are drawn of the prices that shaving goes by: quantiles of logarithmic normal distributions,
of which it is drawn in a fifth of the time."""
_LEEWAY = 1.03
"""How much more than is allowed a schedule may cost before repeats are dropped where there is room."""


def rebuilt(
    problem: Problem,
    schedule: Sequence[int],
    budget: int,
    steps: int,
    seed: int = 0,
    deadline: float = math.inf,
) -> list[int]:
    """A schedule at most as dear as a given one, within the same budget, along the same order of first runs.

    Each schedule takes O(ops x rounds of shaving), some milliseconds for 500 ops.

    Args:
        problem: the ops and tensors.
        schedule: where to start; its peak is within the budget.
        budget: bytes of activations.
        steps: how many schedules to try. The result depends on the seed and the steps alone, unless the deadline comes
            before.
        seed: of the random choices.
        deadline: `time.monotonic` after which no other schedule is tried.
    """
    rng = random.Random(seed)
    best, cost = list(schedule), problem.schedule_cost(schedule)
    for _ in range(steps):
        if cost <= problem.cost or time.monotonic() > deadline:
            break
        factors = rng.choice(_FACTORS)
        left = with_views(problem, _ruined(problem, best, rng))
        drawn = None if factors is None else partial(_drawn, rng, factors)
        found = shave(problem, left, budget, cost * _LEEWAY, drawn)
        if found is None:
            continue
        found = retain(problem, found, budget, cost)
        if (total := problem.schedule_cost(found)) < cost:
            best, cost = found, total
    return best


def _drawn(rng: random.Random, factors: Sequence[float], count: int) -> list[float]:
    """So many of some factors, at random."""
    return rng.choices(factors, k=count)


def _ruined(problem: Problem, schedule: Sequence[int], rng: random.Random) -> list[int]:
    """A schedule without some of its repeats: those of a stretch of time or of the graph, or any."""
    repeats = np.flatnonzero(Copies.of(problem, tuple(schedule)).again).tolist()
    count = max(1, int(len(repeats) * rng.choice(_SHARES)))
    kind = rng.random()
    if kind < 0.8:
        if kind < 0.4:
            repeats.sort(key=schedule.__getitem__)
        place = rng.randrange(len(repeats))
        dropped = set(repeats[max(0, place - count // 2) : place + count // 2 + 1])
    else:
        dropped = set(rng.sample(repeats, count))
    return [index for step, index in enumerate(schedule) if step not in dropped]

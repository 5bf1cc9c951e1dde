"""Shaving peaks: tensors that are not read for a while give way where too much is alive, and are made again for a read.

Eviction goes through a graph once and decides by what is alive at that moment. Here a whole schedule is there, so that
it is known what will have died when a tensor is read next: what has to run again is counted with that, and whether the
memory then has room for it is simulated. The excess over the budget falls with every change, so that chains of
recomputations cannot evict each other. That suits wide graphs, with or without a backward pass, that need a little less
memory than they take.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice

import numpy as np

from ckplan.planner.copies import Copies, Integers
from ckplan.planner.pauses import Factors, Pause, Pauses
from ckplan.planner.peak import live_bytes
from ckplan.planner.problem import Problem
from ckplan.planner.recompute import with_views

_ROUNDS = 400
"""How often the schedule is looked at anew at most."""
_FURTHEST = 1.5
"""How many times the budget a schedule may take: one that takes more is no longer a matter of single peaks."""
_TOGETHER = 8
"""How many changes are made at once, though each leaves something else. That takes a fraction of the time, and costs
less than many more at once, or than only those that do not overlap."""
_SINGLE = 48
"""How many changes are tried by themselves where several at once do not help."""
_ROUNDING = 1e-9
"""By how much sums of seconds may differ that are added up in another order, in the cost of a step."""


def shave(
    problem: Problem,
    schedule: Sequence[int],
    budget: int,
    most_cost: float = float("inf"),
    factors: Factors | None = None,
) -> list[int] | None:
    """A schedule within a budget, made of one that exceeds it.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; valid.
        budget: bytes of activations.
        most_cost: seconds that the schedule must not exceed.
        factors: asked for what to multiply prices with, so that other changes are the cheapest; None for nothing.

    Returns:
        Op ids in execution order, or None where nothing lowers the excess any further, or too much is missing.
    """
    best = list(schedule)
    live = live_bytes(problem, best)
    if live.max(initial=0) > _FURTHEST * budget:
        return None
    copies, cost = Copies.of(problem, tuple(best)), problem.schedule_cost(best)
    for _ in range(_ROUNDS):
        excess = _excess(live, budget)
        if excess == 0:
            return best
        left = most_cost - cost + _ROUNDING * problem.cost
        pauses = Pauses(problem, copies, live, budget, factors, left)
        for chosen in _attempts(pauses):
            if sum(pause.cost for pause in chosen) > left:
                continue
            changed = _with_repeats(problem, best, chosen)
            after = Copies(problem, changed)
            alive = after.live()
            if _excess(alive, budget) < excess and (total := problem.schedule_cost(changed)) <= most_cost:
                break
        else:
            return None
        best, copies, live, cost = changed, after, alive, total
    return best if _excess(live, budget) == 0 else None


def _excess(live: Integers, budget: int) -> int:
    """Bytes over the budget, of all steps together."""
    return int(np.maximum(live - budget, 0).sum())


def _attempts(pauses: Pauses) -> Iterator[Sequence[Pause]]:
    """Pauses to make use of at once: some together, then ever fewer, then single ones."""
    chosen = pauses.together(_TOGETHER)
    while len(chosen) > 1:
        yield chosen
        chosen = chosen[: len(chosen) // 2]
    for pause in islice(pauses.cheapest_first(), _SINGLE):
        yield [pause]


def _with_repeats(problem: Problem, schedule: Sequence[int], pauses: Sequence[Pause]) -> list[int]:
    """The schedule with what the end of each pause needs run before it."""
    changed: list[int] = []
    done = 0
    for pause in sorted(pauses, key=lambda pause: pause.stop):
        changed += schedule[done : pause.stop]
        changed += pause.again
        done = pause.stop
    return with_views(problem, [*changed, *schedule[done:]])

"""Strategies for which a plan for less is a plan for more."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from typing import ClassVar, Protocol

from ckplan.planner.bounds import lower_bound
from ckplan.planner.order import best_order
from ckplan.planner.overhead_bound import bound_curve
from ckplan.planner.peak import peak_of
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Problem
from ckplan.planner.retain import retain
from ckplan.planner.strategies.base import Strategy

MOST_OPS = 2_000
"""Ops of the largest graph for which more than one budget is planned for."""

Judged = tuple[float, int, tuple[int, ...]]
"""Seconds, peak, and the schedule."""


class Pooled(Protocol):
    """What has schedules that do not depend on a budget."""

    def pool(self, problem: Problem) -> Iterable[Sequence[int]]:
        """These schedules."""


class MonotoneStrategy(Strategy):
    """A strategy that a larger budget never leads to a dearer plan or to a refusal.

    A method that goes by the budget is at the mercy of chance: a little more room may lead it to a worse place. So the
    budgets that plans are made for are fixed by the graph, in small steps, and of all plans within the budget
    that was asked for the cheapest is taken. Budgets are gone through downwards until a bound proves that less memory
    cannot cost less. For graphs of more than 2000 ops only the budget itself is planned for.
    """

    step: ClassVar[float] = 1.005
    """Ratio of one budget that plans are made for to the next."""
    retained: ClassVar[int] = 8
    """Of how many schedules of the pool within a budget as much is retained as there is room for."""

    @abstractmethod
    def pool(self, problem: Problem) -> Iterable[Sequence[int]]:
        """Schedules that do not depend on a budget, those without recomputation and of the lowest peak included."""

    def planned_for(self, problem: Problem, budget: int) -> Iterable[Sequence[int]]:
        """Schedules within a budget (bytes of activations): of the pool, without the repeats that there is room for.

        The cheapest ones, and the one of the lowest peak, which leaves most room.
        """
        fitting = [entry for entry in judged_pool(self, problem) if entry[1] <= budget]
        lowest = [min(fitting, key=lambda entry: entry[1])] if fitting else []
        for _, _, schedule in (*fitting[: self.retained], *lowest):
            yield retain(problem, schedule, budget)

    def solve(self, problem: Problem, budget: int | None = None) -> Plan:
        """The plan of the lowest peak, or the cheapest found within a budget.

        Raises:
            InfeasibleError: the lowest peak that was found exceeds the budget.
        """
        if budget is None:
            return super().solve(problem)
        order = best_order(problem)
        if peak_of(problem, order) <= budget:
            return self.choose(problem, [order], budget)
        return self.choose(problem, self._within(problem, budget), budget)

    def cheaper(self, problem: Problem, budget: int, most_cost: float) -> Sequence[int] | None:
        """What `solve` plans if it costs less than something else, else None; see `Strategy.cheaper`."""
        judged = (
            (problem.schedule_cost(schedule), peak_of(problem, schedule), schedule)
            for schedule in self._within(problem, budget, most_cost)
        )
        fitting = (one for one in judged if one[0] < most_cost and one[1] <= budget)
        best = min(fitting, key=lambda one: one[:2], default=None)
        return None if best is None else best[2]

    def _within(self, problem: Problem, budget: int, most_cost: float = math.inf) -> Iterator[Sequence[int]]:
        """The schedules of which the cheapest within a budget is one, if it costs less than so many seconds."""
        pool = judged_pool(self, problem)
        yield from (schedule for _, _, schedule in pool)
        least = min((cost for cost, peak, _ in pool if peak <= budget), default=math.inf)
        least = min(least, most_cost)
        for rung in [budget] if len(problem.ops) > MOST_OPS else rungs(problem, budget, self.step):
            if bound_below(problem, rung) >= least - problem.cost:
                break
            if (found := cheapest_planned(self, problem, rung)) is not None:
                yield found[1]
                least = min(least, found[0])


@lru_cache(maxsize=16)
def judged_pool(strategy: Pooled, problem: Problem) -> tuple[Judged, ...]:
    """The schedules of a strategy that do not depend on a budget, the cheapest first."""
    schedules = dict.fromkeys(tuple(schedule) for schedule in strategy.pool(problem))
    return tuple(sorted((problem.schedule_cost(found), peak_of(problem, found), found) for found in schedules))


@lru_cache(maxsize=1024)
def cheapest_planned(strategy: MonotoneStrategy, problem: Problem, rung: int) -> tuple[float, Sequence[int]] | None:
    """Seconds and schedule of the cheapest plan made for a rung; kept, since all budgets above it look at it."""
    planned = strategy.planned_for(problem, rung)
    judged = [(problem.schedule_cost(plan), peak_of(problem, plan), plan) for plan in planned]
    cost, _, plan = min((one for one in judged if one[1] <= rung), key=lambda one: one[:2], default=(0.0, 0, None))
    return None if plan is None else (cost, plan)


def rungs(problem: Problem, budget: int, step: float) -> list[int]:
    """The budgets up to a given one that plans are made for, the largest first."""
    rung, found = max(lower_bound(problem)[0], 1), []
    while rung <= budget:
        found.append(rung)
        rung = max(int(rung * step), rung + 1)
    return found[::-1]


def bound_below(problem: Problem, budget: int) -> float:
    """Seconds of recomputation that no schedule within a budget can avoid; never less for a smaller budget."""
    values = (value - price * (budget - own) for value, price, own in bound_curve(problem) if budget >= own)
    return max(values, default=0.0)

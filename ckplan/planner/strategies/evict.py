"""`evict`: drop what is cheapest to recompute when memory runs out, with the future known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import chain
from typing import ClassVar

from ckplan.planner.bounds import lower_bound
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Problem
from ckplan.planner.search import evictions, within
from ckplan.planner.strategies.base import one_more_forward
from ckplan.planner.strategies.monotone import MonotoneStrategy, bound_below, cheapest_planned, rungs

_POOLED_OPS = 2_000
"""Ops of the largest graph whose lowest peak is looked for before a budget is planned for."""


@dataclass(frozen=True)
class Evict(MonotoneStrategy):
    """Run the graph within the budget, evicting what costs least to recompute for its bytes and its time unused.

    Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021, arXiv:2006.09616) made offline: the order of ops is
    known, so the time to the next use stands for the time since the last one, and a pass afterwards retains what there
    turns out to be room for. Any graph, any number of recomputations; O(n log n), some ten seconds for 100 000 ops.
    Made for a budget: without one, budgets are tried downwards, as long as no more than one more forward pass is spent.
    The wrong choice close to the lowest possible peak, where chains of recomputations evict each other (`search`).
    """

    name: ClassVar[str] = "evict"
    step: ClassVar[float] = 1.03

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, and schedules of the lowest budget that any is found for."""
        order = best_order(problem)
        yield order
        lowest: Iterator[list[int]] = iter(())
        for budget in _budgets(problem):
            found = _evicted(problem, budget)
            first = next(found, None)
            if first is None:
                break
            lowest = chain([first], found)
        yield from lowest

    def pool(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation; for graphs that are not large also what is found without a budget, on the way down."""
        yield best_order(problem)
        for budget in _budgets(problem) if len(problem.ops) <= _POOLED_OPS else ():
            if not (found := _pooled(problem, budget)):
                break
            yield from found

    def planned_for(self, problem: Problem, budget: int) -> Iterable[Sequence[int]]:
        """Schedules by eviction, for several weights."""
        return within(problem, evictions(problem, budget, best_order(problem), 3 * problem.cost), budget)

    def cheaper(self, problem: Problem, budget: int, most_cost: float) -> Sequence[int] | None:
        """What `solve` plans if it costs less than something else, else None; see `Strategy.cheaper`."""
        best: Sequence[int] | None = None
        for rung in _budgets(problem) if len(problem.ops) <= _POOLED_OPS else ():
            if bound_below(problem, rung) >= most_cost - problem.cost or not (found := _pooled(problem, rung)):
                break
            for schedule in found:
                if problem.schedule_cost(schedule) < most_cost and peak_of(problem, schedule) <= budget:
                    best, most_cost = schedule, problem.schedule_cost(schedule)
        for rung in rungs(problem, budget, self.step):
            if bound_below(problem, rung) >= most_cost - problem.cost:
                break
            if (planned := cheapest_planned(self, problem, rung)) is not None and planned[0] < most_cost:
                most_cost, best = planned
        return best


def _budgets(problem: Problem) -> Iterator[int]:
    """Budgets from the peak without recomputation down to what no schedule can do without."""
    budget, bound = peak_of(problem, best_order(problem)), lower_bound(problem)[0]
    while budget > bound:
        budget = max(int(budget * 0.9), bound)
        yield budget


def _evicted(problem: Problem, budget: int) -> Iterator[list[int]]:
    """Schedules within a budget that cost no more than one more forward pass."""
    yield from within(problem, evictions(problem, budget, best_order(problem), one_more_forward(problem)), budget)


@lru_cache(maxsize=128)
def _pooled(problem: Problem, budget: int) -> Sequence[Sequence[int]]:
    """All of these."""
    return tuple(_evicted(problem, budget))

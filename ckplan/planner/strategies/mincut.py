"""`mincut`: keep what a minimum cut chooses at a price per byte."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Problem
from ckplan.planner.retain import retain
from ckplan.planner.search import cut_schedules
from ckplan.planner.strategies.base import Strategy
from ckplan.planner.strategies.memory import Memory


@dataclass(frozen=True)
class MinCut(Strategy):
    """Cut the graph between forward and backward pass where held bytes and repeated compute together cost least.

    The idea of torch's min-cut partitioner (torch/_functorch/partitioners.py), which weighs bytes only and forbids what
    is expensive to repeat. Here each op costs what it costs and each byte a price; the prices are searched, with and
    without boundaries of segments that are kept in any case, and the simulator judges the peak. Exact for its choice,
    and O(cuts) of a flow that is nearly linear in practice. The wrong choice where ops have to run more than twice.
    """

    name: ClassVar[str] = "mincut"

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, and what is cut at each price."""
        return self._candidates(problem, None)

    def solve(self, problem: Problem, budget: int | None = None) -> Plan:
        """The cheapest plan found within the budget, or the one of the lowest peak.

        Raises:
            InfeasibleError: no cut's plan keeps to the budget.
        """
        return self.choose(problem, self._candidates(problem, budget), budget)

    def _candidates(self, problem: Problem, budget: int | None) -> Iterator[Sequence[int]]:
        order = best_order(problem)
        yield order
        if budget is not None and peak_of(problem, order) <= budget:
            return
        boundaries = [(), *Memory().boundaries(problem)]
        for schedule in cut_schedules(problem, order, boundaries):
            peak = peak_of(problem, schedule)
            yield schedule if budget is None or peak > budget else retain(problem, schedule, budget)

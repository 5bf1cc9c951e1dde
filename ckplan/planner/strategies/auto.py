"""`auto`: the best plan for what was asked: within a budget, within an overhead, or at the knee between the two."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ckplan.planner.exact import TooLargeError, optimum_of_lowest_peak
from ckplan.planner.frontier import Effort, cheapest, frontier, knee, lowest
from ckplan.planner.peak import peak_of
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Problem
from ckplan.planner.strategies.base import Strategy, one_more_forward
from ckplan.units import format_bytes

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Auto(Strategy):
    """The cheapest plan within a budget; or the lowest peak within an overhead; or, given neither, the knee.

    Runs what suits the graph and takes the best: reordering alone where that is enough, eviction with the future known,
    minimum cuts, segments, and a local search (`search`); for up to 14 ops the optimum (`exact`). The knee is the plan
    where a further byte begins to cost disproportionately (Satopaa et al., ICDCS Workshops 2011). Plans carry a lower
    bound and the gap to it. The wrong choice only when a certain published method is wanted.

    Attributes:
        overhead: extra compute that the plan may cost, as a ratio of the step (0.1: ten percent); below 0, no limit.
        seconds: time limit; 0 means none.
        steps: schedules that are tried after the seeds, at each budget.
        seed: of the random choices.
    """

    name: ClassVar[str] = "auto"
    overhead: float = -1.0
    seconds: float = 0.0
    steps: int = 16
    seed: int = 0

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """The frontier from no recomputation to the lowest peak."""
        return frontier(problem, Effort(0, self.seed), self._most_cost(problem))

    def solve(self, problem: Problem, budget: int | None = None) -> Plan:
        """The plan that was asked for.

        Raises:
            InfeasibleError: no schedule within the budget and the overhead was found.
        """
        effort, most_cost = Effort.lasting(self.seconds, self.steps, self.seed), self._most_cost(problem)
        if budget is not None:
            try:
                optimum = optimum_of_lowest_peak(problem, budget)
            except TooLargeError:
                _log.info("the optimum is not searched for: %d ops are too many", len(problem.ops))
            else:
                if optimum is not None and (self.overhead < 0 or problem.schedule_cost(optimum) <= most_cost):
                    plan = self.choose(problem, [optimum], budget)
                    return replace(plan, overhead_bound=plan.overhead)
            found = cheapest(problem, budget, effort, most_cost=most_cost if self.overhead >= 0 else float("inf"))
            if found is None:
                found = lowest(problem, most_cost if self.overhead >= 0 else 3 * problem.cost, effort)
        elif self.overhead >= 0:
            found = lowest(problem, most_cost, effort)
        else:
            points = frontier(problem, Effort(0, self.seed, effort.deadline), most_cost)
            found = knee(problem, points)
            peaks = [format_bytes(peak_of(problem, schedule)) for schedule in (points[0], points[-1], found)]
            _log.info("%d plans from %s to %s; the knee between saving and cost is at %s", len(points), *peaks)
            if not effort.over:
                found = cheapest(problem, peak_of(problem, found), effort, found) or found
        return self.choose(problem, [found], budget, interrupted=effort.interrupted, prove=True)

    def _most_cost(self, problem: Problem) -> float:
        return problem.cost * (1 + self.overhead) if self.overhead >= 0 else one_more_forward(problem)

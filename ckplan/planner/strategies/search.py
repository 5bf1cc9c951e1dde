"""`search`: the cheapest schedule that several methods and a local search find, for as long as is asked."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.planner.frontier import Effort, cheapest, lowest
from ckplan.planner.order import best_order
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Problem
from ckplan.planner.strategies.base import Strategy, one_more_forward


@dataclass(frozen=True)
class Search(Strategy):
    """Seeds by eviction and by minimum cuts, with and without segments; then a local search from the best.

    Schedules are decoded from a factor for each tensor by eviction with the future known and by retaining what there is
    room for, and the factors are changed for a stretch of the graph or for all tensors that look alike: biased random
    keys (Goncalves & Resende, Journal of Heuristics 17, 2011) in a large neighbourhood. Any graph and any number of
    recomputations; the same result for the same seed and steps, unless a time limit comes first. Anytime: an
    interruption keeps the best schedule so far. The wrong choice when a plan is wanted in a blink (`evict`).

    Attributes:
        steps: schedules that are tried after the seeds.
        seed: of the random choices.
        seconds: time limit; 0 means none.
    """

    name: ClassVar[str] = "search"
    least: ClassVar[Mapping[str, float]] = {"steps": 0, "seed": 0, "seconds": 0}
    steps: int = 40
    seed: int = 0
    seconds: float = 0.0

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, and the lowest peak found within one more forward pass."""
        return [best_order(problem), lowest(problem, one_more_forward(problem), self._effort())]

    def solve(self, problem: Problem, budget: int | None = None) -> Plan:
        """The cheapest plan found within the budget, or the one of the lowest peak.

        Raises:
            InfeasibleError: no schedule within the budget was found.
        """
        effort = self._effort()
        if budget is None:
            found: Sequence[int] | None = lowest(problem, one_more_forward(problem), effort)
        else:
            found = cheapest(problem, budget, effort)
        if found is None:
            found = lowest(problem, 3 * problem.cost, effort)
        return self.choose(problem, [found], budget, interrupted=effort.interrupted, prove=True)

    def _effort(self) -> Effort:
        return Effort.lasting(self.seconds, self.steps, self.seed)

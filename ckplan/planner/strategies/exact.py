"""`exact`: the optimum of a tiny problem, and constraint programming with retention intervals for a small one."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from ckplan.planner.exact.finish import finished, repeatable
from ckplan.planner.exact.stages import staged_overhead
from ckplan.planner.exact.states import TooLargeError, optimum_of_lowest_peak
from ckplan.planner.frontier import Effort, cheapest, lowest
from ckplan.planner.order import best_order
from ckplan.planner.overhead_bound import is_closed
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Problem
from ckplan.planner.strategies.base import Strategy, one_more_forward

_MOST_REPEATABLE = 400
"""Most ops that may run again of a problem for which a model is built."""
_MOST_SECONDS = 60.0
_PROVING = 0.3
"""What of the time is for the bound."""
_WORKERS = 2


@dataclass(frozen=True)
class Exact(Strategy):
    """The cheapest schedule within a budget by search over all of them, where the problem is small enough for that.

    Up to 14 ops: a uniform-cost search over the states of a schedule, all orders and any number of recomputations, so
    that the plan is the optimum and of the lowest peak among the cheapest. Above that retention intervals as in
    Moccasin (Bartan et al., ICML 2023, arXiv:2304.14463): the ops run in the order of the best plan that `search`
    finds, each up to ``repeats`` times again, and CP-SAT improves that plan until it is proven the best of these or the
    time is over. Exponential in the worst case; the same result twice only where a proof ends the solver before the
    time limit. The bound on overhead that comes with the plan is for all schedules, not those of that order alone.
    The wrong choice beyond some hundred nodes, where `search` is as good in a fraction of the time.

    Attributes:
        seconds: time limit of the solver; 0 means what suits the size: 4 s for 100 ops, a minute for 400 and above.
        repeats: how often an op may run again, where the plan to improve does not do so more often.
        seed: of the random choices.
    """

    name: ClassVar[str] = "exact"
    least: ClassVar[Mapping[str, float]] = {"seconds": 0, "repeats": 0, "seed": 0}
    seconds: float = 0.0
    repeats: int = 1
    seed: int = 0

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, and the lowest peak found within one more forward pass."""
        return [best_order(problem), lowest(problem, one_more_forward(problem), Effort(0, self.seed))]

    def solve(self, problem: Problem, budget: int | None = None) -> Plan:
        """The cheapest plan within the budget; without a budget the one of the lowest peak that is found quickly.

        Raises:
            InfeasibleError: no schedule within the budget was found.
        """
        if budget is None:
            return self.choose(problem, self.schedules(problem), None)
        try:
            optimum = optimum_of_lowest_peak(problem, budget)
        except TooLargeError:
            pass
        else:
            if optimum is None:
                return self.choose(problem, self.schedules(problem), budget)
            plan = self.choose(problem, [optimum], budget)
            return replace(plan, overhead_bound=plan.overhead)
        seconds = self.seconds or min(_MOST_SECONDS, (len(problem.ops) / 50) ** 2)
        effort = Effort(40, self.seed, time.monotonic() + seconds)
        bound = 0.0
        start = cheapest(problem, budget, effort)
        candidates = [] if start is None else [start]
        try:
            if not effort.over and repeatable(problem) <= _MOST_REPEATABLE:
                most = math.inf if start is None else problem.schedule_cost(start) - problem.cost
                bound = staged_overhead(problem, budget, seconds * _PROVING, most)
                if not is_closed(problem, bound, most):
                    order = list(best_order(problem)) if start is None else list(dict.fromkeys(start))
                    limits: dict[str, Any] = {"repeats": self.repeats, "seconds": seconds * (1 - _PROVING)}
                    found, _ = finished(problem, budget, start, order, **limits, workers=_WORKERS, seed=self.seed)
                    candidates += [] if found is None else [found]
        except KeyboardInterrupt:
            effort.interrupted = True
        if not candidates:
            return self.choose(problem, self.schedules(problem), budget)
        plan = self.choose(problem, candidates, budget, interrupted=effort.interrupted)
        return replace(plan, overhead_bound=min(bound / problem.cost, plan.overhead))

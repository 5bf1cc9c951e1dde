"""`auto`: the best plan for what was asked: within a budget, within an overhead, or at the knee between the two."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ckplan.planner.exact import TooLargeError, optimum_of_lowest_peak
from ckplan.planner.exact.finish import finished, repeatable
from ckplan.planner.frontier import Effort, cheapest, frontier, knee, lowest
from ckplan.planner.order import best_order, orders
from ckplan.planner.overhead_bound import is_closed, least_overhead, whole_overhead
from ckplan.planner.peak import ALIKE, peak_of
from ckplan.planner.plan import Plan, make_plan
from ckplan.planner.problem import Problem
from ckplan.planner.retain import retain
from ckplan.planner.ruin import rebuilt
from ckplan.planner.search import improve
from ckplan.planner.shave import shave
from ckplan.planner.strategies.auto_stages import SMALL, stages_of
from ckplan.planner.strategies.base import Strategy, one_more_forward
from ckplan.planner.strategies.chen import Chen
from ckplan.planner.strategies.evict import Evict
from ckplan.planner.strategies.lower_sets import LowerSets
from ckplan.planner.strategies.memory import Memory
from ckplan.planner.strategies.mincut import FewCuts, MinCut
from ckplan.planner.strategies.mirror import Mirror
from ckplan.planner.strategies.monotone import bound_below, rungs
from ckplan.planner.strategies.revolve import Revolve
from ckplan.planner.strategies.segments import Segments
from ckplan.planner.strategies.speed import Speed
from ckplan.planner.strategies.sqrt import Sqrt
from ckplan.units import format_bytes

_log = logging.getLogger(__name__)

_QUICK: tuple[Strategy, ...] = (Speed(), Sqrt(), Mirror(), Segments(), Chen())
"""Other strategies that take next to no time."""
_THOROUGH: tuple[tuple[Strategy, int], ...] = (
    (Memory(), 400),
    (Revolve(), 400),
    (MinCut(), 400),
    (FewCuts(), 2_000),
    (Evict(), 100),
    (LowerSets(), 200),
)
"""Those that take some tenths of a second for graphs of so many ops; of larger ones they are not asked."""
_REFUSED = 2_000
"""Ops of the largest graph for which `evict` is asked where nothing else was found."""
_MOST_REPEATABLE = 160
"""Most ops that may run again of a graph whose plan is finished by constraint programming."""
_WORK = 0.6
"""What the solver may do for each of them, divided by the ops of the graph, in its own deterministic units: of about a
second for small graphs, and of the more seconds the more ops there are. What it finds, it mostly finds early."""
_WORK_OF_FIRST = 0.003
"""The same, for all graphs, where nothing has been found yet: a first plan takes longer to find than a better one."""
_FEW = 200
"""Ops of the largest graph for which it may do more: most models of that size it has done with before."""
_WORK_OF_FEW = {1: 0.00225, 2: 0.018}
"""What it may do for each of them there, by how often an op may run again. What it proves is not chance: so most of it
is for a single attempt."""
_BELOW = {2: 0.0045}
"""The same for a budget a little below where what the solver found is chance."""
_AGAIN = {2: 0.009}
"""The same for going on at the budget itself with what was found there."""
_NOTICED = 1e-3
"""The gap between cost and bound, in the cost of a step, for which more schedules are tried."""
_TURNS = 2
"""How often schedules are rebuilt and eviction searches on, in turns."""
_HOPELESS = 6
"""How often eviction may fail there at what is less than the budget until it is not asked for that any more."""
_RUNG = 1.01
"""Ratio of one budget to the next of those that are planned for as well where what the solver found is chance."""
_RUNGS = 2
"""How many of them where nothing has been found, else one."""
_OVERHEAD_STEP = 1.08
"""Ratio of one overhead to the next of those that the lowest peak is looked for within as well."""
_OVERHEADS = 2
"""How many of them."""
_ROUNDING = 1e-9
"""By how much sums of seconds may differ that are added up in another order, as a ratio."""
_SHAVING = 1e-3
"""What it may cost to shave a plan, as a ratio of the step."""


@dataclass(frozen=True)
class Auto(Strategy):
    """The cheapest plan within a budget; or the lowest peak within an overhead; or, given neither, the knee.

    Of peaks that are alike within an overhead, it is the cheaper plan: a few bytes are not worth a tenth of a step.

    Runs what suits the graph and takes the best: reordering alone where that is enough, eviction with the future known,
    minimum cuts, segments, and a local search (`search`); for up to 14 ops the optimum (`exact`). The knee is the plan
    where a further byte begins to cost disproportionately (Satopaa et al., ICDCS Workshops 2011). Plans carry a lower
    bound and the gap to it. The wrong choice only when a certain published method is wanted.

    Attributes:
        overhead: extra compute that the plan may cost, as a ratio of the step (0.1: ten percent); below 0, no limit.
            Nodes cost what shapes tell, unless other costs are asked for, as they are with `--overhead`.
        seconds: time limit; 0 means none.
        steps: schedules that are tried after the seeds, at each budget.
        seed: of the random choices.
    """

    name: ClassVar[str] = "auto"
    least: ClassVar[Mapping[str, float]] = {"overhead": -math.inf, "seconds": 0, "steps": 0, "seed": 0}
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
            most = most_cost if self.overhead >= 0 else math.inf
            found = self._cheapest(problem, budget, effort, most)
            if found is None:
                effort.steps = self.steps  # as without a budget: the lowest peak is the same for all that are too low
                found = lowest(problem, most_cost if self.overhead >= 0 else 3 * problem.cost, effort)
                if peak_of(problem, found) <= budget:
                    found = self._finished(problem, budget, found, effort, most)[0] or found
        elif self.overhead >= 0:
            found = self._lowest(problem, effort)
            if not effort.over:
                found = cheapest(problem, int(peak_of(problem, found) * (1 + ALIKE)), effort, found, most_cost) or found
        else:
            points = frontier(problem, Effort(0, self.seed, effort.deadline), most_cost)
            found = knee(problem, points)
            peaks = [format_bytes(peak_of(problem, schedule)) for schedule in (points[0], points[-1], found)]
            _log.info("%d plans from %s to %s; the knee between saving and cost is at %s", len(points), *peaks)
            if not effort.over:
                found = cheapest(problem, peak_of(problem, found), effort, found) or found
        return self.choose(problem, [found], budget, interrupted=effort.interrupted, prove=True, soon=effort.over)

    def shaved(self, problem: Problem, plan: Plan, budget: int) -> Plan | None:
        """A plan of this strategy with its peaks shaved to a budget a little below, if that costs next to nothing.

        Args:
            problem: what was planned.
            plan: the plan.
            budget: bytes of activations.
        """
        most = plan.cost + _SHAVING * problem.cost
        if self.overhead >= 0:
            most = min(most, problem.cost * (1 + self.overhead))
        found = shave(problem, plan.schedule, budget, most)
        if found is None:
            return None
        made = make_plan(problem, plan.strategy, retain(problem, found, budget))
        return replace(made, overhead_bound=plan.overhead_bound, interrupted=plan.interrupted)

    def _cheapest(self, problem: Problem, budget: int, effort: Effort, most_cost: float) -> list[int] | None:
        """The cheapest schedule within a budget that is found, with what is dear about it recreated."""
        stages = stages_of(problem, self.steps)
        effort.steps = stages.improved
        found = self._finished_cheapest(problem, budget, effort, most_cost)
        if found is None or not stages.rebuilt or effort.over or not self._leaves_gap(problem, budget, found):
            return found
        try:
            found = rebuilt(problem, found, budget, stages.rebuilt, effort.seed, effort.deadline)
            for turn in range(1, _TURNS + 1):
                # From what was found since, eviction may come to what it did not come to before.
                evicted = self._searched(problem, budget, found, effort, turn)
                if problem.schedule_cost(evicted) < problem.schedule_cost(found):
                    found = rebuilt(problem, evicted, budget, stages.rebuilt, effort.seed + turn, effort.deadline)
        except KeyboardInterrupt:
            effort.interrupted = True
        return found

    def _finished_cheapest(self, problem: Problem, budget: int, effort: Effort, most_cost: float) -> list[int] | None:
        """The cheapest schedule within a budget: of the other strategies', improved, and where it is small finished."""
        found = cheapest(problem, budget, effort, most_cost=most_cost)
        other = self._cheapest_of_others(problem, budget, effort, _cost(problem, found, most_cost))
        if other is not None:
            found = self._improved(problem, other, budget, effort)
        if found is not None:
            found = self._searched(problem, budget, found, effort)
        found, settled = self._finished(problem, budget, found, effort, most_cost)
        # Near the lowest peak a plan that eviction makes for less memory may cost less than all those for the budget.
        if not effort.over and len(problem.ops) <= (_REFUSED if found is None else SMALL):
            cheaper = Evict().cheaper(problem, budget, _cost(problem, found, most_cost))
            if cheaper is not None:
                found = self._improved(problem, retain(problem, cheaper, budget), budget, effort)
                found, settled = self._finished(problem, budget, found, effort, most_cost)
        if settled or len(problem.ops) > _FEW:
            return found
        return self._from_below(problem, budget, found, effort, most_cost)

    def _lowest(self, problem: Problem, effort: Effort) -> list[int]:
        """The schedule of the lowest peak within the overhead, or within a little less.

        The search is led by what a schedule may cost, and more room may lead it to a worse place.
        """
        found = lowest(problem, self._most_cost(problem), effort)
        if len(problem.ops) > SMALL:
            return found
        steps = math.ceil(math.log(max(self.overhead, _ROUNDING), _OVERHEAD_STEP)) - 1
        for step in range(steps, steps - _OVERHEADS, -1):
            extra = _OVERHEAD_STEP**step * problem.cost
            if effort.over or bound_below(problem, peak_of(problem, found) - 1) >= extra:
                break
            less = lowest(problem, problem.cost + extra, effort)
            found = min(found, less, key=lambda schedule: (peak_of(problem, schedule), problem.schedule_cost(schedule)))
        return found

    def _improved(
        self, problem: Problem, schedule: Sequence[int], budget: int, effort: Effort, hopeless: int = 0
    ) -> list[int]:
        """A schedule by another strategy, improved in its own order."""
        along = list(dict.fromkeys(schedule))
        steps, seed, deadline = effort.steps, effort.seed, effort.deadline
        return improve(problem, schedule, budget, along, steps, seed, deadline, hopeless=hopeless)

    def _searched(self, problem: Problem, budget: int, found: list[int], effort: Effort, turn: int = 0) -> list[int]:
        """A schedule, improved for longer where a bound leaves a gap that is worth it."""
        steps = stages_of(problem, self.steps).searched
        if not steps or not self._leaves_gap(problem, budget, found):
            return found
        hopeless = _HOPELESS if turn else 0
        return self._improved(problem, found, budget, Effort(steps, effort.seed + 1 + turn, effort.deadline), hopeless)

    def _leaves_gap(self, problem: Problem, budget: int, found: Sequence[int]) -> bool:
        """Whether a bound leaves a gap below a schedule for which more is tried."""
        extra = problem.schedule_cost(found) - problem.cost
        return extra - least_overhead(problem, budget) > _NOTICED * problem.cost

    def _finished(
        self,
        problem: Problem,
        budget: int,
        found: list[int] | None,
        effort: Effort,
        most_cost: float,
        repeated: Mapping[int, float] | None = None,
    ) -> tuple[list[int] | None, bool]:
        """A schedule that constraint programming makes of one where few ops may run again and a bound leaves a gap.

        And whether that is settled: proven, or found to be no cheaper. What is found when the work is over is chance.
        """
        if effort.over or repeatable(problem) > _MOST_REPEATABLE:
            return found, True
        settled, least = True, whole_overhead(problem, budget)
        if repeated is None:
            repeated = _WORK_OF_FEW if len(problem.ops) <= _FEW else {1: _WORK / len(problem.ops)}
            if found is None:
                repeated = {**repeated, 1: _WORK_OF_FIRST}
        for repeats, work in repeated.items():
            if found is not None and is_closed(problem, least, problem.schedule_cost(found) - problem.cost):
                return found, True
            order = list(best_order(problem)) if found is None else list(dict.fromkeys(found))
            left = max(effort.deadline - time.monotonic(), 0.0)
            try:
                better, proven = finished(
                    problem,
                    budget,
                    found,
                    order,
                    repeats=repeats,
                    seconds=left,
                    work=work * repeatable(problem),
                    seed=self.seed,
                )
            except KeyboardInterrupt:
                effort.interrupted = True
                break
            cost = _cost(problem, found, most_cost)
            gained = found is None
            if better is not None and problem.schedule_cost(better) < cost * (1 - _ROUNDING):
                found, gained = better, True
                told = 100 * (problem.schedule_cost(better) / problem.cost - 1)
                _log.info("constraint programming: %.1f %% of compute more", told)
            settled = proven or (settled and not gained)
            if found is None and not proven:
                break  # to find one with more repeats takes longer still
        return found, settled

    def _from_below(
        self, problem: Problem, budget: int, found: list[int] | None, effort: Effort, most_cost: float
    ) -> list[int] | None:
        """A schedule, or a cheaper one that is found for a little less memory, for budgets that the graph fixes."""
        cheaper, most = None, _RUNGS if found is None else 1
        for rung in [rung for rung in rungs(problem, budget, _RUNG) if rung < budget][:most]:
            cost = _cost(problem, cheaper or found, most_cost)
            if effort.over or bound_below(problem, rung) >= cost - problem.cost:
                break
            start = cheapest(problem, rung, effort, most_cost=most_cost)
            below, _ = self._finished(problem, rung, start, effort, most_cost, _BELOW)
            if below is not None and problem.schedule_cost(below) < cost:
                cheaper = retain(problem, below, budget)
        if cheaper is None:
            return found
        return self._finished(problem, budget, cheaper, effort, most_cost, _AGAIN)[0]

    def _cheapest_of_others(self, problem: Problem, budget: int, effort: Effort, most_cost: float) -> list[int] | None:
        """The cheapest schedule within a budget that other strategies have for less than so many seconds."""
        best: list[int] | None = None
        if peak_of(problem, orders(problem)[0]) <= budget:
            return None
        least = problem.cost + (least_overhead(problem, budget) if len(problem.ops) <= SMALL else 0.0)
        thorough = (strategy for strategy, most_ops in _THOROUGH if len(problem.ops) <= most_ops)
        for strategy in (*_QUICK, *thorough):
            if effort.over or most_cost <= least * (1 + _ROUNDING):
                break
            if strategy in _QUICK:
                # What costs a little more may cost less with what there is room for retained; no plan is made of it.
                found: Sequence[int] | None = strategy.best(problem, strategy.schedules(problem), budget)
            else:
                found = strategy.cheaper(problem, budget, most_cost)
            if found is None or peak_of(problem, found) > budget:
                continue
            retained = retain(problem, found, budget, most_cost)
            if (cost := problem.schedule_cost(retained)) < most_cost:
                best, most_cost = retained, cost
        return best

    def _most_cost(self, problem: Problem) -> float:
        return problem.cost * (1 + self.overhead) if self.overhead >= 0 else one_more_forward(problem)


def _cost(problem: Problem, schedule: Sequence[int] | None, most_cost: float) -> float:
    """Seconds that another schedule has to stay below."""
    return most_cost if schedule is None else problem.schedule_cost(schedule)

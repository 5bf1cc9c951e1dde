"""The frontier of peak against overhead, and where each strategy lies beside it, as one value."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ckplan.answers.analysis import Offer, offer, quick_strategies
from ckplan.display import table_html
from ckplan.errors import UsageError
from ckplan.pipeline import Step
from ckplan.planner import Plan, Timeline, lower_bound
from ckplan.planner.frontier import Effort, frontier, knee, undominated
from ckplan.planner.plan import make_plan
from ckplan.planner.strategies import Strategy
from ckplan.planner.strategies.base import one_more_forward
from ckplan.units import format_bytes

_STEPS = 8
"""Schedules that are tried to improve each point of the frontier."""

NAME = "frontier"
"""What stands for a strategy in plans on the frontier that no strategy was asked for."""


@dataclass(frozen=True, slots=True)
class Pareto:
    """What memory costs, from no recomputation to the lowest peak.

    Attributes:
        base: the step without a plan, as onnxruntime runs it.
        points: plans that no other one found beats in peak and in overhead, the cheapest first.
        knee: position in ``points`` of the plan that lies furthest from both ends: what `auto` aims at without a goal.
        offers: what each strategy would give by itself.
        lower_bound: bytes of activations below which no schedule can go.
        interrupted: whether the user ended the search; what was found until then is there.
    """

    base: Timeline
    points: tuple[Plan, ...]
    knee: int
    offers: tuple[Offer, ...]
    lower_bound: int
    interrupted: bool

    def __repr__(self) -> str:
        peaks = [format_bytes(plan.predicted.peak_activations) for plan in (self.points[0], self.points[-1])]
        return f"<Pareto: {len(self.points)} plans from {peaks[0]} to {peaks[1]}>"

    def _repr_html_(self) -> str:
        rows = [(format_bytes(one.predicted.peak_activations), f"{one.overhead:+.1%}") for one in self.points]
        return table_html("Peak of activations and extra compute", rows)


def pareto(
    step: Step,
    strategies: Sequence[Strategy] | None = None,
    *,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> Pareto:
    """Find the frontier of peak against overhead.

    Args:
        step: what to plan.
        strategies: whose own plans to add; by default every strategy, slow ones at a coarser setting.
        seconds: how long to search; what was found until then is returned.
        progress: called with what is being done, in words.

    Raises:
        UsageError: files are to be timed, of which a frontier has none.
    """
    if step.clock is not None:
        raise UsageError("a frontier is drawn of plans, and `--cost clock` times files", "use `--cost calibrated`")
    problem = step.problem
    effort = Effort(_STEPS, deadline=math.inf if seconds is None else time.monotonic() + seconds)
    progress("finding the lowest peak")
    schedules = frontier(
        problem, effort, one_more_forward(problem), lambda done, of: progress(f"planning for budget {done} of {of - 1}")
    )
    offers: list[Offer] = []
    tried = quick_strategies() if strategies is None else strategies
    try:
        for number, strategy in enumerate(tried, start=1):
            if effort.over:
                break
            progress(f"planning with `{strategy}`, {number} of {len(tried)}")
            offers.append(offer(step, strategy, None))
    except KeyboardInterrupt:
        effort.interrupted = True
    reason = "interrupted" if effort.interrupted else "the time was up before it was tried"
    offers += [Offer(str(strategy), None, reason) for strategy in tried[len(offers) :]]
    named = {made.plan.schedule: made.plan for made in reversed(offers) if made.plan is not None}
    best = undominated(problem, [*named, *schedules])
    points = [named.get(tuple(schedule)) or make_plan(problem, NAME, schedule) for schedule in best]
    return Pareto(
        base=step.baseline,
        points=tuple(points),
        knee=best.index(knee(problem, best)),
        offers=tuple(offers),
        lower_bound=lower_bound(problem)[0],
        interrupted=effort.interrupted,
    )

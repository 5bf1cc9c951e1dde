"""Plans for an overhead that holds on the clock: a file is timed beside the step without a plan, and planned again.

What a node costs does not tell what a step costs: nodes that are not repeated are faster where less memory is held, and
slower where another kernel has put something else into the caches. So the planner is asked for more or for less until
the clock shows what the user asked for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Sequence
from dataclasses import replace

import onnx_ir as ir

from ckplan.errors import UsageError
from ckplan.meter.compared import Timing
from ckplan.pipeline.goal import Goal
from ckplan.pipeline.plan_files import by_strategy, without_plan
from ckplan.pipeline.planned import Planned
from ckplan.pipeline.step import Step
from ckplan.planner.peak import ALIKE
from ckplan.planner.strategies import Strategy

Clock = Callable[[ir.Model, ir.Model], Timing]
"""Times a step of a base model and one of another model in turns."""

_log = logging.getLogger(__name__)

_FILES, _PLANS = 6, 10
"""How many files are timed at most, and how many plans are made for them: several goals may have one plan."""

_FARTHEST = 3.0
"""How many times the plan that was cheap on the clock the next one may cost by its nodes."""

_CLOSE = 0.01
"""How far from what was asked for, as a ratio of the step, is close enough: so far a clock can be trusted."""


def rewrite_by_clock(
    step: Step, strategy: Strategy, goal: Goal, clock: Clock, plan: Callable[[Goal], Planned]
) -> Planned:
    """The file of the lowest peak, of those tried, that costs no more on the clock than was asked for.

    Ctrl-C takes the best of those that were timed until then.

    Args:
        step: what is planned.
        strategy: how.
        goal: an overhead.
        clock: what to time files by.
        plan: makes the file for a goal.

    Raises:
        UsageError: the goal is not an overhead alone.
    """
    asked = goal.overhead
    if asked is None or goal.budget is not None or goal.share is not None:
        raise UsageError("`--cost clock` is for a goal of time alone", "give --overhead, without --budget")
    tried: list[Planned] = []
    interrupted = False
    fitting, exceeding, guess = (0.0, 0.0), (math.inf, math.inf), asked
    for _ in range(_PLANS):
        try:
            made = plan(replace(goal, overhead=guess))
            if (known := _same_schedule(made, tried)) is None:
                _log.info("timing file %d beside the step without a plan", len(tried) + 1)
                tried.append(replace(made, timing=clock(step.reference.ordered, made.model)))
        except KeyboardInterrupt:
            if not tried:
                raise
            interrupted = True
            break
        made = known or tried[-1]
        interrupted = interrupted or made.plan.interrupted
        _log.info("on the clock: %+.1f %% for a plan of %+.1f %%", 100 * made.extra_time, 100 * made.plan.overhead)
        if interrupted or abs(made.extra_time - asked) <= _CLOSE:
            break
        if made.extra_time < asked:
            fitting = max(fitting, (guess, made.extra_time))
        else:
            exceeding = min(exceeding, (made.plan.overhead, made.extra_time))
        guess = _between(fitting, exceeding, asked)
        if known is not None and math.isinf(exceeding[0]):
            if fitting[0] >= _FARTHEST * known.plan.overhead:
                break  # no plan is lower
            guess = _FARTHEST * known.plan.overhead
        if len(tried) == _FILES or not fitting[0] < guess < exceeding[0]:
            break
    if interrupted:
        tried = [replace(made, plan=replace(made.plan, interrupted=True)) for made in tried]
    left = [made for made in tried if made.extra_time <= asked + _CLOSE]
    while left:
        made = _lowest(left)
        left.remove(made)
        confirmed = made if interrupted else _timed_again(made, step, clock)
        if confirmed.extra_time <= asked + 2 * _CLOSE:
            return by_strategy(confirmed, str(goal.applied(strategy)))
    return without_plan(step, strategy)


def _lowest(files: Sequence[Planned]) -> Planned:
    """The file of the lowest peak, and of those whose peak is alike the fastest."""
    least = min(made.after.peak_activations for made in files)
    alike = [made for made in files if made.after.peak_activations <= (1 + ALIKE) * least]
    return min(alike, key=lambda made: made.extra_time)


def _between(fitting: tuple[float, float], exceeding: tuple[float, float], asked: float) -> float:
    """The overhead to plan for next, where what the clock tells is taken to grow evenly between what is known.

    Args:
        fitting: the largest overhead that was planned for and cost less than was asked for, and what it cost.
        exceeding: the smallest overhead that cost more, and what it cost; infinite where there is none yet.
        asked: what it is to cost.
    """
    if math.isinf(exceeding[0]):
        overhead, cost = fitting
        evenly = overhead * asked / cost if cost > 0 else math.inf
        return min(max(evenly, overhead + asked - cost), _FARTHEST * overhead)
    share = (asked - fitting[1]) / (exceeding[1] - fitting[1])
    return fitting[0] + min(max(share, 0.1), 0.9) * (exceeding[0] - fitting[0])


def _same_schedule(made: Planned, tried: Sequence[Planned]) -> Planned | None:
    """The file that was timed with the same schedule, if there is one."""
    return next((other for other in tried if other.plan.schedule == made.plan.schedule), None)


def _timed_again(made: Planned, step: Step, clock: Clock) -> Planned:
    """The same with a figure of its own: the best of several figures is too good by chance as often as not."""
    try:
        return replace(made, timing=clock(step.reference.ordered, made.model))
    except KeyboardInterrupt:
        return replace(made, plan=replace(made.plan, interrupted=True))

"""Plans for an overhead that holds on the clock: a file is timed beside the step without a plan, and planned again.

What a node costs does not tell what a step costs: nodes that are not repeated are faster where less memory is held, and
slower where another kernel has put something else into the caches. So the planner is asked for more or for less until
the clock shows what the user asked for.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from dataclasses import replace

import onnx_ir as ir

from ckplan.errors import UsageError
from ckplan.meter.types import Timing
from ckplan.pipeline.goal import Goal
from ckplan.pipeline.planning import Planned, by_strategy, without_plan
from ckplan.pipeline.step import Step
from ckplan.planner.strategies import Strategy

Clock = Callable[[ir.Model, ir.Model], Timing]
"""Times a step of a base model and one of another model in turns."""

_log = logging.getLogger(__name__)

_FILES = 5
"""How many files are timed at most."""

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
    fitting, exceeding, guess = 0.0, math.inf, asked
    while len(tried) < _FILES and not interrupted:
        try:
            made = plan(replace(goal, overhead=guess))
            if any(made.plan.schedule == other.plan.schedule for other in tried):
                break
            _log.info("timing file %d beside the step without a plan", len(tried) + 1)
            tried.append(replace(made, timing=clock(step.reference.ordered, made.model)))
        except KeyboardInterrupt:
            if not tried:
                raise
            interrupted = True
            break
        made = tried[-1]
        interrupted = made.plan.interrupted
        over = made.extra_time - asked
        _log.info("on the clock: %+.1f %% for a plan of %+.1f %%", 100 * made.extra_time, 100 * made.plan.overhead)
        if abs(over) <= _CLOSE:
            break
        if over < 0:
            fitting, guess = max(fitting, guess), guess - over
        else:
            exceeding, guess = min(exceeding, made.plan.overhead), made.plan.overhead - over
        if not fitting < guess < exceeding:
            guess = (fitting + exceeding) / 2
        if guess >= exceeding or exceeding <= fitting:
            break
    if interrupted:
        tried = [replace(made, plan=replace(made.plan, interrupted=True)) for made in tried]
    tried.sort(key=lambda made: (made.after.peak_activations, made.extra_time))
    for made in tried:
        if made.extra_time <= asked + _CLOSE:
            confirmed = made if interrupted else _timed_again(made, step, clock)
            if confirmed.extra_time <= asked + 2 * _CLOSE:
                return by_strategy(confirmed, str(goal.applied(strategy)))
    return without_plan(step, strategy)


def _timed_again(made: Planned, step: Step, clock: Clock) -> Planned:
    """The same with a figure of its own: the best of several figures is too good by chance as often as not."""
    try:
        return replace(made, timing=clock(step.reference.ordered, made.model))
    except KeyboardInterrupt:
        return replace(made, plan=replace(made.plan, interrupted=True))

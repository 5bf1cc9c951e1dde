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

_Tried = tuple[float, Planned]
"""An overhead that was planned for, and the file, timed."""

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
    tried: list[_Tried] = []
    guess = asked
    for turn in range(_PLANS):
        try:
            made = _timed(plan(replace(goal, overhead=guess)), tried, step, clock)
        except KeyboardInterrupt:
            if not tried:
                raise
            return _best_so_far(tried, goal, step, strategy)
        tried.append((guess, made))
        _log.info("on the clock: %+.1f %% for a plan of %+.1f %%", 100 * made.extra_time, 100 * made.plan.overhead)
        if made.plan.interrupted:
            return _best_so_far(tried, goal, step, strategy)
        is_close = abs(made.extra_time - asked) <= _CLOSE
        following = None if is_close or turn == _PLANS - 1 else _next(tried, asked)
        if following is None:
            confirmed, tried = _confirmed(tried, asked, step, clock)
            if confirmed is not None:
                return by_strategy(confirmed, str(goal.applied(strategy)))
            following = _next(tried, asked)
        if following is None:
            break
        guess = following
    return _too_slow(tried, step, strategy)


def _timed(made: Planned, tried: Sequence[_Tried], step: Step, clock: Clock) -> Planned:
    """A file with its time beside that of the step without a plan, which that of the same schedule has already."""
    known = next((other for _, other in tried if other.plan.schedule == made.plan.schedule), None)
    if known is not None:
        return known
    _log.info("timing file %d beside the step without a plan", _files(tried) + 1)
    return replace(made, timing=clock(step.reference.ordered, made.model))


def _files(tried: Sequence[_Tried]) -> int:
    """How many files were timed: several goals may have one plan."""
    return len({tuple(made.plan.schedule) for _, made in tried})


def _next(tried: Sequence[_Tried], asked: float) -> float | None:
    """The overhead to plan for next; None where enough files were timed, or no other is to be expected."""
    faster = [(overhead, made.extra_time) for overhead, made in tried if made.extra_time < asked]
    fitting = max(faster, default=(0.0, 0.0))
    slower = [(made.plan.overhead, made.extra_time) for _, made in tried if made.extra_time >= asked]
    exceeding = min(slower, default=(math.inf, math.inf))
    guess, last = _between(fitting, exceeding, asked), tried[-1][1]
    is_known = any(made.plan.schedule == last.plan.schedule for _, made in tried[:-1])
    if is_known and math.isinf(exceeding[0]):
        guess = _FARTHEST * last.plan.overhead
        if fitting[0] >= guess:
            return None  # no plan is lower
    return guess if _files(tried) < _FILES and fitting[0] < guess < exceeding[0] else None


def _confirmed(tried: Sequence[_Tried], asked: float, step: Step, clock: Clock) -> tuple[Planned | None, list[_Tried]]:
    """The file of the lowest peak that costs no more than was asked for when it is timed once more, if there is one.

    The best of several figures is too good by chance as often as not.

    Returns:
        The file with the later figure; all files, those that did not keep to the earlier one with the later.
    """
    tried = list(tried)
    while left := _fitting(tried, asked):
        best = _lowest(left)
        try:
            again = replace(best, timing=clock(step.reference.ordered, best.model))
        except KeyboardInterrupt:
            return _as_interrupted(best), tried
        if again.extra_time <= asked + 2 * _CLOSE:
            return again, tried
        tried = [(overhead, again if made is best else made) for overhead, made in tried]
    return None, tried


def _as_interrupted(made: Planned) -> Planned:
    """A file of a search that Ctrl-C ended."""
    return replace(made, plan=replace(made.plan, interrupted=True))


def _best_so_far(tried: Sequence[_Tried], goal: Goal, step: Step, strategy: Strategy) -> Planned:
    """What a search that Ctrl-C ended has found: by one figure of each file, as there is no time for another."""
    fitting = _fitting(tried, goal.overhead or 0.0)
    if not fitting:
        return _too_slow(tried, step, strategy)
    return by_strategy(_as_interrupted(_lowest(fitting)), str(goal.applied(strategy)))


def _fitting(tried: Sequence[_Tried], asked: float) -> list[Planned]:
    """The files that cost no more than was asked for, as closely as a clock can be trusted."""
    return [made for _, made in tried if made.extra_time <= asked + _CLOSE]


def _too_slow(tried: Sequence[_Tried], step: Step, strategy: Strategy) -> Planned:
    """The step without a plan, where all files are slower than was asked for."""
    return replace(without_plan(step, strategy), least_extra_time=min(made.extra_time for _, made in tried))


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

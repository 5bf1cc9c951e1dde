"""A plan whose file keeps to a budget of more than activations: of the arena, or of all that a process holds."""

from __future__ import annotations

import logging
import math
from dataclasses import dataclass, replace

from ckplan.errors import InfeasibleError
from ckplan.keys import BUDGET, BUDGET_OF
from ckplan.pipeline.activation_budget import proven_for
from ckplan.pipeline.footprint_files import CLOSE, expected, fixed, with_reservation
from ckplan.pipeline.goal import Goal
from ckplan.pipeline.lowest_footprint import Files, cheapest_lowest, some_lowest
from ckplan.pipeline.plan_files import write_plan
from ckplan.pipeline.planned import HOLDER, Planned, share_of
from ckplan.pipeline.step import Step
from ckplan.planner import Plan, lower_bound
from ckplan.planner.strategies import Strategy
from ckplan.units import format_bytes, format_unlike

_log = logging.getLogger(__name__)

_PLANS, _FILES = 24, 6
"""How many plans are looked at for a file, at most, and how many files are written until one keeps to a budget."""

_LITTLE_LESS = 0.99
"""How much less is asked for at least, as a ratio."""

_NEAR = 1.04
"""Ratio of two budgets between which no other one is looked at."""


@dataclass(frozen=True)
class _Look:
    """A plan that was not written yet.

    Attributes:
        target: bytes of activations that it was made for.
        plan: the plan.
        taken: bytes that the arena is expected to take.
    """

    target: int
    plan: Plan
    taken: int


def within_footprint(step: Step, strategy: Strategy, goal: Goal) -> Planned:
    """Plan for activations that leave room for everything else, less of them where the arena still takes too much.

    What the arena takes does not follow from the peak: it grows by regions, and lays a run's tensors out in one block.
    Where it takes too much, tensors are reserved first of all, so that a run may lie in one region. What a file will
    take is expected of its plan, so that only those are written that may do. What is refused is what no plan of the
    lowest peaks keeps to, either: they are the same for every budget, so the one that a refusal names is kept to.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no file keeps to the budget.
    """
    limit = goal.limit(share_of(step.footprint, goal))
    assert limit is not None  # see `Goal.of`
    besides = fixed(step.footprint, goal)
    most = limit - besides - step.footprint.returned
    if most <= 0:
        named = "parameters, state, inputs, the session and outputs alone take" if besides else "outputs alone take"
        needed, allowed = format_unlike(limit - most, limit)
        raise InfeasibleError(
            f"{named} {needed}, the budget of what {HOLDER[goal.scope]} holds is {allowed}",
            "raise it, or choose an optimizer with less state" if step.footprint.state else "raise it",
        )
    files: Files = {}
    goal = goal.begun
    if goal.seconds is not None:  # are for all plans together
        goal = replace(goal, seconds=float(f"{goal.seconds / _FILES:.2g}"))  # plans and texts name it
    made = _best_packed(step, strategy, goal, limit, most, files)
    if made is None and goal.cheaper_than is not None:
        raise InfeasibleError("another form of the step keeps to the budget for less", "take that one")
    made = made or cheapest_lowest(step, strategy, goal, limit, files)
    return _noted(proven_for(made, most), goal, limit)


def _best_packed(step: Step, strategy: Strategy, goal: Goal, limit: int, most: int, files: Files) -> Planned | None:
    """A file that keeps to a budget, of a plan for as many activations as may be; None if none is found.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.
        limit: the budget in bytes.
        most: bytes of activations to begin with.
        files: of plans of lowest peaks; those that are written are added.

    Raises:
        InfeasibleError: no plan of a lowest peak keeps to it, either: what is refused does not hang on chance.
    """
    room, ratio, smallest = limit - fixed(step.footprint, goal), 1.0, None
    over = _look(step, strategy, goal, most)
    if over is None:
        return None
    found = over if over.taken <= room else None
    for number in range(_FILES):
        if found is not None:
            made = with_reservation(write_plan(step, found.plan), goal, limit, smallest)
            if (share := share_of(made.footprint, goal)) <= limit:
                return made
            _log.info("%s with the file would hold %s", HOLDER[goal.scope], format_bytes(share))
            held = share - fixed(made.footprint, goal)
            smallest = held if smallest is None else min(held, smallest)
            ratio, over = min(held / max(found.taken, 1), CLOSE), found
            if goal.is_over and number:
                return None
        if not number and goal.cheaper_than is None and not goal.is_over:
            some_lowest(step, strategy, goal, limit, files)
        found = _largest(step, strategy, goal, over, int(room / ratio))
        if found is None:
            return None
    return None


def _largest(step: Step, strategy: Strategy, goal: Goal, over: _Look, room: int) -> _Look | None:
    """A plan that is expected to do, for as many activations as may be; None if none is found.

    Plans are made for less and less until one is expected to do, and then for more by halves.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.
        over: a plan that does not do; those that are looked at are for less.
        room: what the arena may take, in bytes.
    """
    under, interrupted = None, over.plan.interrupted
    for _ in range(_PLANS):
        target = _less(over, step, room) if under is None else (under.target + over.target) // 2
        looked = _look(step, strategy, goal, target, interrupted=interrupted)
        if looked is None:
            break
        interrupted = looked.plan.interrupted
        if looked.taken <= room:
            under = looked
        else:
            over = looked
        if under is not None and (goal.is_over or over.target <= _NEAR * under.target):
            break
    return under


def _look(step: Step, strategy: Strategy, goal: Goal, target: int, *, interrupted: bool = False) -> _Look | None:
    """The plan of a strategy for some activations, and what it is expected to take; None if there is none of use.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.
        target: bytes of activations.
        interrupted: whether the user has interrupted the search, so that what is found first is taken.
    """
    if target < lower_bound(step.problem)[0]:
        return None
    asked = goal.at_once if interrupted or goal.is_over else goal
    try:
        plan = asked.applied(strategy).solve(step.problem, target)
    except InfeasibleError:
        return None
    if goal.cheaper_than is not None and plan.cost >= goal.cheaper_than:
        return None
    plan = replace(plan, interrupted=interrupted or plan.interrupted)
    return _Look(target, plan, expected(step, plan, goal))


def _less(over: _Look, step: Step, room: int) -> int:
    """Bytes of activations to look at next below a plan that does not do: half of the way to what would, by ratios."""
    returned = step.footprint.returned
    share = max(room - returned, 0) / max(over.taken - returned, 1)
    peak = over.plan.predicted.peak_activations
    return min(over.target - 1, int(peak * min(_LITTLE_LESS, math.sqrt(share))))


def _noted(made: Planned, goal: Goal, limit: int) -> Planned:
    """The same file, which says what budget of more than activations it keeps to."""
    made.model.metadata_props[BUDGET] = str(limit)
    made.model.metadata_props[BUDGET_OF] = goal.scope
    return replace(made, budget=limit, scope=goal.scope)

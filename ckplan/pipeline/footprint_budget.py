"""A plan whose file keeps to a budget of more than activations: of the arena, or of all that a process holds."""

from __future__ import annotations

import logging
from dataclasses import replace

from ckplan.errors import InfeasibleError
from ckplan.keys import BUDGET, BUDGET_OF
from ckplan.pipeline.activation_budget import within_activations
from ckplan.pipeline.arena_forms import in_pools, reserving
from ckplan.pipeline.goal import ACTIVATIONS, ARENA, TOTAL, Goal
from ckplan.pipeline.lowest import last_resorts
from ckplan.pipeline.plan_files import write_plan
from ckplan.pipeline.planned import HOLDER, Planned, share_of
from ckplan.pipeline.step import Step
from ckplan.planner import lower_bound
from ckplan.planner.strategies import Strategy
from ckplan.runtime.footprint import Footprint
from ckplan.units import format_bytes

_log = logging.getLogger(__name__)

_TRIES = 6
"""How often a file is written until what a process with it holds keeps to a budget of more than activations."""

_LITTLE_LESS = 0.995
"""How much less is asked for at least."""


def within_footprint(step: Step, strategy: Strategy, goal: Goal) -> Planned:
    """Plan for activations that leave room for everything else, less of them where the arena still takes too much.

    What the arena takes does not follow from the peak: it grows by regions, and lays a run's tensors out in one block.
    Where it takes too much, tensors are reserved first of all, so that a run may lie in one region. What is refused is
    what the plan of the lowest peak does not keep to, either: it is the same for every budget, so the one that a
    refusal names is kept to.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no file keeps to the budget.
    """
    limit = goal.limit(share_of(step.footprint, goal))
    assert limit is not None  # see `Goal.of`
    fixed = _fixed(step.footprint, goal)
    target = limit - fixed - step.footprint.returned
    if target <= 0:
        named = "parameters, state, inputs, the session and outputs alone take" if fixed else "outputs alone take"
        raise InfeasibleError(
            f"{named} {format_bytes(limit - target)}, the budget of what {HOLDER[goal.scope]} holds is "
            f"{format_bytes(limit)}",
            "raise it, or choose an optimizer with less state",
        )
    lowest: Planned | None = None
    least, smallest = lower_bound(step.problem)[0], None
    for _ in range(_TRIES):
        if target < least:
            break
        try:
            made = within_activations(step, strategy, replace(goal, budget=target, share=None, scope=ACTIVATIONS))
        except InfeasibleError:
            break
        made, taken = _with_reservation(made, goal, limit, smallest)
        if taken <= (room := limit - _fixed(made.footprint, goal)):
            return _noted(made, goal, limit)
        smallest = taken if smallest is None else min(taken, smallest)
        _log.info("%s with the file would hold %s", HOLDER[goal.scope], format_bytes(limit - room + taken))
        lowest = lowest or _lowest(step, strategy, goal, limit)
        target = min(target - 1, _next_target(made, room, taken))
    return _noted(lowest or _lowest(step, strategy, goal, limit), goal, limit)


def _lowest(step: Step, strategy: Strategy, goal: Goal, limit: int) -> Planned:
    """The cheapest of the plans of lowest peaks whose file keeps to a budget of more than activations.

    The one of the lowest peak of all need not be among them: a peak that is a little higher may pack better. They are
    the same for every budget, and so is what the best of their files takes.

    Raises:
        InfeasibleError: none does.
    """
    best: Planned | None = None
    for plan in sorted(last_resorts(step, strategy, goal, 0), key=lambda plan: plan.cost):
        bound = _fixed(step.footprint, goal) + plan.predicted.peak_activations
        if best is not None and bound >= share_of(best.footprint, goal):
            continue  # no file takes less than its plan, and a plan adds nodes to what a session holds
        made, _ = _with_reservation(write_plan(step, plan), goal, limit)
        if share_of(made.footprint, goal) <= limit:
            return made
        best = made if best is None else min(best, made, key=lambda made: share_of(made.footprint, goal))
    if best is None:
        raise InfeasibleError(
            f"strategy `{strategy}` has no plan{goal.costing} for which {HOLDER[goal.scope]} holds no more than "
            f"{format_bytes(limit)}",
            "allow more overhead, or raise the budget",
        )
    least, fixed = share_of(best.footprint, goal), _fixed(best.footprint, goal)
    moment = best.after.steps[best.after.peak_step]
    parts = f"for a peak of {format_bytes(moment.activations)} at '{moment.op}'"
    if fixed:
        parts = (
            f"{format_bytes(fixed)} of parameters, state, inputs and the session, and an arena of "
            f"{format_bytes(least - fixed)} {parts}"
        )
    raise InfeasibleError(
        f"strategy `{strategy}` has no plan{goal.costing} for which {HOLDER[goal.scope]} holds no more than "
        f"{format_bytes(limit)}: the least that was found is {format_bytes(least)}, {parts}; the arena grows in large "
        "steps",
        f"raise the budget to {least} bytes, or choose a smaller batch (--dim)",
        least,
    )


def _noted(made: Planned, goal: Goal, limit: int) -> Planned:
    """The same file, which says what budget of more than activations it keeps to."""
    made.model.metadata_props[BUDGET] = str(limit)
    made.model.metadata_props[BUDGET_OF] = goal.scope
    return replace(made, budget=limit, scope=goal.scope)


def _with_reservation(made: Planned, goal: Goal, limit: int, most: int | None = None) -> tuple[Planned, int]:
    """A plan's file, and what its arena takes; with tensors reserved first, or in pools, if it takes too much without.

    Args:
        made: the plan in a file.
        goal: what the budget is of.
        limit: the budget in bytes.
        most: what the arena of the best file yet takes: another one that takes more is not worth writing.
    """
    room, taken = limit - _fixed(made.footprint, goal), _taken(made, goal.scope)
    if taken > room:
        best = max(room, taken if most is None else most)
        made = in_pools(made, best, room) if goal.scope == ARENA else reserving(made, best)
    return made, _taken(made, goal.scope)


def _taken(made: Planned, scope: str) -> int:
    """What the arena of a file takes, of what a budget is of."""
    return made.footprint.held if scope == ARENA else made.footprint.running


def _next_target(made: Planned, room: int, taken: int) -> int:
    """Bytes of activations to plan for after a file whose arena takes more than there is room for.

    With as many gaps in proportion as there are now.
    """
    peak, returned = made.after.peak_activations, made.footprint.returned
    return int(peak * min(_LITTLE_LESS, max(room - returned, 0) / max(taken - returned, 1)))


def _fixed(found: Footprint, goal: Goal) -> int:
    """Those of them that are there whatever the plan is."""
    return found.resident if goal.scope == TOTAL else 0

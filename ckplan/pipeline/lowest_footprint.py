"""The plans of lowest peaks as files that are to keep to a budget of more than activations."""

from __future__ import annotations

from ckplan.errors import InfeasibleError
from ckplan.pipeline.footprint_files import expected, fixed, with_reservation
from ckplan.pipeline.goal import Goal
from ckplan.pipeline.lowest import last_resorts
from ckplan.pipeline.plan_files import write_plan
from ckplan.pipeline.planned import HOLDER, Planned, share_of
from ckplan.pipeline.step import Step
from ckplan.planner import Plan
from ckplan.planner.strategies import Strategy
from ckplan.units import format_bytes, format_unlike

Files = dict[tuple[int, ...], Planned]
"""What was written for a budget, by the plan's schedule."""


def some_lowest(step: Step, strategy: Strategy, goal: Goal, limit: int, files: Files) -> Planned:
    """A plan of a lowest peak whose file keeps to a budget of more than activations, the first that is found.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.
        limit: the budget in bytes.
        files: those that are known for it; what is written is added.

    Raises:
        InfeasibleError: there is none, or none was found in time.
    """
    for plan in last_resorts(step, strategy, goal, 0):
        if expected(step, plan, goal) <= limit - fixed(step.footprint, goal):
            made = _file(step, plan, goal, limit, files)
            if share_of(made.footprint, goal) <= limit:
                return made
    return cheapest_lowest(step, strategy, goal, limit, files)


def _file(step: Step, plan: Plan, goal: Goal, limit: int, files: Files) -> Planned:
    """The file of a plan, which is written once for a budget."""
    if plan.schedule not in files:
        files[plan.schedule] = with_reservation(write_plan(step, plan), goal, limit)
    return files[plan.schedule]


def cheapest_lowest(step: Step, strategy: Strategy, goal: Goal, limit: int, files: Files) -> Planned:
    """The cheapest of the plans of lowest peaks whose file keeps to a budget of more than activations.

    The one of the lowest peak of all need not be among them: a peak that is a little higher may pack better. They are
    the same for every budget, and so is what the best of their files takes. All are written that may be the best by
    their bounds: where a plan is next to needing another region, its file may take half of what is expected of it.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.
        limit: the budget in bytes.
        files: those that are known for it; what is written is added.

    Raises:
        InfeasibleError: none does, or none that was written in time.
    """
    best: Planned | None = None
    besides = fixed(step.footprint, goal) + step.footprint.returned

    def turn(plan: Plan) -> tuple[bool, float]:
        """Those that may keep to the budget come first, the cheapest of them; then those that may take least.

        Where the time is up, those come first that may take least: what does not do is the last that is written.
        """
        bound = besides + plan.predicted.peak_activations
        return bound > limit, bound if bound > limit or goal.is_over else plan.cost

    distinct = {plan.schedule: plan for plan in reversed(list(last_resorts(step, strategy, goal, 0)))}
    for plan in sorted(distinct.values(), key=turn):
        if best is not None and besides + plan.predicted.peak_activations >= share_of(best.footprint, goal):
            continue  # no file takes less than its plan, and a plan adds nodes to what a session holds
        made = _file(step, plan, goal, limit, files)
        if share_of(made.footprint, goal) <= limit:
            return made
        best = made if best is None else min(best, made, key=lambda made: share_of(made.footprint, goal))
        if goal.is_over:
            break
    if best is None:
        raise InfeasibleError(
            f"strategy `{strategy}` has no plan{goal.costing} for which {HOLDER[goal.scope]} holds no more than "
            f"{format_bytes(limit)}",
            "allow more overhead, or raise the budget",
        )
    least, resident = share_of(best.footprint, goal), fixed(best.footprint, goal)
    allowed, found = format_unlike(limit, least)
    moment = best.after.steps[best.after.peak_step]
    parts = f"for a peak of {format_bytes(moment.activations)} at '{moment.op}'"
    if resident:
        parts = (
            f"{format_bytes(resident)} of parameters, state, inputs and the session, and an arena of "
            f"{format_bytes(least - resident)} {parts}"
        )
    raise InfeasibleError(
        f"strategy `{strategy}` has no plan{goal.costing} for which {HOLDER[goal.scope]} holds no more than "
        f"{allowed}: the least that was found{' in this time' * goal.is_over} is {found}, {parts}; the arena grows in "
        "large steps",
        f"raise the budget to {least} bytes, {'allow more time, ' * goal.is_over}or choose a smaller batch (--dim)",
        least,
    )

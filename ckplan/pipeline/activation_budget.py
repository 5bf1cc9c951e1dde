"""A plan whose file keeps to a budget of activations."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckplan import keys
from ckplan.errors import InfeasibleError
from ckplan.pipeline.arena_forms import reserving
from ckplan.pipeline.goal import Goal
from ckplan.pipeline.lowest import last_resorts
from ckplan.pipeline.plan_files import without_plan, write_plan
from ckplan.pipeline.planned import Planned
from ckplan.pipeline.step import Step
from ckplan.planner import Plan, holder_of_bound
from ckplan.planner.exact.stages import proven_overhead
from ckplan.planner.strategies import Strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.units import format_bytes, format_unlike

_log = logging.getLogger(__name__)

_TRIES = 3
"""How often a strategy is asked for a plan, the budget of the later ones lowered by what files took beyond theirs."""

_WORTH_RESERVING = 2**24
"""Bytes from which it is worth the time to write a file again for what a process takes less with it."""


def within_activations(step: Step, strategy: Strategy, goal: Goal) -> Planned:
    """Plan a step for a budget of activations, or for none, and write the plan into a copy of its graph.

    A file can take a little more than its plan: control edges, dead buffers that onnxruntime hands on. Where that
    exceeds the budget, the plan is shaved by as many bytes, or the graph planned again for as many less. Where no such
    plan is found, those of the lowest peak are written, for `auto` those of other strategies, too: what is refused is
    what none of the files keeps to, and the smallest of them is the budget that the refusal names. The step without a
    plan is the answer where it keeps to a budget that no plan's file does, and where a file without a budget would take
    more than it. A step with an optimizer, whose process is what counts, gets one region for a run where that is less.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no plan keeps to the budget.
    """
    budget = goal.bytes(step.baseline)
    if budget is None:
        return _without_budget(step, goal.applied(strategy))
    tried: list[tuple[Plan, int]] = []
    refusal: InfeasibleError | None = None
    for plan in _plans(step, strategy, goal, budget, tried):
        if isinstance(plan, InfeasibleError):
            refusal = plan
            continue
        if any(other.schedule == plan.schedule for other, _ in tried):
            continue
        if step.files.get(plan.schedule, 0) <= budget:
            made = write_plan(step, plan, budget)
            if made.after.peak_activations <= budget:
                return made if not tried else proven_for(made, budget)
        tried.append((plan, step.files[plan.schedule]))
        told = (format_bytes(step.files[plan.schedule]), format_bytes(plan.predicted.peak_activations))
        _log.info("the file would take %s, its plan %s", *told)
    if step.baseline.peak_activations <= budget:
        return without_plan(step, strategy, budget)
    if not tried:
        assert refusal is not None
        raise refusal
    smallest, taken = min(tried, key=lambda entry: entry[1])
    limited = goal.overhead is not None
    allowed, least, bound = format_unlike(budget, taken, smallest.lower_bound)
    by = "" if smallest.strategy == str(strategy) else f", by `{smallest.strategy}`"
    raise InfeasibleError(
        f"strategy `{strategy}` has no plan{goal.costing} whose file stays within the budget of "
        f"{allowed}: the least that a file takes is {least}{by}, and no schedule takes less than {bound}, which "
        f"{holder_of_bound(step.problem)}",
        f"raise the budget to {taken} bytes, the least that a file was made for" + ", or allow more overhead" * limited,
        taken,
    )


def _without_budget(step: Step, strategy: Strategy) -> Planned:
    """What a strategy plans where nothing is to be kept to; the step without a plan where that takes less."""
    made = write_plan(step, strategy.solve(step.problem))
    takes_less = made.drawback is None
    if keys.OPTIMIZER in step.model.metadata_props:
        if (most := made.footprint.running - _WORTH_RESERVING) >= 0:
            made = reserving(made, most)
        takes_less = takes_less or made.footprint.running < step.footprint.running
    return made if takes_less else without_plan(step, strategy)


def _plans(
    step: Step, strategy: Strategy, goal: Goal, budget: int, tried: Sequence[tuple[Plan, int]]
) -> Iterator[Plan | InfeasibleError]:
    """Plans to write, one after the other until a file keeps to the budget.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.
        budget: bytes of activations.
        tried: the plans whose files exceed the budget, with the bytes that these take; grows meanwhile.
    """
    target, interrupted = budget, False
    for _ in range(_TRIES):
        wanted = goal.at_once if interrupted else goal
        try:
            plan = wanted.applied(strategy).solve(step.problem, target)
        except InfeasibleError as error:
            yield error
            break
        interrupted = interrupted or plan.interrupted  # only strategies that take a time limit can be
        yield replace(plan, interrupted=interrupted)
        if not tried:
            break
        target = min(target - 1, _left_for(budget, *tried[-1]))
        # A file often takes some KiB more than its plan: to search anew for so much less takes seconds, and ends alike.
        asked = wanted.applied(strategy)
        if isinstance(asked, Auto) and (near := asked.shaved(step.problem, tried[-1][0], target)) is not None:
            yield near
            target = min(target, _left_for(budget, *tried[-1]))
        if target < plan.lower_bound:
            break
        _log.info("planning again for %s", format_bytes(target))
    if interrupted:
        return
    plans = list(last_resorts(step, strategy, goal, budget))
    fitting = [plan for plan in plans if plan.predicted.peak_activations <= budget]
    yield from sorted(fitting, key=lambda plan: plan.cost)
    for plan in sorted(plans, key=lambda plan: plan.predicted.peak_activations):
        if any(taken <= plan.predicted.peak_activations for _, taken in tried):
            break  # no file takes less than its plan
        yield plan


def _left_for(budget: int, plan: Plan, taken: int) -> int:
    """Bytes that a plan may have if its file takes as much more than the plan as another one's does."""
    return budget - (taken - plan.predicted.peak_activations)


def proven_for(made: Planned, budget: int) -> Planned:
    """The same with the bound for the budget that was asked for, where the plan was made for less."""
    plan = made.plan
    if not plan.overhead_bound:
        return made
    problem = made.step.problem
    bound = (problem.cost + proven_overhead(problem, budget, plan.cost - problem.cost)) / plan.base_cost - 1
    return replace(made, plan=replace(plan, overhead_bound=min(max(bound, 0.0), plan.overhead)))

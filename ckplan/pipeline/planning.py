"""From a goal to a file: plan a graph, write the plan into it, and see that onnxruntime will keep to it."""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckplan.display import table_html
from ckplan.errors import InfeasibleError
from ckplan.keys import BUDGET, BUDGET_OF
from ckplan.pipeline.goal import ACTIVATIONS, ANY, TOTAL, Goal
from ckplan.pipeline.step import Step
from ckplan.planner import Plan, Timeline
from ckplan.planner.exact.stages import proven_overhead
from ckplan.planner.strategies import Strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.chen import Chen
from ckplan.planner.strategies.evict import Evict
from ckplan.planner.strategies.lower_sets import LowerSets
from ckplan.planner.strategies.memory import Memory
from ckplan.planner.strategies.mincut import MinCut
from ckplan.planner.strategies.revolve import Revolve
from ckplan.planner.strategies.search import Search
from ckplan.planner.strategies.segments import Segments
from ckplan.planner.strategies.sqrt import Sqrt
from ckplan.runtime.footprint import Footprint, footprint_of
from ckplan.runtime.occupancy import Occupancy, occupancy_of_executed
from ckplan.units import format_bytes
from ckplan.writer.emit import write

if TYPE_CHECKING:
    import onnx_ir as ir

_log = logging.getLogger(__name__)

_TRIES = 3
"""How often a strategy is asked for a plan, the budget of the later ones lowered by what files took beyond theirs."""

_TOTAL_TRIES = 5
"""How often a file is written until what a process with it holds keeps to a budget of everything."""

_LIMITLESS = 2.0
"""Overhead beyond which no plan is looked for where the least memory is asked for, as a ratio of the step."""

_OTHERS: tuple[tuple[Strategy, float], ...] = (
    (Memory(), math.inf),
    (Evict(), math.inf),
    (MinCut(), math.inf),
    (Sqrt(), math.inf),
    (Chen(), 1_000),
    (Segments(), 1_000),
    (Revolve(), 1_000),
    (Search(), 1_000),
    (LowerSets(), 600),
)
"""Strategies whose files are tried before `auto` refuses a budget, with the ops of the largest graph they plan soon."""

_NEAR = 1.03
"""How much more than the lowest of all plans one may have for its file to be written in search of the smallest."""

_AT_ONCE = 1e-9
"""Seconds to search after the user has interrupted the search once: what is found first is taken."""


@dataclass(frozen=True)
class Planned:
    """A plan and the file that keeps to it.

    Attributes:
        step: what was planned.
        plan: the schedule.
        model: the graph with the plan built in.
        occupancy: what lies in memory when onnxruntime runs the file, simulated.
        budget: bytes that were not to be exceeded, if there was a budget.
        footprint: what a process with the file holds.
        scope: what the budget is of; see `Goal`.
    """

    step: Step
    plan: Plan
    model: ir.Model
    occupancy: Occupancy
    footprint: Footprint
    budget: int | None = None
    scope: str = ACTIVATIONS

    @property
    def before(self) -> Timeline:
        """What onnxruntime makes of the graph without a plan, simulated."""
        return self.step.baseline

    @property
    def after(self) -> Timeline:
        """What onnxruntime makes of the file, simulated."""
        return self.occupancy.timeline

    def __repr__(self) -> str:
        before, after = (format_bytes(timeline.peak_activations) for timeline in (self.before, self.after))
        return f"<{self.step.name} planned by {self.plan.strategy}: {before} -> {after}, {self.plan.overhead:+.1%}>"

    def _repr_html_(self) -> str:
        bound = self.plan.overhead_bound
        rows = [
            ("activations without a plan", format_bytes(self.before.peak_activations)),
            ("activations", format_bytes(self.after.peak_activations)),
            ("budget", "none" if self.budget is None else format_bytes(self.budget)),
            ("nodes that run again", f"{self.plan.recomputed:,}"),
            ("extra compute", f"{self.plan.overhead:+.1%}" + (f" (at least {bound:+.1%})" if bound > 0 else "")),
            ("no schedule takes less than", format_bytes(self.plan.lower_bound)),
        ]
        return table_html(f"{self.step.name}, planned by {self.plan.strategy}", rows)


def rewrite(step: Step, strategy: Strategy, goal: Goal = ANY) -> Planned:
    """Plan a step and write the plan into a copy of its graph.

    A file can take a little more than its plan: control edges, dead buffers that onnxruntime hands on. Where that
    exceeds the budget, the graph is planned again for as many bytes less. Where no such plan is found, those of the
    lowest peak are written, for `auto` those of other strategies, too: what is refused is what none of the files keeps
    to, and the smallest of them is the budget that the refusal names.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no plan keeps to the budget.
    """
    if goal.scope == TOTAL:
        return _within_total(step, strategy, goal)
    budget = goal.bytes(step.baseline)
    if budget is None:
        return _written(step, goal.applied(strategy).solve(step.problem), None)
    tried: list[Planned] = []
    refusal: InfeasibleError | None = None
    for plan in _plans(step, strategy, goal, budget, tried):
        if isinstance(plan, InfeasibleError):
            refusal = plan
            continue
        if any(made.plan.schedule == plan.schedule for made in tried):
            continue
        made = _written(step, plan, budget)
        if made.after.peak_activations <= budget:
            return made if not tried else _proven_for(made, budget)
        tried.append(made)
        told = (format_bytes(made.after.peak_activations), format_bytes(plan.predicted.peak_activations))
        _log.info("the file would take %s, its plan %s", *told)
    if not tried:
        assert refusal is not None
        raise refusal
    smallest = min(tried, key=lambda made: made.after.peak_activations)
    named = smallest.plan.strategy
    by = "" if named == str(strategy) else f", by `{named}`"
    raise InfeasibleError(
        f"strategy `{strategy}` has no plan whose file stays within the budget of {format_bytes(budget)}: the least "
        f"that a file takes is {format_bytes(smallest.after.peak_activations)}{by}; no schedule has less than "
        f"{format_bytes(smallest.plan.lower_bound)}",
        f"the smallest budget that a file was made for is {smallest.after.peak_activations} bytes; raise it",
    )


def _plans(
    step: Step, strategy: Strategy, goal: Goal, budget: int, tried: Sequence[Planned]
) -> Iterator[Plan | InfeasibleError]:
    """Plans to write, one after the other until a file keeps to the budget.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.
        budget: bytes of activations.
        tried: what was written already and exceeds the budget; grows meanwhile.
    """
    target, interrupted = budget, False
    for _ in range(_TRIES):
        wanted = replace(goal, seconds=_AT_ONCE) if interrupted else goal
        try:
            plan = wanted.applied(strategy).solve(step.problem, target)
        except InfeasibleError as error:
            yield error
            break
        interrupted = interrupted or plan.interrupted  # only strategies that take a time limit can be
        yield replace(plan, interrupted=interrupted)
        if not tried:
            break
        last = tried[-1]
        target = min(target - 1, budget - (last.after.peak_activations - last.plan.predicted.peak_activations))
        if target < plan.lower_bound:
            break
        _log.info("planning again for %s", format_bytes(target))
    if interrupted:
        return
    last_resorts: list[Plan] = []
    size = len(step.problem.ops)
    others = [other for other, most_ops in _OTHERS if size <= most_ops] if isinstance(strategy, Auto) else []
    lowest = (
        replace(strategy, overhead=_LIMITLESS) if isinstance(strategy, Auto) and strategy.overhead < 0 else strategy
    )
    limit = goal.overhead if goal.overhead is not None else _LIMITLESS
    for kind, wish in ((lowest, None), *((other, wish) for other in others for wish in (budget, None))):
        # Neither limit is one that these strategies know of; the time is that of the search.
        free = replace(goal, overhead=None, seconds=goal.seconds if isinstance(kind, Auto) else None)
        chosen = free.applied(kind) if kind is not strategy else goal.applied(kind)
        try:
            plan = chosen.solve(step.problem, wish)
        except InfeasibleError:
            continue
        if plan.overhead <= limit or kind is strategy:
            last_resorts.append(replace(plan, strategy=str(strategy) if kind is lowest else plan.strategy))
    fitting = [plan for plan in last_resorts if plan.predicted.peak_activations <= budget]
    yield from sorted(fitting, key=lambda plan: plan.cost)
    least = min((plan.predicted.peak_activations for plan in last_resorts), default=0)
    low = [plan for plan in last_resorts if plan.predicted.peak_activations <= least * _NEAR and plan not in fitting]
    for plan in sorted(low, key=lambda plan: plan.predicted.peak_activations):
        if any(made.after.peak_activations <= plan.predicted.peak_activations for made in tried):
            break  # no file takes less than its plan
        yield plan


def _within_total(step: Step, strategy: Strategy, goal: Goal) -> Planned:
    """Plan for activations that leave room for everything else, less of them where the arena still holds too much.

    What the arena holds does not follow from the peak: it grows by regions, and lays a run's tensors out in one block.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no file keeps to the budget.
    """
    limit = goal.limit(step.footprint.total)
    assert limit is not None  # see `Goal.of`
    fixed = step.footprint.resident
    least: int | None = None
    target = limit - fixed - step.footprint.returned
    tried: set[tuple[int, ...]] = set()
    try:
        for _ in range(_TOTAL_TRIES):
            if target <= 0:
                break
            inner = replace(goal, budget=target, share=None, scope=ACTIVATIONS)
            made = rewrite(step, strategy, inner)
            found = made.footprint
            if found.total <= limit:
                made.model.metadata_props[BUDGET] = str(limit)
                made.model.metadata_props[BUDGET_OF] = TOTAL
                return replace(made, budget=limit, scope=TOTAL)
            least = found.total if least is None else min(least, found.total)
            _log.info("a process with the file would hold %s", format_bytes(found.total))
            peak = made.after.peak_activations
            room = (limit - found.resident) / max(found.held, 1)
            # Halfway to where the arena would be in proportion: it grows in leaps, and seldom as the peak does.
            target = min(int(peak * max(room, 0) ** 0.5), peak - 1, target - 1)
            if made.plan.schedule in tried:
                target = min(target, int(peak * 0.9))
            tried.add(made.plan.schedule)
    except InfeasibleError as error:
        if least is None:
            raise InfeasibleError(
                f"no plan leaves room within {format_bytes(limit)} of everything, of which {format_bytes(fixed)} are "
                f"parameters, state and inputs: {error.message}",
                error.hint if fixed < limit else "raise the budget",
            ) from error
    if least is None:
        raise InfeasibleError(
            f"parameters, state, inputs and outputs alone take {format_bytes(limit - target)}, the budget of "
            f"everything is {format_bytes(limit)}",
            "raise it, or choose an optimizer with less state",
        )
    raise InfeasibleError(
        f"strategy `{strategy}` has no plan with which a process holds no more than {format_bytes(limit)} of "
        f"everything: the least that was found is {format_bytes(least)}, of which {format_bytes(fixed)} are "
        "parameters, state and inputs",
        f"raise the budget to {least} bytes, or choose a smaller batch (--dim)",
    )


def _written(step: Step, plan: Plan, budget: int | None) -> Planned:
    _log.info("writing the plan into the graph, and asking onnxruntime what it makes of it")
    written = write(step.fused, plan)
    if budget is not None:
        written.model.metadata_props[BUDGET] = str(budget)
    occupancy = occupancy_of_executed(written.executed, written.model)
    return Planned(step, plan, written.model, occupancy, footprint_of(written.executed, written.model), budget)


def _proven_for(made: Planned, budget: int) -> Planned:
    """The same with the bound for the budget that was asked for, where the plan was made for less."""
    plan = made.plan
    if not plan.overhead_bound:
        return made
    bound = proven_overhead(made.step.problem, budget) / made.step.problem.cost
    return replace(made, plan=replace(plan, overhead_bound=min(bound, plan.overhead)))


def rewrite_as(step: Step, plan: Plan) -> Planned:
    """Write a plan that exists into a copy of the graph that it was made for."""
    return _written(step, plan, None)

"""From a goal to a file: plan a graph, write the plan into it, and see that onnxruntime will keep to it."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckplan.display import table_html
from ckplan.errors import InfeasibleError
from ckplan.keys import BUDGET
from ckplan.pipeline.goal import ANY, Goal
from ckplan.pipeline.step import Step
from ckplan.planner import Plan, Timeline
from ckplan.planner.strategies import Strategy
from ckplan.runtime.occupancy import Occupancy, occupancy_of_executed
from ckplan.units import format_bytes
from ckplan.writer.emit import write

if TYPE_CHECKING:
    import onnx_ir as ir

_log = logging.getLogger(__name__)

_TRIES = 3
"""How often the budget of the plan is lowered when the file would exceed the user's."""

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
        budget: bytes of activations that were not to be exceeded, if there was a budget.
    """

    step: Step
    plan: Plan
    model: ir.Model
    occupancy: Occupancy
    budget: int | None = None

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

    What onnxruntime fuses and holds can cost a little more than the plan has; where that exceeds the budget, the graph
    is planned again for that much less.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no plan keeps to the budget.
    """
    budget = goal.bytes(step.baseline)
    plan = goal.applied(strategy).solve(step.problem, budget)
    smallest = target = plan.predicted.peak_activations if budget is None else budget
    for number in range(_TRIES):
        _log.info("writing the plan into the graph, and asking onnxruntime what it makes of it")
        written = write(step.fused, plan)
        planned, after = written.model, occupancy_of_executed(written.executed, written.model)
        if budget is not None:
            planned.metadata_props[BUDGET] = str(budget)
        peak = after.timeline.peak_activations
        if budget is None or peak <= budget:
            return Planned(step, plan, planned, after, budget)
        smallest = min(smallest, peak) if number else peak
        target = int(min(target, plan.predicted.peak_activations) * budget / peak)
        _log.info("onnxruntime would take %s; planning again for %s", format_bytes(peak), format_bytes(target))
        interrupted = plan.interrupted  # only strategies that take a time limit can be
        wanted = replace(goal, seconds=_AT_ONCE) if interrupted else goal
        try:
            plan = wanted.applied(strategy).solve(step.problem, target)
            plan = replace(plan, interrupted=plan.interrupted or interrupted)
        except InfeasibleError:
            break
    assert budget is not None
    raise InfeasibleError(
        f"strategy `{strategy}` has no plan whose file stays within the budget of {format_bytes(budget)}: with what "
        f"onnxruntime fuses and holds, it needs {format_bytes(smallest)}; no schedule has less than "
        f"{format_bytes(plan.lower_bound)}",
        f"the smallest budget that a file was made for is {smallest} bytes; raise it",
    )


def rewrite_as(step: Step, plan: Plan) -> Planned:
    """Write a plan that exists into a copy of the graph that it was made for."""
    written = write(step.fused, plan)
    return Planned(step, plan, written.model, occupancy_of_executed(written.executed, written.model))

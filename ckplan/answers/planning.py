"""From a goal to a file: plan a graph, write the plan into it, and see that onnxruntime will keep to it."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING

from ckplan.answers.analysis import expected_timeline
from ckplan.errors import InfeasibleError, UsageError
from ckplan.keys import BUDGET
from ckplan.planner import Plan, Problem, Timeline
from ckplan.planner.strategies import Strategy
from ckplan.runtime import problem_of
from ckplan.units import format_bytes
from ckplan.writer import emit
from ckplan.writer.emit import feed_weights

if TYPE_CHECKING:
    import onnx_ir as ir

_log = logging.getLogger(__name__)

_TRIES = 3
"""How often the budget of the plan is lowered when the file would exceed the user's."""

_AT_ONCE = 1e-9
"""Seconds to search after the user has interrupted the search once: what is found first is taken."""


@dataclass(frozen=True)
class Goal:
    """What a plan is asked for.

    Attributes:
        budget: bytes of activations not to exceed.
        share: the same as a ratio of the peak that the graph has without a plan.
        overhead: extra compute that the plan may cost, as a ratio of the step.
        seconds: how long the strategy may search.
    """

    budget: int | None = None
    share: float | None = None
    overhead: float | None = None
    seconds: float | None = None

    def bytes(self, base: Timeline) -> int | None:
        """The budget in bytes, given the timeline without a plan."""
        return self.budget if self.share is None else int(self.share * base.peak_activations)

    def applied(self, strategy: Strategy) -> Strategy:
        """The strategy with its options set to the goal.

        Raises:
            UsageError: the strategy has no such option.
        """
        known = {field.name for field in fields(strategy)}
        for name, value, option in (
            ("overhead", self.overhead, "--overhead"),
            ("seconds", self.seconds, "--time-limit"),
        ):
            if value is None:
                continue
            if name not in known:
                raise UsageError(f"strategy `{strategy.name}` takes no `{option}`", "use it with `--strategy auto`")
            strategy = replace(strategy, **{name: value})
        return strategy


@dataclass(frozen=True)
class Planned:
    """A plan and the file that keeps to it.

    Attributes:
        plan: the schedule.
        model: the graph with the plan built in.
        before: what onnxruntime makes of the graph without a plan, simulated.
        after: what it makes of the file.
    """

    plan: Plan
    model: ir.Model
    before: Timeline
    after: Timeline


def inference_graph(model: ir.Model) -> ir.Model:
    """The graph that is planned where a model is to be run and not trained: a copy in which heavy weights can be fed.

    Of a constant weight onnxruntime holds a second, packed copy, and it moves convolutions of such weights to a layout
    of its own, whose tensors are padded: that is quicker, and takes memory that no plan has a say in.
    """
    copy = model.clone()
    feed_weights(copy.graph)
    return copy


def plan_graph(
    model: ir.Model, strategy: Strategy, goal: Goal = Goal(), costs: Mapping[str, float] | None = None
) -> tuple[Problem, Plan, Timeline]:
    """Plan a graph; returns the problem, the plan, and the timeline without a plan.

    Args:
        model: a training graph, or any other graph.
        strategy: how to plan.
        goal: what to keep to.
        costs: seconds of nodes by name, where others than the analytic ones are to count.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no plan keeps to the budget.
    """
    before = expected_timeline(model)
    problem = problem_of(model).with_costs(costs or {})
    return problem, goal.applied(strategy).solve(problem, goal.bytes(before)), before


def rewrite(
    model: ir.Model, strategy: Strategy, goal: Goal = Goal(), costs: Mapping[str, float] | None = None
) -> Planned:
    """Plan a graph and write the plan into a copy of it.

    What onnxruntime fuses and holds can cost a little more than the plan has; where that exceeds the budget, the graph
    is planned again for that much less.

    Args:
        model: a training graph, or any other graph.
        strategy: how to plan.
        goal: what to keep to.
        costs: seconds of nodes by name, where others than the analytic ones are to count.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no plan keeps to the budget.
    """
    problem, plan, before = plan_graph(model, strategy, goal, costs)
    budget = goal.bytes(before)
    smallest = target = plan.predicted.peak_activations if budget is None else budget
    for number in range(_TRIES):
        _log.info("writing the plan into the graph, and asking onnxruntime what it makes of it")
        planned = emit(model, plan)
        if budget is not None:
            planned.metadata_props[BUDGET] = str(budget)
        after = expected_timeline(planned)
        peak = after.peak_activations
        if budget is None or peak <= budget:
            return Planned(plan, planned, before, after)
        smallest = min(smallest, peak) if number else peak
        target = int(min(target, plan.predicted.peak_activations) * budget / peak)
        _log.info("onnxruntime would take %s; planning again for %s", format_bytes(peak), format_bytes(target))
        interrupted = plan.interrupted  # only strategies that take a time limit can be
        wanted = replace(goal, seconds=_AT_ONCE) if interrupted else goal
        try:
            plan = wanted.applied(strategy).solve(problem, target)
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


def rewrite_as(model: ir.Model, plan: Plan) -> Planned:
    """Write a plan that exists into a copy of the graph that it was made for."""
    planned = emit(model, plan)
    return Planned(plan, planned, expected_timeline(model), expected_timeline(planned))

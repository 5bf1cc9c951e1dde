"""From a goal to a file: plan a graph, write the plan into it, and see that onnxruntime will keep to it."""

from __future__ import annotations

from ckplan.pipeline.activation_budget import within_activations
from ckplan.pipeline.footprint_budget import within_footprint
from ckplan.pipeline.goal import ACTIVATIONS, ANY, Goal
from ckplan.pipeline.planned import Planned
from ckplan.pipeline.step import Step
from ckplan.planner.strategies import Strategy


def rewrite(step: Step, strategy: Strategy, goal: Goal = ANY) -> Planned:
    """Plan a step as it is and write the plan into a copy of its graph; see `ckplan.pipeline.choosing` for its forms.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no plan keeps to the budget.
    """
    plan = within_activations if goal.scope == ACTIVATIONS else within_footprint
    return plan(step, strategy, goal)

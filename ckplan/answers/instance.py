"""The plan of a graph that is given as numbers: bytes and seconds in a file, without a model."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ckplan.errors import UsageError
from ckplan.pipeline import Goal, StepOptions
from ckplan.pipeline.goal import ACTIVATIONS
from ckplan.pipeline.options import option_name
from ckplan.planner import Plan, Timeline, simulate
from ckplan.planner.instances import load_problem
from ckplan.planner.strategies import Strategy


@dataclass(frozen=True)
class PlannedInstance:
    """What became of a graph of numbers.

    Attributes:
        plan: its plan.
        base: the timeline of its ops as they stand in the file, each once.
        budget: bytes that the plan keeps to, None where none was asked for.
    """

    plan: Plan
    base: Timeline
    budget: int | None


def plan_instance(path: Path, strategy: Strategy, goal: Goal, asked: StepOptions, cost: str) -> PlannedInstance:
    """Plan the graph of a file in any form that `ckplan.planner.instances` reads.

    Args:
        path: the file.
        strategy: how to plan.
        goal: what to keep to; a share is one of the peak of the ops as they stand in the file.
        asked: options of models, of which there may be none here.
        cost: how nodes are priced: ``flops``, the default, takes the numbers of the file.

    Raises:
        ModelError: the file is no such graph.
        UsageError: an option is about models, or the goal does not fit the strategy.
        InfeasibleError: no plan keeps to the budget.
    """
    idle = [option_name(name) for name in asked.options()]
    idle += [f"--of {goal.scope}"] * (goal.scope != ACTIVATIONS) + [f"--cost {cost}"] * (cost != "flops")
    if idle:
        raise UsageError(
            f"'{path.name}' is a graph of numbers, about which `{idle[0]}` says nothing",
            "leave it out, or name a model",
        )
    problem = load_problem(path)
    base = simulate(problem, range(len(problem.ops)))
    budget = goal.bytes(base)
    return PlannedInstance(goal.applied(strategy).solve(problem, budget), base, budget)

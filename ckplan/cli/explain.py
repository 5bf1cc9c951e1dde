"""``ckplan explain``: why a tensor is kept or recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckplan.cli.options import (
    cost_option,
    device_option,
    inference_option,
    json_option,
    model_argument,
    plan_file_option,
    planning_options,
    shape_options,
    talk_options,
    training_options,
    verbose_option,
)
from ckplan.cli.terminal import notes, show, show_json, stage
from ckplan.cli.training import subject


@click.command("explain", short_help="Say why a tensor is kept or recomputed.")
@model_argument
@click.argument("tensor")
@planning_options
@plan_file_option
@cost_option
@device_option
@inference_option
@shape_options
@training_options
@json_option
@verbose_option
@talk_options
def command(
    model: Path,
    tensor: str,
    strategy: str,
    budget: int | float | None,
    overhead: float | None,
    seconds: float | None,
    plan_file: Path | None,
    cost: str,
    device: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Say why a plan of MODEL keeps TENSOR or makes it again, what that costs, and what the opposite would lead to.

    The plan is the one that `ckplan rewrite` makes with the same options. TENSOR is the name of a value in the model or
    in its training graph, or of a node, which stands for what it makes.
    """
    from ckplan.answers.explanation import explain
    from ckplan.answers.planning import plan_graph
    from ckplan.cli.planning import costs_of, goal_of, read_plan, tell
    from ckplan.model.read import read
    from ckplan.planner.strategies import parse_strategy
    from ckplan.runtime import problem_of

    wanted, goal = parse_strategy(strategy), goal_of(budget, overhead, seconds)
    planned = subject(model, **options)
    costs = None if plan_file else costs_of(planned.model, cost, device)
    with stage("planning"):
        if plan_file is None:
            problem, plan, _ = plan_graph(planned.model, wanted, goal, costs)
        else:
            problem, plan = problem_of(planned.model), read_plan(plan_file, planned.model)
        found = explain(planned.model, problem, plan, tensor, training=planned.training, forward=lambda: read(model))
    notes(found.notes)
    said = [*planned.notes, *tell(plan, planned.model), *found.notes]
    if as_json:
        from ckplan.report.explanation import explanation_json

        show_json(explanation_json(found, said))
    else:
        from ckplan.report.explanation import explanation

        show(explanation(found))

"""``ckplan explain``: why a tensor is kept or recomputed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckplan.cli.options import (
    cost_option,
    device_option,
    json_option,
    model_argument,
    plan_file_option,
    planning_options,
    step_options,
    talk_options,
    verbose_option,
)
from ckplan.cli.proof import check_run_limit
from ckplan.cli.step import opened
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import notes, show, show_json

if TYPE_CHECKING:
    from ckplan.pipeline import Goal, StepOptions
    from ckplan.planner.strategies import Strategy


@click.command("explain", cls=SectionedCommand, short_help="Say why a tensor is kept or recomputed.")
@model_argument
@click.argument("tensor")
@planning_options
@plan_file_option
@cost_option
@device_option
@step_options
@json_option
@verbose_option
@talk_options
def command(
    model: Path,
    tensor: str,
    strategy: Strategy,
    goal: Goal,
    plan_file: Path | None,
    cost: str | None,
    device: str,
    as_json: bool,
    asked: StepOptions,
) -> None:
    """Say why a plan of MODEL keeps TENSOR or recomputes it, what that costs, and what the opposite would lead to.

    The plan is the one that `ckplan rewrite` makes with the same options. TENSOR is the name of a value in the model or
    in its training graph, or of a node, which stands for what it makes.
    """
    from ckplan.answers.explanation import check_name, explain
    from ckplan.cli.planning import planned, read_plan, tell

    given = read_plan(plan_file)
    cost = "flops" if plan_file else goal.cost(cost, device)
    check_run_limit(cost=cost, option="--cost measured")
    step = opened(model, asked, cost=cost, device=device)
    notes(check_name(step, tensor))
    made = planned(step, strategy, goal, given)
    found = explain(made.step, made.plan, tensor)
    notes(found.notes)
    said = [*step.notes, *tell(made, given), *found.notes]
    if as_json:
        from ckplan.report import json

        show_json(json.explanation(found, said))
    else:
        from ckplan.report.documents.explanations import explanation

        show(explanation(found))

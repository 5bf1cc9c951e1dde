"""``ckplan plan``: what to keep and what to recompute, as a file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckplan.cli.options import (
    cost_option,
    device_option,
    json_option,
    model_argument,
    of_option,
    output_options,
    planning_options,
    step_options,
    talk_options,
    verbose_option,
)
from ckplan.cli.output import check_output
from ckplan.cli.proof import check_run_limit
from ckplan.cli.step import opened
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import notes, show, show_json, stage

if TYPE_CHECKING:
    from ckplan.pipeline import Goal, StepOptions
    from ckplan.planner.strategies import Strategy


@click.command("plan", cls=SectionedCommand, short_help="Write a memory plan for a training step as JSON.")
@model_argument
@output_options
@planning_options
@of_option
@cost_option
@device_option
@step_options
@json_option
@verbose_option
@talk_options
def command(
    model: Path,
    output: Path,
    force: bool,
    strategy: Strategy,
    goal: Goal,
    cost: str | None,
    device: str,
    as_json: bool,
    asked: StepOptions,
) -> None:
    """Plan the training step of MODEL and write the plan as JSON.

    The file names nodes, in the order in which they run; a node that stands again is recomputed. `ckplan rewrite
    --plan` writes it into the graph; it may be edited, and is simulated anew when it is read.

    MODEL may also be a graph of numbers, a `.json` or `.txt` file: a planning problem of ckplan's, a node-link graph
    with bytes and seconds at its nodes, or a graph of Kusumoto et al.
    """
    check_output(output, force, model, *asked.files)
    from ckplan.answers.findings import chosen
    from ckplan.answers.instance import plan_instance
    from ckplan.cli.planning import planned, tell, tell_bound
    from ckplan.model.files.saving import write_text
    from ckplan.planner.instances import SUFFIXES
    from ckplan.report import json
    from ckplan.report.documents import plans
    from ckplan.report.untrusted import json_text

    numbers = model.suffix in SUFFIXES  # a graph of numbers: no file runs, and each op costs what it says
    cost = (cost or "flops") if numbers else goal.cost(cost, device)
    check_run_limit(cost=None if numbers else cost, option="--cost measured")
    if numbers:
        with stage("planning"):
            instance = plan_instance(model, strategy, goal, asked, cost)
        plan, told = instance.plan, {}
        tell_bound(plan, instance.budget)
        document = plans.rewritten(output, plan, instance.base, plan.predicted)
    else:
        from ckplan.pipeline import told_of_plan_alone

        step = opened(model, asked, cost=cost, device=device)
        made = planned(step, strategy, goal)
        plan, kept = made.plan, chosen(made.step, made.plan, made.budget)
        tell(made)
        notes(told_of_plan_alone(made))
        told = {"blocks": json.blocks(kept)}
        in_pieces = made.step.whole is not None
        document = plans.rewritten(output, plan, made.before, made.after, kept, in_pieces, made.held)
    write_text(json_text(plan.to_json(), indent=1) + "\n", output, force=force)
    if as_json:
        show_json({**plan.to_json(), **told})
    else:
        show(document)

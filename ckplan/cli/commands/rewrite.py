"""``ckplan rewrite``: the training graph with a plan built in."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckplan.cli.html import check_page, plan_page
from ckplan.cli.options import (
    copy_option,
    cost_option,
    html_option,
    json_option,
    model_argument,
    of_option,
    output_options,
    plan_file_option,
    planning_options,
    run_options,
    step_options,
    talk_options,
    verbose_option,
)
from ckplan.cli.output import check_model_output, written
from ckplan.cli.proof import check, check_device, check_inputs, check_run_limit, prove
from ckplan.cli.step import opened
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import answer, show, show_json, stage

if TYPE_CHECKING:
    from ckplan.pipeline import Goal, StepOptions
    from ckplan.planner.strategies import Strategy


@click.command("rewrite", cls=SectionedCommand, short_help="Write a training graph with a memory plan built in.")
@model_argument
@output_options
@copy_option
@planning_options
@of_option
@plan_file_option
@cost_option
@step_options
@click.option("--verify", "with_proof", is_flag=True, help="Run the planned file and the one without a plan; compare.")
@run_options
@html_option
@json_option
@verbose_option
@talk_options
def command(
    model: Path,
    output: Path,
    force: bool,
    copy_weights: bool,
    strategy: Strategy,
    goal: Goal,
    plan_file: Path | None,
    with_proof: bool,
    device: str,
    inputs: Path | None,
    seed: int,
    cost: str | None,
    page: Path | None,
    as_json: bool,
    asked: StepOptions,
) -> None:
    """Write the training graph of MODEL with a memory plan built in; with --inference, MODEL itself.

    The file runs in stock onnxruntime with default session options. Do not pass it through graph simplifiers (onnxsim,
    onnxslim, onnxscript's optimizer): they remove what keeps to the plan, and the memory is spent again.
    """
    check_model_output(output, force, model, plan_file, inputs, *asked.files)
    check_page(page, force, model, output)
    check_device(device, with_proof=with_proof)
    from ckplan.answers.findings import chosen
    from ckplan.cli.planning import planned, read_plan, tell

    given = read_plan(plan_file)
    cost = "flops" if plan_file else goal.cost(cost, device)
    check_run_limit(runs=with_proof, cost=cost)
    step = opened(model, asked, cost=cost, device=device)
    check_inputs(step, inputs, with_proof=with_proof)
    made = planned(step, strategy, goal, given)
    notes = [*step.notes, *tell(made, given)]
    notes += written(made.model, output, force=force, copy_weights=copy_weights)
    with stage("summing up the plan"):
        kept = chosen(made.step, made.plan, made.budget)
    if not as_json:  # the plan can be read while the files run
        from ckplan.report.documents import plans

        in_pieces = made.step.whole is not None
        show(plans.rewritten(output, made.plan, made.before, made.after, kept, in_pieces, made.held))
    found = prove(step, model.stem, output, device=device, inputs=inputs, seed=seed) if with_proof else None
    if page is not None:
        plan_page(page, force, made, plan=kept, notes=notes, verification=found)
    if as_json:
        from ckplan.report import json

        show_json(json.rewritten(made, output, notes, found, kept))
    elif found is not None:
        from ckplan.report.documents import verifications

        answer("")
        show(verifications.verification(found))
    if found is not None:
        check(found)

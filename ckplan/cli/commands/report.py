"""``ckplan report``: a page that shows what a plan does."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckplan.cli.html import check_page, plan_page
from ckplan.cli.options import (
    cost_option,
    json_option,
    model_argument,
    output_options,
    planning_options,
    run_options,
    step_options,
    talk_options,
    verbose_option,
)
from ckplan.cli.proof import check, check_device, check_inputs, check_run_limit, prove
from ckplan.cli.step import opened
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import show, show_json, stage

if TYPE_CHECKING:
    from ckplan.pipeline import Goal, StepOptions
    from ckplan.planner.strategies import Strategy


@click.command("report", cls=SectionedCommand, short_help="Write a page that shows a plan, for a browser.")
@model_argument
@output_options
@planning_options
@cost_option
@step_options
@click.option("--pareto", "with_frontier", is_flag=True, help="Find the frontier of memory against compute, too.")
@click.option("--verify", "with_proof", is_flag=True, help="Run the planned file and the one without a plan; compare.")
@run_options
@json_option
@verbose_option
@talk_options
def command(
    model: Path,
    output: Path,
    force: bool,
    strategy: Strategy,
    goal: Goal,
    with_frontier: bool,
    with_proof: bool,
    device: str,
    inputs: Path | None,
    seed: int,
    cost: str | None,
    as_json: bool,
    asked: StepOptions,
) -> None:
    """Plan the training step of MODEL as `ckplan rewrite` does, and write what comes out as a page for a browser.

    OUT is one HTML file that works offline: memory over the step with and without the plan, what is alive at the peak,
    what is kept and what is recomputed. With --verify both files are run, and the page shows what was measured as well.
    """
    check_page(output, force, model)
    check_device(device, with_proof=with_proof)
    cost = goal.cost(cost, device)
    check_run_limit(runs=with_proof, cost=cost)
    from ckplan.answers.analysis import analyze
    from ckplan.answers.findings import chosen
    from ckplan.answers.pareto import pareto
    from ckplan.cli.planning import planned, tell

    step = opened(model, asked, cost=cost, device=device)
    check_inputs(step, inputs, with_proof=with_proof)
    made = planned(step, strategy, goal)
    with stage("planning") as doing:
        frontier = pareto(step, seconds=goal.seconds, progress=doing) if with_frontier else None
        analysis = analyze(step, [])
    notes = [*step.notes, *tell(made)]
    found = prove(step, model.stem, made.model, device=device, inputs=inputs, seed=seed) if with_proof else None
    plan_page(
        output,
        force,
        made,
        plan=chosen(step, made.plan, made.budget),
        notes=notes,
        analysis=analysis,
        pareto=frontier,
        verification=found,
    )
    if as_json:
        from ckplan.report import json

        show_json(json.reported(made, output, notes, found))
    else:
        from ckplan.report.document import Document, joined
        from ckplan.report.documents import plans, verifications

        parts = [plans.rewritten(output, made.plan, made.before, made.after, held=made.held)]
        show(joined(*parts, *([] if found is None else [Document(verifications.summary(found), ())])))
    if found is not None:
        check(found)

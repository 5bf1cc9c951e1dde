"""``ckplan analyze``: where the memory goes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckplan.cli.html import analysis_page, check_page
from ckplan.cli.options import (
    budget_option,
    html_options,
    json_option,
    model_argument,
    step_options,
    strategies_option,
    talk_options,
    verbose_option,
)
from ckplan.cli.output import refuse_idle
from ckplan.cli.planning import shown_plan, tell_whole
from ckplan.cli.step import opened
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import details, show, show_json, stage

if TYPE_CHECKING:
    from ckplan.pipeline import StepOptions


@click.command("analyze", cls=SectionedCommand, short_help="Show where the memory of a training step goes.")
@model_argument
@step_options
@strategies_option
@budget_option
@html_options
@json_option
@verbose_option
@talk_options
def command(
    model: Path,
    strategies: tuple[str, ...],
    budget: int | float | None,
    page: Path | None,
    force: bool,
    as_json: bool,
    asked: StepOptions,
) -> None:
    """Show where the memory of a training step of MODEL goes, and what each strategy would save.

    With --inference: where that of MODEL itself goes.

    Nothing is run: the figures are those of the simulator, which `ckplan verify` holds against onnxruntime.
    """
    check_page(page, force, model)
    refuse_idle(page, add="--html", force=force)
    from ckplan.answers.analysis import analyze
    from ckplan.answers.findings import chosen
    from ckplan.planner.strategies import parse_strategy

    tried = [parse_strategy(text) for text in strategies] or None
    step = opened(model, asked)
    with stage("simulating the step") as doing:
        analysis = analyze(step, tried, budget, doing)
    details(f"`{one.strategy}` makes no plan: {one.reason}" for one in analysis.offers if one.plan is None)
    tell_whole(step, step.baseline.peak_activations)
    shown = shown_plan(analysis.offers)
    with stage("summing up the plan"):
        kept = None if shown is None else chosen(step, shown)
    if page is not None:
        analysis_page(page, force, step, analysis)
    if as_json:
        from ckplan.report import json

        show_json(json.analysis(model, analysis, step.notes, kept))
    else:
        from ckplan.report.documents import plans

        show(plans.analysis(str(model), analysis, kept))

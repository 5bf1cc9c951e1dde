"""``ckplan analyze``: where the memory goes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from ckplan.cli.options import (
    budget_option,
    html_options,
    inference_option,
    json_option,
    model_argument,
    shape_options,
    strategies_option,
    talk_options,
    training_options,
    verbose_option,
)
from ckplan.cli.page import analysis_page, check_page
from ckplan.cli.planning import shown_plan
from ckplan.cli.terminal import details, show, show_json, stage
from ckplan.cli.training import subject


@click.command("analyze", short_help="Show where the memory of a training step goes.")
@model_argument
@inference_option
@shape_options
@training_options
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
    **options: Any,
) -> None:
    """Show where the memory of a training step of MODEL goes, and what each strategy would save.

    With --inference: where that of MODEL itself goes.

    Nothing is run: the figures are those of the simulator, which `ckplan verify` holds against onnxruntime.
    """
    check_page(page, force, model)
    from ckplan.answers.analysis import analyze
    from ckplan.answers.findings import chosen
    from ckplan.planner.strategies import parse_strategy

    tried = [parse_strategy(text) for text in strategies] or None
    planned = subject(model, **options)
    with stage("simulating the step") as doing:
        analysis = analyze(planned.training or planned.model, tried, budget, doing)
    details(f"`{one.strategy}` makes no plan: {one.reason}" for one in analysis.offers if one.plan is None)
    shown = shown_plan(analysis.offers)
    kept = None if shown is None else chosen(planned.model, shown)
    if page is not None:
        analysis_page(page, force, model.name, planned, analysis)
    if as_json:
        from ckplan.report import json

        show_json(json.analysis(model, analysis, planned.notes, kept))
    else:
        from ckplan.report import text
        from ckplan.report.blocks import blocks

        show(text.page(text.analysis(model, analysis), *([] if kept is None else [blocks(kept)])))

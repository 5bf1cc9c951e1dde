"""``ckplan pareto``: what each saved byte costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckplan.cli.options import (
    cost_option,
    device_option,
    json_option,
    model_argument,
    picture_options,
    step_options,
    strategies_option,
    talk_options,
    time_limit_option,
    verbose_option,
)
from ckplan.cli.output import check_output, refuse_idle
from ckplan.cli.proof import check_run_limit
from ckplan.cli.step import opened
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import details, notes, show, show_json, stage
from ckplan.errors import UsageError

if TYPE_CHECKING:
    from ckplan.pipeline import StepOptions


@click.command("pareto", cls=SectionedCommand, short_help="Show what each saved byte costs in compute.")
@model_argument
@picture_options
@strategies_option
@time_limit_option
@cost_option
@device_option
@step_options
@json_option
@verbose_option
@talk_options
def command(
    model: Path,
    output: Path | None,
    force: bool,
    strategies: tuple[str, ...],
    seconds: float | None,
    cost: str | None,
    device: str,
    as_json: bool,
    asked: StepOptions,
) -> None:
    """Show the frontier of peak memory against extra compute, and where every strategy stands to it.

    Each point of the frontier is a plan that no other one found beats in both; `ckplan rewrite` with its peak as
    --budget, or its overhead as --overhead and the same --cost, writes a plan like it. OUT gets the picture, as SVG.
    Ctrl-C shows what was found until then.
    """
    if output is not None:
        if output.suffix.lower() != ".svg":
            raise UsageError(
                f"'{output}' is not the name of an SVG picture", "end it in .svg, the one kind that is written"
            )
        check_output(output, force, model, *asked.files)
    refuse_idle(output, force=force)
    check_run_limit(cost=cost, option="--cost measured")
    from ckplan.answers.pareto import pareto
    from ckplan.model.files.saving import write_text
    from ckplan.planner.strategies import parse_strategy

    tried = [parse_strategy(text) for text in strategies] or None
    step = opened(model, asked, cost=cost or "flops", device=device)
    with stage("planning") as tell:
        found = pareto(step, tried, seconds=seconds, progress=tell)
    details(f"`{one.strategy}` makes no plan: {one.reason}" for one in found.offers if one.plan is None)
    said = list(step.notes)
    if found.interrupted:
        said.append("the search was interrupted; this is what was found until then")
        notes(said[-1:])
    if output is not None:
        from ckplan.report import svg

        write_text(svg.pareto(found, f"{model.name}: peak of activations against overhead"), output, force=force)
    if as_json:
        from ckplan.report import json

        show_json(json.pareto(model, output, found, said))
    else:
        from ckplan.report.documents import plans

        show(plans.pareto(str(model), found))

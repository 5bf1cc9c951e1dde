"""``ckplan fit``: the largest batch that fits."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckplan.cli.options import (
    copy_option,
    json_option,
    limit_options,
    model_argument,
    open_step_options,
    picture_options,
    talk_options,
)
from ckplan.cli.output import check_model_output, refuse_idle, written
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import notes, show, show_json, stage
from ckplan.errors import UsageError

if TYPE_CHECKING:
    from ckplan.pipeline import Goal, StepOptions
    from ckplan.planner.strategies import Strategy


@click.command("fit", cls=SectionedCommand, short_help="Find the largest batch that fits into memory, with its plan.")
@model_argument
@picture_options
@copy_option
@limit_options
@open_step_options
@json_option
@talk_options
def command(
    model: Path,
    output: Path | None,
    force: bool,
    copy_weights: bool,
    memory: int,
    strategy: Strategy,
    goal: Goal,
    sizes: dict[str, int | None],
    as_json: bool,
    asked: StepOptions,
) -> None:
    """Find the largest size of a free dimension with which a training step of MODEL fits into memory.

    Memory is all that a process with the file takes: parameters, state, gradients and onnxruntime's arena. The program
    itself is not in it. OUT gets the step of the largest size, with its plan: it runs in a process that has no more.

    `--dim NAME=?` says which dimension it is; by default it is the batch.
    """
    if output is not None:
        check_model_output(output, force, model, *asked.files)
    refuse_idle(output, force=force, copy_weights=copy_weights)
    from ckplan.answers.fit import fit

    open_ones = [name for name, size in sizes.items() if size is None]
    if len(open_ones) > 1:
        raise UsageError(f"--dim leaves {' and '.join(open_ones)} open", "leave one of them open, and give the others")
    known = replace(asked, dims={name: size for name, size in sizes.items() if size is not None})
    with stage("planning") as doing:
        found = fit(
            model,
            known,
            memory,
            strategy,
            dimension=next(iter(open_ones), None),
            overhead=goal.overhead,
            seconds=goal.seconds,
            progress=doing,
        )
    notes([*found.planned.step.notes, *found.remarks])
    if output is not None:
        written(found.planned.model, output, force=force, copy_weights=copy_weights)
    if as_json:
        from ckplan.report import json

        show_json(json.fit(model, output, found))
    else:
        from ckplan.report.documents import fits

        show(fits.fit(model, output, found))

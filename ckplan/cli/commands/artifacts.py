"""``ckplan artifacts``: the files of a training loop in any language."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click
from click.core import ParameterSource

from ckplan.cli.options import (
    STEP,
    force_option,
    json_option,
    model_argument,
    of_option,
    planning_options,
    talk_options,
    training_step_options,
)
from ckplan.cli.planning import CHOICES, refuse_beside, tell
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import notes, show, show_json, stage
from ckplan.cli.values import OUTPUT, PATH
from ckplan.errors import UsageError

if TYPE_CHECKING:
    from ckplan.pipeline import Goal, StepOptions
    from ckplan.planner.strategies import Strategy


@click.command("artifacts", cls=SectionedCommand, short_help="Write what a training loop in any language needs.")
@model_argument
@click.option("-o", "--output", type=OUTPUT, metavar="DIR", help="Where to write.")
@force_option
@click.option(
    "--check",
    "checked",
    type=PATH,
    metavar="DIR",
    help="Write nothing: see that DIR holds whole files that belong together and were made from MODEL.",
)
@planning_options
@of_option
@training_step_options
@json_option
@talk_options
@click.pass_context
def command(
    context: click.Context,
    model: Path,
    output: Path | None,
    force: bool,
    checked: Path | None,
    strategy: Strategy,
    goal: Goal,
    as_json: bool,
    asked: StepOptions,
) -> None:
    """Write what a training loop in any language needs: three graphs for stock onnxruntime, and where to begin.

    DIR gets training.onnx (loss and gradients; with a plan built in if --budget, --overhead or --strategy is given),
    evaluation.onnx (loss and outputs, without gradients), update.onnx (gradients, parameters and state to new ones;
    --optimizer chooses which, AdamW by default), checkpoint.safetensors (initial parameters) and manifest.json (names,
    shapes and hashes).
    """
    if (output is None) == (checked is None):
        raise UsageError("give either -o DIR, to write there, or --check DIR", "see `ckplan artifacts --help`")
    from ckplan.report import json
    from ckplan.report.documents import artifacts

    if checked is not None:
        refuse_beside("`--check` looks at DIR as it is", {"force", *CHOICES, *STEP})
        from ckplan.bundle.manifest import open_artifacts

        found = open_artifacts(checked, model)
        if as_json:
            show_json(json.artifacts(found, []))
        else:
            show(artifacts.checked(found))
        return
    assert output is not None
    from ckplan.bundle.making import check_folder, make_graphs, write_artifacts

    check_folder(output.absolute(), force)
    from ckplan.pipeline.goal import ANY

    named = context.get_parameter_source("strategy") is not ParameterSource.DEFAULT
    is_planned = named or goal != ANY
    with stage(f"making the graphs of {model.name}"):
        graphs = make_graphs(model, asked, strategy if is_planned else None, goal)
    notes(graphs.step.notes)
    said = [*graphs.step.notes, *([] if graphs.planned is None else tell(graphs.planned))]
    with stage(f"writing {output}"):
        made = write_artifacts(graphs, output, model, force=force)
    if as_json:
        show_json(json.artifacts(made, said))
    else:
        show(artifacts.written(made))

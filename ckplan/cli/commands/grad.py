"""``ckplan grad``: the training graph, without a plan."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckplan.cli.options import (
    copy_option,
    json_option,
    kernels_option,
    model_argument,
    output_options,
    talk_options,
    training_step_options,
)
from ckplan.cli.output import check_model_output, written
from ckplan.cli.step import opened
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import notes, show, show_json, stage
from ckplan.errors import ModelError

if TYPE_CHECKING:
    from ckplan.pipeline import StepOptions


@click.command("grad", cls=SectionedCommand, short_help="Write a training graph: forward, loss and gradients.")
@model_argument
@output_options
@copy_option
@training_step_options
@kernels_option
@json_option
@talk_options
def command(
    model: Path, output: Path, force: bool, copy_weights: bool, as_json: bool, device: str, asked: StepOptions
) -> None:
    """Write the training graph of MODEL: forward, loss and gradients.

    The file computes the loss and one gradient per parameter out of standard ONNX operators. Parameters are
    initializers that a training loop may override by feeding inputs of their names.
    """
    check_model_output(output, force, model, *asked.files)

    step = opened(model, asked, device=device)
    training = step.training
    assert training is not None  # there is no --inference here
    made = step.model
    with stage("simulating the step"):
        try:
            made = step.ordered
        except ModelError as error:  # a type that this onnxruntime has no kernels for on this machine
            notes([f"what the file takes is not predicted: {error}"])
    said = [*step.notes, *written(made, output, force=force, copy_weights=copy_weights)]
    if as_json:
        from ckplan.report import json

        show_json(json.gradients(training, output, said))
    else:
        from ckplan.report.documents import plans

        show(plans.gradients(training, output))

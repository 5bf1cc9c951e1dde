"""``ckplan export-weights``: a checkpoint's weights in the model that they came from."""

from __future__ import annotations

from pathlib import Path

import click

from ckplan.cli.options import json_option, output_options, talk_options
from ckplan.cli.output import check_output
from ckplan.cli.sections import SectionedCommand
from ckplan.cli.terminal import notes, show_json

_PATH = click.Path(path_type=Path)


@click.command("export-weights", cls=SectionedCommand, short_help="Write a model with the weights of a checkpoint.")
@click.argument("checkpoint", type=_PATH)
@click.argument("model", type=_PATH)
@output_options
@json_option
@talk_options
def command(checkpoint: Path, model: Path, output: Path, force: bool, as_json: bool) -> None:
    """Write MODEL with the weights of CHECKPOINT, a file or the last one of a folder.

    MODEL is the forward model that the step file was made from. Each weight is written in the form that it has there:
    its type, in a data file or not, and its transposed copies with it.
    """
    check_output(output, force, model)
    from ckplan.training.checkpoint import read_checkpoint
    from ckplan.training.weights import export_weights

    found = read_checkpoint(checkpoint)
    said = export_weights(model, {name: found.values[name] for name in found.weights}, output, force=force)
    notes([f"the weights are of {found.path}, after {found.state.step} updates", *said])
    if as_json:
        from ckplan.report import json

        show_json(json.exported(found, output, said))
    else:
        click.echo(f"{output}: {len(found.weights)} trained weight(s)")

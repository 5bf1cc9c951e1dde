"""``ckplan export-weights``: a checkpoint's weights in the model that they came from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckplan.cli.options import json_option, output_options, talk_options
from ckplan.cli.output import check_model_output
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import answer, notes, show_json
from ckplan.cli.values import PATH
from ckplan.errors import UsageError

if TYPE_CHECKING:
    from ckplan.autodiff.lora import Lora


@click.command("export-weights", cls=SectionedCommand, short_help="Write a model with the weights of a checkpoint.")
@click.argument("checkpoint", type=PATH)
@click.argument("model", type=PATH)
@output_options
@click.option("--adapter", is_flag=True, help="Write low-rank adapters alone, into a folder OUT in PEFT's format.")
@json_option
@talk_options
def command(checkpoint: Path, model: Path, output: Path, force: bool, adapter: bool, as_json: bool) -> None:
    """Write MODEL with the weights of CHECKPOINT: a file, the last one of a folder, or a folder of PEFT's adapters.

    MODEL is the forward model that the step file was made from. Each weight is written in the form that it has there:
    its type, in a data file or not, and its transposed copies with it. Adapters are merged into the weights, or
    inserted beside weights that are quantised.
    """
    if not adapter:
        check_model_output(output, force, model, checkpoint)
    from ckplan.training import adapters
    from ckplan.training.checkpoint import read_checkpoint
    from ckplan.training.export import export_weights

    if (checkpoint / adapters.CONFIG).exists():
        weights: dict[str, Any]
        lora: Lora | None
        weights, lora = adapters.read_adapter(checkpoint)
        where = str(checkpoint)
    else:
        found = read_checkpoint(checkpoint)
        weights, lora = {name: found.values[name] for name in found.weights}, found.lora
        where = f"{found.path}, after {found.state.step} updates"
    if adapter:
        if lora is None:
            raise UsageError(f"{checkpoint} holds no adapters", "leave out --adapter")
        adapters.merged(model, weights, lora)  # refuses those of another model
        adapters.write_adapter(output, weights, lora, force=force)
        said: tuple[str, ...] = ()
    else:
        said = export_weights(model, weights, output, lora=lora, force=force)
    notes([f"the weights are of {where}", *said])
    if as_json:
        from ckplan.report import json

        show_json(json.exported(output, where, list(weights), said))
    else:
        answer(f"{output}: {len(weights)} trained weight(s)")

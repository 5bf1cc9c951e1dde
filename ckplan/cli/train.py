"""``ckplan train``: the loop around a step file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckplan.cli.help import SectionedCommand
from ckplan.cli.options import custom_ops_option, json_option, talk_options, training_loop_options
from ckplan.cli.streams import answer, notes, settings, show_json
from ckplan.cli.values import PATH

if TYPE_CHECKING:
    from ckplan.training.trainer import Epoch


@click.command("train", cls=SectionedCommand, short_help="Train with a step file.")
@click.argument("step", type=PATH)
@click.option(
    "--data", "data", required=True, type=PATH, metavar="FILE",
    help="Training data: an .npz with an array, or a .parquet with a column, for each input of STEP.",
)  # fmt: skip
@training_loop_options
@custom_ops_option
@json_option
@talk_options
def command(step: Path, data: Path, epochs: int, resume: bool, as_json: bool, **asked: Any) -> None:
    """Train with STEP, a file that `ckplan rewrite` or `ckplan grad` wrote, in onnxruntime on the CPU.

    The data hold an array for each input of STEP, such as image and labels, with as many samples each. A stopped
    training goes on with --resume as if it had not stopped. `ckplan export-weights` puts the trained weights back into
    the model.
    """
    from ckplan.training import checkpoint
    from ckplan.training.trainer import Trainer

    trainer = Trainer(step, data, progress=not settings().quiet, **asked)
    left = trainer.samples % trainer.batch
    if left:
        notes([f"{left} of {trainer.samples} samples are left out in each epoch, others each time"])

    def tell(epoch: Epoch) -> None:
        if not as_json:
            answer(str(epoch))

    epochs_made = trainer.train(epochs, resume=resume, each_epoch=tell)
    if trainer.is_stale:
        notes([f"the loss on the evaluation data was lowest {trainer.state.stale} epochs ago: {checkpoint.BEST}"])
    if as_json:
        from ckplan.report import json

        show_json(json.trained(epochs_made, checkpoint.latest(asked["checkpoints"])))
    elif not epochs_made:
        notes([f"{trainer.state.epoch} epoch(s) are done already; --epochs counts them, too"])

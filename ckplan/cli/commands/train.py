"""``ckplan train``: the loop around a step file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from ckplan.cli.options import custom_ops_option, json_option, optimizer_options, seed_option, talk_options
from ckplan.cli.terminal import completion
from ckplan.cli.terminal.help import SectionedCommand, section, stack
from ckplan.cli.terminal.streams import answer, notes, settings, show_json
from ckplan.cli.values import OUTPUT, PATH

if TYPE_CHECKING:
    from ckplan.training.trainer import Epoch


_loop_options = stack(
    section(
        "Updates",
        click.option(
            "--epochs", type=click.IntRange(min=1), default=1, show_default=True, help="Passes over the data."
        ),
        click.option(
            "--batch", type=click.IntRange(min=1), metavar="N",
            help="Samples of an update, a multiple of the file's batch, whose gradients are averaged. For a file "
            "without an optimizer. Default: the file's batch.",
        ),
        click.option(
            "--learning-rate", type=float, metavar="RATE",
            help="Learning rate that the schedule starts from. Default: that of STEP or of --optimizer.",
        ),
        click.option(
            "--schedule", default="constant", show_default=True, metavar="NAME[:FIELD=VALUE,...]",
            shell_complete=completion.schedules,
            help="How the learning rate changes: constant, linear or cosine, with warmup=STEPS and, but for constant, "
            "final=SHARE, such as cosine:warmup=100,final=0.1.",
        ),
        optimizer_options,
        seed_option,
    ),
    section(
        "Checkpoints",
        click.option(
            "--checkpoints", type=OUTPUT, required=True, metavar="FOLDER",
            help="Folder for checkpoints, one after each epoch; the last two are kept.",
        ),
        click.option(
            "--every", type=click.IntRange(min=1), metavar="N", help="Also write a checkpoint after every N updates."
        ),
        click.option("--resume", is_flag=True, help="Continue from the last checkpoint, to the same numbers."),
    ),
    section(
        "Evaluation",
        click.option("--eval-data", type=PATH, metavar="FILE", help="Data to score the model on after each epoch."),
        click.option("--model", type=PATH, metavar="MODEL", help="Model that STEP was made from, to be scored."),
        click.option(
            "--patience", type=click.IntRange(min=1), metavar="N",
            help="End after N epochs without a lower loss on the evaluation data. The best checkpoint is "
            "best.safetensors.",
        ),
    ),
)  # fmt: skip


@click.command("train", cls=SectionedCommand, short_help="Train with a step file.")
@click.argument("step", type=PATH)
@click.option(
    "--data", "data", required=True, type=PATH, metavar="FILE",
    help="Training data: an .npz with an array, or a .parquet with a column, for each input of STEP.",
)  # fmt: skip
@_loop_options
@custom_ops_option
@json_option
@talk_options
def command(step: Path, data: Path, epochs: int, resume: bool, as_json: bool, **asked: Any) -> None:
    """Train with STEP, a file that `ckplan rewrite` or `ckplan grad` wrote, in onnxruntime on the CPU.

    The data hold an array for each input of STEP, such as image and labels, with as many samples each. A STEP that was
    made without an optimizer needs --optimizer. A stopped training goes on with --resume as if it had not stopped.
    `ckplan export-weights` puts the trained weights back into the model.
    """
    from ckplan.training import checkpoint
    from ckplan.training.trainer import Trainer

    trainer = Trainer(step, data, progress=not settings().quiet, colour=not settings().no_color, **asked)
    before, after = trainer.notes(epochs, resume=resume), []
    notes(before)

    def tell(epoch: Epoch) -> None:
        if not as_json:
            answer(str(epoch))

    epochs_made = trainer.train(epochs, resume=resume, each_epoch=tell)
    if trainer.is_stale:
        after = [f"the loss on the evaluation data was lowest {trainer.state.stale} epoch(s) ago: {checkpoint.BEST}"]
    elif not epochs_made:
        after = [f"{trainer.state.epoch} epoch(s) are done already; --epochs counts them, too"]
    notes(after)
    if as_json:
        from ckplan.report import json

        show_json(json.trained(epochs_made, checkpoint.latest(asked["checkpoints"]), (*before, *after)))

"""``ckplan demo``: the README's picture on this machine, from a model that comes with the package."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ckplan.cli.options import force_option, json_option, talk_options
from ckplan.cli.proof import check, run_both
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import notes, say, settings, show, show_json, stage
from ckplan.cli.values import OUTPUT
from ckplan.errors import EnvironmentUnavailableError, UsageError

if TYPE_CHECKING:
    from ckplan.meter import Verification

_MODEL, _STEP, _BASE, _PICTURE = "gpt.onnx", "step.onnx", "without a plan.onnx", "saving.svg"
_BATCH, _BUDGET = 16, "20%"
_TITLE = f"Activations over one training step of a small GPT, batch {_BATCH}, measured in onnxruntime"


@click.command("demo", cls=SectionedCommand, short_help="Plan and run a small GPT that comes with ckplan.")
@click.argument("folder", type=OUTPUT, default=Path("ckplan-demo"))
@force_option
@json_option
@talk_options
def command(folder: Path, force: bool, as_json: bool) -> None:
    """Plan the training step of a small GPT for a fifth of its memory, run it with and without the plan, and compare.

    FOLDER (ckplan-demo by default) is made, and gets the model, both steps, and a picture of what was measured.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", "name another")
    if folder.is_dir() and any(folder.iterdir()) and not force:
        raise UsageError(f"folder {folder} is not empty", "name another, or pass --force to write into it")
    source = model_file()
    from ckplan.isolation.folders import made_folder

    with made_folder(folder):
        _demonstrate(source, folder, force=force, as_json=as_json)


def _demonstrate(source: Path, folder: Path, *, force: bool, as_json: bool) -> None:
    """Plan a model, run the step with and without the plan, and show what was measured.

    Args:
        source: the model.
        folder: where it is written, with both steps and the picture.
        force: whether files that exist are overwritten.
        as_json: whether the answer is JSON.

    Raises:
        CheckFailedError: onnxruntime undid the plan, or outputs differ.
        EnvironmentUnavailableError: something cannot be written or run.
    """
    from ckplan import api
    from ckplan.model import save
    from ckplan.model.files.read import read

    model, step, base = folder / _MODEL, folder / _STEP, folder / _BASE
    save(read(source), model, force=force)
    if not settings().quiet:
        files = shlex.join((str(model), "-o", str(step)))
        say(f"running: ckplan rewrite {files} --dim batch={_BATCH} --budget {_BUDGET} --verify")
    with stage("planning"):
        opened = api.open_model(model, dims={"batch": _BATCH})
        planned = api.rewrite(opened, budget=_BUDGET, output=step, force=force)
        save(opened.ordered, base, force=force)
    notes(opened.notes)
    found = run_both(base, step, device="cpu", inputs=None, seed=0)
    written = draw(found, folder / _PICTURE, force)
    if as_json:
        from ckplan.report import json

        show_json(json.rewritten(planned, step, opened.notes, found))
    else:
        from ckplan.report.document import joined
        from ckplan.report.documents import plans, verifications

        told = plans.rewritten(step, planned.plan, planned.before, planned.after)
        show(joined(told, verifications.verification(found)))
    if written and not settings().quiet:
        say(f"{folder / _PICTURE} shows it; next: ckplan analyze YOUR_MODEL.onnx")
    check(found)


def model_file() -> Path:
    """The model of the package, or in a clone the sample model that it is made of.

    Raises:
        EnvironmentUnavailableError: it is missing.
    """
    package = Path(__file__).parents[2]
    for place in (package / "demo.onnx", package.parent / "sample_models" / "gpt_tiny.onnx"):
        if place.is_file():
            return place
    raise EnvironmentUnavailableError("this copy of ckplan has no demo model", "install it with pip")


def draw(found: Verification, picture: Path, force: bool) -> bool:
    """Draw what was measured; False where onnxruntime has no counters."""
    if found.base.counters is None or found.new.counters is None:
        return False
    from ckplan.model.files.saving import write_text
    from ckplan.report.curves import Curve, curves

    sides = (("without a plan", found.base.counters), ("planned by ckplan", found.new.counters))
    write_text(curves([Curve(name, side.timeline) for name, side in sides], _TITLE), picture, force=force)
    return True

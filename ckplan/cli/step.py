"""From the options of a command to the step that it is about."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.cli.terminal.streams import notes, stage

if TYPE_CHECKING:
    from ckplan.pipeline import Step, StepOptions


def opened(model: Path, asked: StepOptions, *, cost: str = "flops", device: str = "cpu") -> Step:
    """The step of a model; what was chosen on the way is noted on stderr.

    Args:
        model: the file.
        asked: how to load and differentiate it.
        cost: how nodes are priced, as ``--cost`` asks for it.
        device: where they are measured, and whose kernels gradients and plans are for (``auto``: the CPU's).

    Raises:
        ModelError: the model cannot be read or differentiated.
        UsageError: an option does not fit the model or another option.
    """
    from ckplan.pipeline import open_step

    with stage(f"reading {model.name}") as doing:
        step = open_step(model, asked, doing, device=device)
    notes(step.notes)
    if cost in ("flops", "clock"):  # no node is measured
        return step.priced(cost, device)
    with stage("measuring what nodes cost"):
        priced = step.priced(cost, device)
    notes(priced.notes[len(step.notes) :])
    return priced

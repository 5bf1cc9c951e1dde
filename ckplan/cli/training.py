"""From the options of a command to a training graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.cli.terminal import notes, stage

if TYPE_CHECKING:
    from ckplan.autodiff import TrainingGraph


def training_graph(
    model: Path,
    *,
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    loss: str | None,
    wrt: Sequence[str],
    no_grad: Sequence[str],
) -> tuple[TrainingGraph, list[str]]:
    """Load a model and build its training graph; what was chosen on the way is noted on stderr and returned."""
    from ckplan.autodiff import build_training_graph
    from ckplan.model import load

    with stage(f"reading {model.name}"):
        forward = load(model, dims=dims, shapes=shapes)
    with stage("differentiating"):
        training = build_training_graph(forward.model, loss=loss, wrt=wrt, no_grad=no_grad)
    said = [*forward.notes, f"the loss is {training.description}", *training.notes]
    notes(said)
    return training, said

"""From the options of a command to a training graph."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckplan.cli.terminal import notes, stage

if TYPE_CHECKING:
    from ckplan.autodiff import TrainingGraph


def training_graph(
    model: Path, *, dims: Mapping[str, int], shapes: Mapping[str, Sequence[int]], **objective: Any
) -> tuple[TrainingGraph, list[str]]:
    """Load a model and build its training graph; what was chosen on the way is noted on stderr and returned.

    Args:
        model: the file.
        dims: sizes of named dimensions.
        shapes: shapes of inputs.
        objective: options of :func:`ckplan.build_training_graph`.
    """
    from ckplan.autodiff import build_training_graph
    from ckplan.model import load

    with stage(f"reading {model.name}"):
        forward = load(model, dims=dims, shapes=shapes)
    with stage("differentiating"):
        training = build_training_graph(forward.model, **objective)
    said = [*forward.notes, f"the loss is {training.description}", *training.notes]
    notes(said)
    return training, said

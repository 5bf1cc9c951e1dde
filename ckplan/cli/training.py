"""From the options of a command to the graph that it works on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ckplan.cli.terminal import notes, stage
from ckplan.errors import UsageError

if TYPE_CHECKING:
    import onnx_ir as ir

    from ckplan.autodiff import TrainingGraph


@dataclass(frozen=True)
class Subject:
    """What a command plans.

    Attributes:
        model: the graph.
        training: what is known of it if it is a training graph that was made now.
        notes: what was chosen on the way; it has been said on stderr.
    """

    model: ir.Model
    training: TrainingGraph | None
    notes: list[str]


def subject(model: Path, *, inference: bool, **options: Any) -> Subject:
    """The graph that a command plans: the training graph of a model, or with ``--inference`` the model itself.

    Args:
        model: the file.
        inference: whether the model itself is meant.
        options: see `training_graph`.

    Raises:
        UsageError: an option does not fit the model or another option.
    """
    if not inference:
        training, said = training_graph(model, **options)
        return Subject(training.model, training, said)
    context = click.get_current_context()
    given = [
        f"`{parameter.opts[-1]}`"
        for parameter in context.command.params
        if parameter.name in options.keys() - {"dims", "shapes"}
        and context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    ]
    if given:
        raise UsageError(
            f"`--inference` plans the model as it is, without training, and does not go with {', '.join(given)}",
            "leave out one or the other",
        )
    from ckplan.answers.planning import inference_graph
    from ckplan.model import load

    with stage(f"reading {model.name}"):
        forward = load(model, dims=options["dims"], shapes=options["shapes"])
    said = list(forward.notes)
    notes(said)
    return Subject(inference_graph(forward.model), None, said)


def training_graph(
    model: Path,
    *,
    dims: Mapping[str, int],
    shapes: Mapping[str, Sequence[int]],
    training: bool,
    optimizer: str | None,
    clip_norm: float | None,
    **objective: Any,
) -> tuple[TrainingGraph, list[str]]:
    """Load a model and build its training graph; what was chosen on the way is noted on stderr and returned.

    Args:
        model: the file.
        dims: sizes of named dimensions.
        shapes: shapes of inputs.
        training: whether BatchNormalization and Dropout are turned into their training forms.
        optimizer: what makes new parameters, if anything does.
        clip_norm: the norm to which it clips gradients, if it does.
        objective: options of :func:`ckplan.build_training_graph`.

    Raises:
        UsageError: an option does not fit the model or another option.
    """
    from ckplan.autodiff import add_optimizer, build_training_graph, parse_optimizer
    from ckplan.model import load
    from ckplan.model.half import half_precision_notes

    if clip_norm is not None and optimizer is None:
        raise UsageError("`--clip-norm` clips what an optimizer gets, and there is none", "name one with --optimizer")
    chosen = None if optimizer is None else parse_optimizer(optimizer)
    with stage(f"reading {model.name}"):
        forward = load(model, dims=dims, shapes=shapes, training=training)
    with stage("differentiating"):
        made = build_training_graph(forward.model, training=training, **objective)
        if chosen is not None:
            made = add_optimizer(made, chosen, clip_norm)
    said = [*forward.notes, f"the loss is {made.description}", *made.notes, *half_precision_notes(made.model)]
    notes(said)
    return made, said

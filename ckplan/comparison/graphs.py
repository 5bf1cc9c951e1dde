"""From a file and its settings to the graph that onnxruntime would be given."""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ckplan.autodiff import add_optimizer, build_training_graph, parse_optimizer
from ckplan.comparison.settings import TRAINING, Settings
from ckplan.comparison.snapshot import Fingerprint
from ckplan.errors import UsageError
from ckplan.keys import GRADIENTS, PLAN
from ckplan.model import load
from ckplan.model.read import read

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Graph:
    """A graph to take a snapshot of.

    Attributes:
        model: the graph.
        fingerprint: which model it is of.
        planned: whether a plan is to be made for it; otherwise it is taken as it is.
        ready_made: whether ckplan wrote the file, so that no settings apply.
        notes: what was chosen on the way.
    """

    model: ir.Model
    fingerprint: Fingerprint
    planned: bool
    ready_made: bool
    notes: tuple[str, ...]


def graph_of(path: Path, settings: Settings, progress: Progress = lambda doing: None) -> Graph:
    """Read a model and differentiate it, unless it is a training graph or a planned file already or is not trained.

    Args:
        path: the file.
        settings: how to load and differentiate it.
        progress: called with what is being done, in words.

    Raises:
        ModelError: the file cannot be read, shaped or differentiated.
        UsageError: a setting does not fit the model or another setting.
    """
    progress(f"reading {path.name}")
    model = read(path)
    fingerprint = fingerprint_of(model)
    if made_by_ckplan(model):
        _refuse_settings(path, settings)
        return Graph(model, fingerprint, False, True, (f"{path.name} was made by ckplan and is taken as it is",))
    forward = load(path, dims=settings.dims, shapes=settings.shapes, training=settings.option("training"))
    if settings.inference:
        return Graph(forward.model, fingerprint, False, False, forward.notes)
    progress(f"differentiating {path.name}")
    objective = {name: settings.option(name) for name in TRAINING if name not in ("optimizer", "clip_norm")}
    training = build_training_graph(forward.model, **objective)
    optimizer, clip_norm = settings.option("optimizer"), settings.option("clip_norm")
    if optimizer is not None:
        training = add_optimizer(training, parse_optimizer(optimizer), clip_norm)
    elif clip_norm is not None:
        raise UsageError("`clip-norm` clips what an optimizer gets, and there is none", "name an optimizer")
    notes = (*forward.notes, f"the loss is {training.description}", *training.notes)
    return Graph(training.model, fingerprint, True, False, notes)


def made_by_ckplan(model: ir.Model) -> bool:
    """Whether a file is a training graph or a planned file that ckplan wrote."""
    return not {GRADIENTS, PLAN}.isdisjoint(model.metadata_props)


def fingerprint_of(model: ir.Model) -> Fingerprint:
    """Which model a file holds, and a hash of its nodes.

    Sizes are in the hash alone: a model of another batch is the same model.
    """
    graph = model.graph
    fed = [value for value in graph.inputs if not value.is_initializer()]
    content = hashlib.sha256()
    for value in fed:
        content.update(f"{value.name}{value.shape}".encode())
    for node in ir.traversal.RecursiveGraphIterator(graph):
        ends = [value.name if value is not None else "" for value in (*node.inputs, *node.outputs)]
        attributes = [str(attribute) for attribute in node.attributes.values() if _is_plain(attribute)]
        content.update(repr((node.domain, node.op_type, node.name, ends, attributes)).encode())
    return Fingerprint(
        name=graph.name or "",
        inputs=tuple(f"{value.name}: {value.dtype.name if value.dtype is not None else '?'}" for value in fed),
        outputs=tuple(str(value.name) for value in graph.outputs),
        digest=content.hexdigest()[:16],
    )


def _is_plain(attribute: ir.Attr) -> bool:
    return attribute.type in (ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.STRING)


def _refuse_settings(path: Path, settings: Settings) -> None:
    """Raises UsageError for settings that would change a file that is taken as it is."""
    given = settings.options()
    if given:
        listed = ", ".join("`" + name.replace("_", "-") + "`" for name in given)
        raise UsageError(
            f"{path.name} was made by ckplan and is taken as it is, which does not go with {listed}",
            "give the model that it was made from, or leave out the settings",
        )

"""From a file and its settings to the step that a snapshot is taken of."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import onnx_ir as ir

from ckplan.comparison.settings import Settings
from ckplan.comparison.snapshot import Fingerprint
from ckplan.errors import UsageError
from ckplan.keys import GRADIENTS, PLAN
from ckplan.model.read import read
from ckplan.pipeline import Step, open_step
from ckplan.pipeline.step import Progress


@dataclass(frozen=True)
class Subject:
    """What a snapshot is taken of.

    Attributes:
        step: the step.
        fingerprint: which model it is of.
        ready_made: whether ckplan wrote the file, so that it is taken as it is and no settings apply.
    """

    step: Step
    fingerprint: Fingerprint
    ready_made: bool


def subject_of(path: Path, settings: Settings, progress: Progress = lambda doing: None) -> Subject:
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
        note = f"{path.name} was made by ckplan and is taken as it is"
        return Subject(Step(path.name, model, notes=(note,)), fingerprint, True)
    return Subject(open_step(path, settings.step, progress), fingerprint, False)


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
    given = [name for name in settings.options() if name != "budget"]
    if given:
        listed = ", ".join("`" + name.replace("_", "-") + "`" for name in given)
        raise UsageError(
            f"{path.name} was made by ckplan and is taken as it is, which does not go with {listed}",
            "give the model that it was made from, or leave out the settings",
        )

"""Make the files of a training loop: step, evaluation, update, initial values, and what says that they belong together.

Parameters, statistics and the optimizer's state are inputs without a default in all three graphs: their initial values
lie in the checkpoint once, and a graph is small and quick to open.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ckplan import keys
from ckplan.arguments import check_directory, path_of
from ckplan.autodiff import parse_optimizer
from ckplan.autodiff.evaluation import evaluation_graph
from ckplan.autodiff.lora import Lora, add_adapters
from ckplan.autodiff.optimizers.alone import update_graph
from ckplan.bundle.initial_values import TYPES, write_checkpoint
from ckplan.bundle.manifest import FILES, NAME, SCHEMA, Artifacts, hash_of
from ckplan.errors import EnvironmentUnavailableError, UsageError
from ckplan.isolation.folders import temporary_folder
from ckplan.model import save
from ckplan.pipeline import Goal, Planned, Step, StepOptions, open_step, rewrite
from ckplan.pipeline.sources import Source, forward_of
from ckplan.planner import Timeline
from ckplan.planner.strategies import Strategy
from ckplan.version import __version__

DEFAULT_OPTIMIZER = "adamw"
_UPDATE = ("optimizer", "clip_norm")
"""The options that concern the update alone."""
_OWN = "ckplan/"
"""What the names of numbers of the gradient rules begin with. Some depend on the batch, and a checkpoint does not."""


@dataclass(frozen=True)
class Graphs:
    """The graphs of a training loop, and where their parameters begin.

    Attributes:
        step: the training step, before it is planned.
        models: by what they are for, as in `ckplan.bundle.manifest.FILES`.
        values: initial values by name.
        description: entries of the manifest that the graphs tell.
        planned: the plan that is built into the training graph, if there is one.
    """

    step: Step
    models: Mapping[str, ir.Model]
    values: Mapping[str, ir.TensorProtocol]
    description: Mapping[str, Any]
    planned: Planned | None = None

    @property
    def after(self) -> Timeline:
        """What the training graph takes, simulated."""
        return self.step.baseline if self.planned is None else self.planned.after


def make_graphs(
    source: Source, options: StepOptions, strategy: Strategy | None = None, goal: Goal | None = None
) -> Graphs:
    """Make the graphs of a training loop.

    Args:
        source: the forward model.
        options: how to load and differentiate it; the optimizer, AdamW if none is named, goes into the update.
        strategy: how to plan the training graph; None writes it without a plan.
        goal: what the plan is to keep to.

    Raises:
        ModelError: the model cannot be read, shaped or differentiated.
        UsageError: an option does not fit.
        InfeasibleError: no plan keeps to the budget.
    """
    if options.option("grad_ys"):
        raise UsageError("`--grad-ys` starts from given gradients, and a loop needs a loss", "name one with --loss")
    named = options.option("optimizer")
    optimizer = parse_optimizer(DEFAULT_OPTIMIZER if named is None else named)
    own = {name: value for name, value in options.training.items() if name not in _UPDATE}
    step = open_step(source, replace(options, training=own))
    training = step.training
    assert training is not None
    update = update_graph(training.model, training.gradients, optimizer, options.option("clip_norm"))
    forward = forward_of(source, replace(options, training={})).model
    if options.option("lora") is not None:
        add_adapters(forward, Lora.of(options.option("lora")))
    evaluation = evaluation_graph(forward, options.option("loss"))
    planned = None if strategy is None else rewrite(step, strategy, goal or Goal())
    model = step.ordered.clone() if planned is None else planned.model
    models = {"training": model, "evaluation": evaluation, "update": update.model}
    values = _values(model, update.model)
    for graph in models.values():
        _feed(graph, values)
    rate = update.model.metadata_props[keys.LEARNING_RATE]
    states = [name for name in update.updates if name not in training.gradients]
    description = {
        "loss": training.loss,
        "about": training.description,
        "optimizer": str(optimizer),
        "learning_rate": rate,
        "gradients": training.gradients,
        "updates": {new: old for old, new in {**training.updates, **update.updates}.items()},
        "batch": [
            _told(value) for value in model.graph.inputs if value.const_value is None and value.name not in values
        ],
        "states": [_told(value) for value in update.model.graph.inputs if value.name in states],
    }
    first = {name: values[name] for name in values if name not in states}
    return Graphs(step, models, first, description, planned)


def write_artifacts(
    graphs: Graphs, folder: str | os.PathLike[str], source: Source, *, force: bool = False
) -> Artifacts:
    """Write the files of a training loop into a folder of their own, all or none.

    Args:
        graphs: what to write.
        folder: made if it is not there.
        source: the forward model; of a file, the hash is noted.
        force: whether files of an earlier run may be replaced.

    Raises:
        UsageError: the folder holds files, and none may be replaced, or others than such a run writes.
        EnvironmentUnavailableError: it cannot be written.
        ModelError: a graph cannot be written.
    """
    target = Path(os.path.realpath(path_of("the folder", folder)))
    check_folder(target, force)
    try:
        with temporary_folder(target.parent) as workspace:
            new = workspace / "new"
            new.mkdir()
            try:
                for kind, model in graphs.models.items():
                    save(model, new / FILES[kind])
                write_checkpoint(graphs.values, new / FILES["checkpoint"])
            except EnvironmentUnavailableError as error:  # where the files were to lie in the end is known to the user
                raise EnvironmentUnavailableError(error.message.replace(str(new), str(target)), error.hint) from error
            manifest = {**_head(graphs, source), "files": {kind: _described(graphs, kind, new) for kind in FILES}}
            text = json.dumps({**manifest, **graphs.description}, indent=1)
            (new / NAME).write_text(f"{text}\n", encoding="utf-8")
            if target.exists():
                target.rename(workspace / "old")
            new.rename(target)
    except OSError as error:
        raise EnvironmentUnavailableError(
            f"cannot write {target}: {error.strerror or error}", "write to another directory"
        ) from error
    return Artifacts(Path(folder), json.loads(text))


def check_folder(target: Path, force: bool) -> None:
    """Make sure that a folder may be written, before the work and not after it.

    Raises:
        UsageError: see `write_artifacts`.
        EnvironmentUnavailableError: permissions do not allow it.
    """
    check_directory(target.parent)
    if not os.access(target.parent, os.W_OK):
        raise EnvironmentUnavailableError(f"no permission to write {target}", "write to another directory")
    if Path(os.path.realpath(target)).is_symlink():
        raise UsageError(f"output {target} is a link that leads back to itself", "name another directory")
    if not target.exists():
        return
    if not target.is_dir():
        raise UsageError(f"output {target} is not a directory", "name a directory")
    held = {file.name for file in target.iterdir()}
    others = sorted(name for name in held if name not in {*FILES.values(), NAME} and not name.endswith(".onnx.data"))
    if others:
        raise UsageError(f"{target} holds other files, such as {others[0]}", "name a directory of its own")
    if held and not force:
        raise UsageError(f"{target} holds the files of an earlier run", "pass --force to replace them")
    # The folder itself is replaced, as a whole.
    if os.path.ismount(target):
        raise UsageError(f"{target} is a mount point, and cannot be replaced", "name a new directory in it")
    if not os.access(target, os.W_OK):
        raise EnvironmentUnavailableError(f"no permission to replace {target}", "write to another directory")


def _values(*models: ir.Model) -> dict[str, ir.TensorProtocol]:
    """The defaults of inputs that a checkpoint can hold, by name."""
    found: dict[str, ir.TensorProtocol] = {}
    for model in models:
        for value in model.graph.inputs:
            default, name = value.const_value, str(value.name)
            if default is not None and default.dtype in TYPES and not name.startswith(_OWN):
                found.setdefault(name, default)
    return found


def _feed(model: ir.Model, values: Mapping[str, ir.TensorProtocol]) -> None:
    """Make inputs without a default of what the checkpoint holds; drop what no node reads."""
    graph = model.graph
    for name, value in list(graph.initializers.items()):
        if name in values:
            del graph.initializers[name]
            value.const_value = None
            if value not in graph.inputs:
                graph.inputs.append(value)
        elif name.startswith(_OWN) and value in graph.inputs:
            graph.inputs.remove(value)
        elif not value.uses() and not value.is_graph_output() and not value.is_graph_input():
            del graph.initializers[name]


def _head(graphs: Graphs, source: Source) -> dict[str, Any]:
    model = {"name": graphs.step.name}
    if isinstance(source, str | os.PathLike):
        model["sha256"] = hash_of(Path(source))
    versions = {"ckplan": __version__, **{name: version(name) for name in ("onnx", "onnx-ir")}}
    opset = graphs.step.model.graph.opset_imports[""]
    peaks = {"without_a_plan": graphs.step.baseline.peak_activations, "predicted": graphs.after.peak_activations}
    return {"schema": SCHEMA, "versions": versions, "opset": opset, "model": model, "peak_activations": peaks}


def _described(graphs: Graphs, kind: str, folder: Path) -> dict[str, Any]:
    file = folder / FILES[kind]
    about: dict[str, Any] = {"name": file.name, "bytes": file.stat().st_size, "sha256": hash_of(file)}
    if kind in graphs.models:
        graph = graphs.models[kind].graph
        about["inputs"] = [_told(value) for value in graph.inputs if value.const_value is None]
        about["outputs"] = [_told(value) for value in graph.outputs]
    else:
        about["tensors"] = list(graphs.values)
    return about


def _told(value: ir.Value) -> dict[str, Any]:
    """What a loop has to know of a tensor to make one like it."""
    assert value.dtype is not None
    assert value.shape is not None
    sizes = [size if isinstance(size, int) else str(size) for size in value.shape]
    return {"name": value.name, "dtype": value.dtype.numpy().name, "shape": sizes}

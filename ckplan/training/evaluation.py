"""The loss, and for classifiers the accuracy, of a forward model with the weights of a training.

A step file computes its loss in training form, with masks and statistics of the batch, and updates while it does: the
model that it was made from is what is evaluated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.autodiff.evaluation import LossGraph, loss_graph
from ckplan.autodiff.lora import add_adapters
from ckplan.errors import ModelError, UsageError
from ckplan.isolation.arrays import Array
from ckplan.model.files.external import in_one_folder
from ckplan.model.files.metadata import listed_names, told
from ckplan.model.files.read import read
from ckplan.model.loading import load
from ckplan.model.sizes.default_sizes import SizesError
from ckplan.training.buffers import bind, ort_value, run_bound
from ckplan.training.data import Data, batches, fitted
from ckplan.training.export import separate_statistics
from ckplan.training.stepfile import Spec, StepFile, session_of


@dataclass(frozen=True)
class Score:
    """How good a model is on some data.

    Attributes:
        loss: mean over the samples; where a loss ignores some labels, over those that count, and where classes have
            weights, by the weight of each label's. A loss that is a sum is averaged over the batches.
        accuracy: share of samples whose label has the largest score; None where the loss is no cross-entropy.
    """

    loss: float
    accuracy: float | None


class Evaluation:
    """Scores a model on data that it is not trained on.

    Args:
        step: the step file.
        model: the model that it was made from.
        data: arrays by the names of the step's inputs; any number of samples.
        where: what the data are called in errors.

    Raises:
        ModelError: the model cannot be read, or is another one.
        UsageError: the data do not fit.
    """

    def __init__(self, step: StepFile, model: Path, data: Data, where: str = "the evaluation data") -> None:
        self._step, self._path = step, model
        self._data = fitted(data, step.inputs, where)
        samples = len(next(iter(self._data.values())))
        if not samples:
            raise UsageError(f"{where} have no samples", "give at least one")
        self._parts: list[tuple[int, int, _Session]] = []
        whole = samples - samples % step.batch
        for start, end, size in ((0, whole, step.batch), (whole, samples, samples - whole)):
            if end > start:
                self._parts.append((start, end, self._session(size)))

    def score(self, values: Mapping[str, Array]) -> Score:
        """Score the model with these weights."""
        losses: list[float] = []
        rights: list[float] = []
        counts: list[float] = []
        for start, end, session in self._parts:
            for batch in batches(self._data, np.arange(start, end), session.size):
                if count := self._counted(batch, session.size):
                    loss, right, divisor = session.run(batch, values, self._step.inputs)
                    if divisor != 0:
                        losses.append(loss)
                        rights.append(right)
                        counts.append(count if divisor is None else divisor)
        if not counts:
            return Score(float("nan"), None)
        accuracy = None if np.isnan(rights).any() else float(np.average(rights, weights=counts))
        return Score(float(np.average(losses, weights=counts)), accuracy)

    def _counted(self, batch: Data, samples: int) -> int:
        """What a batch weighs: its samples, or the labels that count in it, over which its loss is a mean."""
        specs = self._step.inputs.items()
        counted = [np.count_nonzero(batch[name] != spec.ignored) for name, spec in specs if spec.ignored is not None]
        return int(min(counted, default=samples))

    def _session(self, size: int) -> _Session:
        about = self._step.model.metadata_props
        own = {str(value.name) for value in read(self._path).graph.inputs}
        fixed = {name: numbers for name, numbers in told(about, keys.SET).items() if name in own}
        shapes = {
            name: (size, *spec.shape[1:]) for name, spec in self._step.inputs.items() if name in own and spec.shape
        }
        try:
            forward = load(self._path, shapes=shapes, fixed=fixed).model
        except (UsageError, SizesError) as error:
            raise self._other(error.message) from error
        if self._step.lora is not None:
            add_adapters(forward, self._step.lora)
        objective = listed_names(about, keys.OBJECTIVE)
        separate_statistics(forward.graph, self._step.updates)
        graph = loss_graph(forward, objective, self._step.weights)
        weights = [name for name in self._step.weights if name in graph.model.graph.initializers]
        if len(weights) < len(self._step.weights):
            lacking = next(name for name in self._step.weights if name not in weights)
            raise self._other(f"it has no weight '{lacking}'")
        return _Session(graph, weights, size)

    def _other(self, reason: str) -> ModelError:
        """What to say of a model that the step was not made from."""
        what = f"{self._path} is not the model that {self._step.path} was made from"
        return ModelError(f"{what}: {reason}", "give that one")


class _Session:
    """A loss graph for a size of batch, whose weights are inputs."""

    def __init__(self, found: LossGraph, weights: list[str], size: int) -> None:
        self.size, self._weights = size, weights
        graph = found.model.graph
        for name in weights:
            graph.inputs.append(graph.initializers.pop(name))
        folder = in_one_folder(found.model)
        self._outputs = [name for name in (found.loss, found.accuracy, found.divisor) if name]
        self._found = found
        self._inputs = {str(value.name) for value in graph.inputs}
        self._session: Any = session_of(ir.to_proto(found.model).SerializeToString(), folder)

    def run(
        self, batch: Data, values: Mapping[str, Array], inputs: Mapping[str, Spec]
    ) -> tuple[float, float, float | None]:
        """Loss, accuracy and divisor of a batch; the accuracy is NaN and the divisor None where there is none."""
        fed = {name: np.asarray(array, order="C") for name, array in batch.items() if name in self._inputs}
        held = {**fed, **{name: values[name] for name in self._weights}}
        binding = bind(self._session, {name: ort_value(array) for name, array in held.items()}, {})
        for name in self._outputs:
            binding.bind_output(name)
        run_bound(self._session, binding, "an evaluation", batch, inputs)
        read = (float(value.numpy().reshape(())) for value in binding.get_outputs())
        made = dict(zip(self._outputs, read, strict=True))
        found = self._found
        return made[found.loss], made.get(found.accuracy, float("nan")), made.get(found.divisor)

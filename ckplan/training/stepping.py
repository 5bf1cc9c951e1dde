"""One update of the parameters: by a file that makes it, or by the gradients of several batches and an optimizer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx_ir as ir

from ckplan import keys
from ckplan.autodiff import TrainingGraph, parse_optimizer
from ckplan.autodiff.optimizers.alone import update_graph
from ckplan.autodiff.reading import dtype_of, shape_of
from ckplan.errors import ModelError, UsageError
from ckplan.isolation.arrays import Array
from ckplan.model.inference.infer import static_shape
from ckplan.training.buffers import Buffers, bind, ort_value, run_bound
from ckplan.training.stepfile import StepFile, session_of

Batch = Mapping[str, Array]

_BATCHES = "number of batches"


class Stepper(ABC):
    """Makes updates, which count when they are accepted.

    Attributes:
        values: parameters, state and running statistics by name.
        new: the same after the update, until it is accepted.
    """

    def __init__(self, step: StepFile) -> None:
        self.step = step
        self._feeds = {name: np.zeros(spec.shape, spec.dtype) for name, spec in step.inputs.items()}
        self._loss = np.zeros(_shape(step, step.loss), _dtype(step, step.loss))
        self._scale = np.ones((), np.float32)
        self._fed = {name: ort_value(array) for name, array in self._feeds.items()}
        if step.loss_scale:
            self._fed[step.loss_scale] = ort_value(self._scale)
        self._made = {step.loss: ort_value(self._loss)}

    @abstractmethod
    def open(self, drawn: int) -> None:
        """Open the sessions anew; see `StepFile.open`."""

    @abstractmethod
    def run(self, batches: Sequence[Batch], rate: float, scale: float) -> float:
        """Compute an update.

        Args:
            batches: of as many samples as the file takes, each.
            rate: the learning rate.
            scale: the loss scale, where it is fed.

        Returns:
            The mean of the losses of the batches.
        """

    @abstractmethod
    def accept(self) -> None:
        """Let the next step start from the update."""

    @property
    @abstractmethod
    def values(self) -> dict[str, Array]:
        """What the next step reads."""

    @property
    @abstractmethod
    def new(self) -> dict[str, Array]:
        """What the last step made."""

    @abstractmethod
    def set(self, values: Mapping[str, Array]) -> None:
        """Copy values in."""

    def _feed(self, batch: Batch, scale: float) -> None:
        for name, array in self._feeds.items():
            array[...] = batch[name]
        self._scale[...] = scale

    def _run_file(self, session: Any, binding: Any, batch: Batch) -> None:
        run_bound(session, binding, f"a step of {self.step.path}", batch, self.step.inputs)


class WholeStep(Stepper):
    """The update of a file with an optimizer, in place where the file is made for it.

    Where the loss scale is fed, an update may be one to be left out: then the old values must still be there.
    """

    def __init__(self, step: StepFile) -> None:
        super().__init__(step)
        in_place = step.is_in_place and not step.loss_scale
        self._buffers = Buffers({name: step.initial(name) for name in step.updates}, in_place)
        self._rate = step.initial(step.learning_rate)
        self._fed[step.learning_rate] = ort_value(self._rate)

    def open(self, drawn: int) -> None:
        """See `Stepper.open`."""
        self._session = self.step.open(drawn)
        updates = self.step.updates
        old, new = self._buffers.sets
        self._bindings = [
            bind(self._session, {**self._fed, **read}, {**self._made, **{updates[n]: v for n, v in written.items()}})
            for read, written in ((old, new), (new, old))
        ]

    def run(self, batches: Sequence[Batch], rate: float, scale: float) -> float:
        """See `Stepper.run`; takes one batch."""
        (batch,) = batches
        self._feed(batch, scale)
        self._rate[...] = rate
        self._run_file(self._session, self._bindings[self._buffers.current], batch)
        return float(self._loss)

    def accept(self) -> None:
        """See `Stepper.accept`."""
        self._buffers.swap()

    @property
    def values(self) -> dict[str, Array]:
        """See `Stepper.values`."""
        return self._buffers.values

    @property
    def new(self) -> dict[str, Array]:
        """See `Stepper.new`."""
        return self._buffers.new

    def set(self, values: Mapping[str, Array]) -> None:
        """See `Stepper.set`."""
        self._buffers.set(values)


class AccumulatedStep(Stepper):
    """The update of an optimizer by the mean of the gradients that a file makes of several batches.

    The gradients are summed outside of the file, and the optimizer is a graph of its own: while the batches run, memory
    holds one batch's activations.

    Args:
        step: a file without an optimizer.
        optimizer: as on the command line.
        clip_norm: see `ckplan.add_optimizer`.
    """

    def __init__(self, step: StepFile, optimizer: str, clip_norm: float | None) -> None:
        super().__init__(step)
        self._sums: dict[str, Array] = {}
        self._gradients: dict[str, Array] = {}
        for name, gradient in step.gradients.items():
            dtype = _dtype(step, gradient)
            array = np.zeros(_shape(step, gradient), dtype)
            self._gradients[name] = array
            self._sums[name] = np.zeros_like(array, np.float32 if dtype.itemsize < 4 else dtype)
        self._made |= {step.gradients[name]: ort_value(array) for name, array in self._gradients.items()}
        self._statistics = Buffers({name: step.initial(name) for name in step.updates})
        update, initial = _update_graph(step, optimizer, clip_norm)
        initial |= {name: step.initial(name) for name in self._sums}
        self._rate, self._batches = initial.pop(update.model.metadata_props[_RATE]), np.zeros((), np.float32)
        self._updates = update.updates
        self._buffers = Buffers({name: initial[name] for name in self._updates})
        self._model = ir.to_proto(update.model).SerializeToString()
        self._summed = {step.gradients[name]: ort_value(array) for name, array in self._sums.items()}
        self._summed |= {update.model.metadata_props[_RATE]: ort_value(self._rate), _BATCHES: ort_value(self._batches)}
        self._session = session_of(self._model)
        old, new = self._buffers.sets
        self._bindings = [
            bind(self._session, {**self._summed, **read}, {self._updates[n]: v for n, v in written.items()})
            for read, written in ((old, new), (new, old))
        ]

    def open(self, drawn: int) -> None:
        """See `Stepper.open`."""
        self._gradient_session = self.step.open(drawn)

    def run(self, batches: Sequence[Batch], rate: float, scale: float) -> float:
        """See `Stepper.run`."""
        losses = []
        parameters = {name: self._buffers.sets[self._buffers.current][name] for name in self._sums}
        for number, batch in enumerate(batches):
            self._feed(batch, scale)
            now = self._statistics.current
            read, written = self._statistics.sets[now], self._statistics.sets[1 - now]
            made = {**self._made, **{self.step.updates[name]: value for name, value in written.items()}}
            binding = bind(self._gradient_session, {**self._fed, **parameters, **read}, made)
            self._run_file(self._gradient_session, binding, batch)
            self._statistics.swap()
            losses.append(float(self._loss))
            for name, array in self._gradients.items():
                if number:
                    self._sums[name] += array
                else:
                    self._sums[name][...] = array
        self._rate[...], self._batches[...] = rate, len(batches)
        run_bound(self._session, self._bindings[self._buffers.current], "the update")
        return float(np.mean(losses))

    def accept(self) -> None:
        """See `Stepper.accept`."""
        self._buffers.swap()

    @property
    def values(self) -> dict[str, Array]:
        """See `Stepper.values`."""
        return {**self._buffers.values, **self._statistics.values}

    @property
    def new(self) -> dict[str, Array]:
        """See `Stepper.new`."""
        return {**self._buffers.new, **self._statistics.values}

    def set(self, values: Mapping[str, Array]) -> None:
        """See `Stepper.set`."""
        self._buffers.set(values)
        self._statistics.set(values)


_RATE = "rate"
"""Metadata entry of an update graph: the name of the learning rate."""


def _update_graph(step: StepFile, optimizer: str, clip_norm: float | None) -> tuple[TrainingGraph, dict[str, Array]]:
    """A graph of the optimizer alone: from parameters, states and sums of gradients to new parameters and states.

    Returns:
        The graph, in which all of these are plain inputs, and the first values of states and learning rate.
    """
    made = update_graph(step.model, step.gradients, parse_optimizer(optimizer), clip_norm, batches=_BATCHES)
    rate = made.model.metadata_props[keys.LEARNING_RATE]
    inner, initial = made.model.graph, {}
    fed = {str(value.name): value for value in inner.inputs}
    for name in (*made.updates, rate):
        value = inner.initializers.pop(name, fed[name])
        if value.const_value is None:  # a state, which begins with zero
            initial[name] = np.zeros(shape_of(value), dtype_of(value))
        elif name not in step.gradients:
            initial[name] = np.array(value.const_value.numpy())
    made.model.metadata_props.clear()
    made.model.metadata_props[_RATE] = rate
    return made, initial


def stepper(step: StepFile, batches: int, optimizer: str | None, clip_norm: float | None) -> Stepper:
    """What makes the updates of a file.

    Args:
        step: the file.
        batches: how many of the file's batches make one update.
        optimizer: the optimizer if the file has none.
        clip_norm: see `ckplan.add_optimizer`; goes with ``optimizer``.

    Raises:
        UsageError: the options do not fit the file.
        ModelError: the file has no gradients.
    """
    if step.learning_rate:
        if optimizer is not None or clip_norm is not None:
            raise UsageError(f"{step.path} has an optimizer of its own", "leave out --optimizer and --clip-norm")
        if batches > 1:
            raise UsageError(
                f"{step.path} updates the parameters after every batch of {step.batch}",
                "write a file without --optimizer, and give the optimizer to `ckplan train`",
            )
        return WholeStep(step)
    if not step.gradients:
        raise ModelError(f"{step.path} has no gradients", "write a step with `ckplan rewrite MODEL -o STEP`")
    if optimizer is None:
        raise UsageError(f"{step.path} computes gradients but no update", "name an optimizer with --optimizer adam")
    return AccumulatedStep(step, optimizer, clip_norm)


def _output(step: StepFile, name: str) -> ir.Value:
    return next(value for value in step.model.graph.outputs if value.name == name)


def _shape(step: StepFile, name: str) -> tuple[int, ...]:
    shape = static_shape(_output(step, name))
    if shape is None:
        raise ModelError(f"output '{name}' of {step.path} has no fixed shape", "write the file again")
    return shape


def _dtype(step: StepFile, name: str) -> np.dtype[Any]:
    dtype = _output(step, name).dtype
    assert dtype is not None
    return np.dtype(dtype.numpy())

"""The loop: epochs of updates, with a schedule, evaluation, checkpoints and an early end."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from ckplan.arguments import check_factor, check_flag, check_kind, check_number, path_of
from ckplan.autodiff import parse_optimizer
from ckplan.errors import CheckFailedError, UsageError
from ckplan.isolation.arrays import Array
from ckplan.training import checkpoint
from ckplan.training.buffers import all_finite
from ckplan.training.checkpoint import State
from ckplan.training.data import Data, array_given, batches, fitted, idle_arrays, read_data
from ckplan.training.dynamic_loss_scale import SMALLEST, DynamicLossScale
from ckplan.training.evaluation import Evaluation, Score
from ckplan.training.export import export_weights
from ckplan.training.progress import Advance, bar
from ckplan.training.resuming import asked_for, changes, checksum
from ckplan.training.schedules import parse_schedule
from ckplan.training.stepfile import read_step
from ckplan.training.stepping import stepper

_DEFAULT_RATE = 0.001


@dataclass(frozen=True)
class Epoch:
    """What an epoch came to.

    Attributes:
        number: from 1.
        loss: mean of the losses of its updates.
        learning_rate: of its last update.
        score: on the evaluation data, if there are any.
        skipped: updates that were left out because gradients overflowed, since the training was started or resumed.
    """

    number: int
    loss: float
    learning_rate: float
    score: Score | None = None
    skipped: int = 0

    def __str__(self) -> str:
        """One line."""
        text = f"epoch {self.number:2}: loss {self.loss:.3f}"
        if self.score is not None:
            text += f", on evaluation data {self.score.loss:.3f}"
            if self.score.accuracy is not None:
                text += f", {100 * self.score.accuracy:.1f} % right"
        return text + (f", {self.skipped} update(s) skipped" if self.skipped else "")


class Trainer:
    """Trains with a step file in onnxruntime, on the CPU.

    A file with an optimizer (``ckplan rewrite --optimizer``) makes an update with each batch. One without makes
    gradients: those of as many batches as ``batch`` asks for are averaged, and an optimizer beside the file makes the
    update, so that an update of many samples takes the activations of few.

    Args:
        step: the step file, planned or not.
        data: arrays by the names of the step's inputs, their first axis the samples; or a ``.npz`` or ``.parquet``
            file.
        batch: samples of an update; by default those that the file takes at once.
        learning_rate: by default the file's own.
        schedule: ``constant``, ``linear`` or ``cosine``, with ``:warmup=STEPS`` and ``final=SHARE``.
        optimizer: of a file without one, as ``--optimizer`` has it.
        clip_norm: goes with ``optimizer``; see `ckplan.add_optimizer`.
        seed: of the order of the samples.
        checkpoints: folder for checkpoints, one after each epoch.
        every: updates between checkpoints besides.
        model: the model that the step was made from; needed for ``eval_data``.
        eval_data: data to score the model on after each epoch, as ``data``.
        patience: end after so many epochs without a lower loss on the evaluation data.
        progress: whether a terminal gets a bar.
        colour: whether it may have colours.

    Raises:
        ModelError: a file is missing, damaged or no step file.
        UsageError: data or options do not fit the step.
    """

    def __init__(
        self,
        step: str | os.PathLike[str],
        data: Data | str | os.PathLike[str],
        *,
        batch: int | None = None,
        learning_rate: float | None = None,
        schedule: str = "constant",
        optimizer: str | None = None,
        clip_norm: float | None = None,
        seed: int = 0,
        checkpoints: str | os.PathLike[str] | None = None,
        every: int | None = None,
        model: str | os.PathLike[str] | None = None,
        eval_data: Data | str | os.PathLike[str] | None = None,
        patience: int | None = None,
        progress: bool = True,
        colour: bool = True,
    ) -> None:
        self.step = read_step(step)
        given, where = _arrays(data)
        self._data = fitted(given, self.step.inputs, where)
        self._idle = idle_arrays(given, self.step.inputs, where)
        self.samples = len(next(iter(self._data.values()), ()))
        labels = self.step.inputs.items()
        self._ignored = {name: spec.ignored for name, spec in labels if spec.is_label and spec.ignored is not None}
        self.batch = self._checked_batch(batch, where)
        self._schedule = parse_schedule(schedule)
        self._stepper = stepper(self.step, self.batch // self.step.batch, optimizer, clip_norm)
        self._rate = self._default_rate(optimizer) if learning_rate is None else learning_rate
        check_factor("the learning rate", self._rate)
        self._rate = float(self._rate)
        check_number("the seed", seed, whole=True)
        for option, count in (("every", every), ("patience", patience)):
            if count is not None:
                check_number(f"`--{option}`", count, 1, whole=True)
        self.step = self._stepper.step = self.step.without_graph()
        self._folder = None if checkpoints is None else path_of("the folder of checkpoints", checkpoints)
        if self._folder is not None and self._folder.is_file():
            raise UsageError(f"{self._folder} is a file", "name a folder for the checkpoints")
        self._own: set[Path] = set()  # checkpoints that this training wrote, or goes on from
        self._every = every
        made_by = self.step.optimizer if optimizer is None else str(parse_optimizer(optimizer))
        held = "" if self._folder is None else checksum(self._data)
        self._asked = partial(asked_for, self._rate, self._schedule, made_by, clip_norm, int(seed), held)
        if patience is not None and eval_data is None:
            raise UsageError("`--patience` needs data to judge by", "give --eval-data")
        self._patience = patience
        self._evaluation = self._scored_on(model, eval_data)
        self._bar = partial(bar, wanted=progress, colour=colour)
        self._rng = np.random.default_rng(seed)
        self._scale = DynamicLossScale()
        self._skipped = 0
        self.state = State(scale=self._scale.scale, samples=self.samples, batch=self.batch)
        self._stepper.open(0)

    def _checked_batch(self, batch: int | None, where: str) -> int:
        """Samples of an update: as asked for, or those of the file, of which they are a multiple."""
        chosen, least = self.step.batch if batch is None else batch, self.step.batch
        check_number("the batch", chosen, whole=True)
        if chosen < 1 or chosen % least:
            raise UsageError(
                f"an update of {chosen} samples is not a multiple of the file's batch, {least}",
                f"give a multiple of {least}",
            )
        if self.samples < chosen:
            raise UsageError(
                f"{where} has {self.samples} sample(s), and an update takes {chosen}", "give more, or a smaller batch"
            )
        return chosen

    def _scored_on(
        self, model: str | os.PathLike[str] | None, data: Data | str | os.PathLike[str] | None
    ) -> Evaluation | None:
        """What scores the model after each epoch, if there are data for that; what they hold besides is noted."""
        if data is None:
            if model is not None:
                raise UsageError("`--model` is scored on data of its own", "give --eval-data, or leave it out")
            return None
        if model is None:
            raise UsageError("`--eval-data` needs the model that the step was made from", "give --model MODEL")
        given, where = _arrays(data, "the evaluation data")
        evaluation = Evaluation(self.step, path_of("the model", model), given, where)
        self._idle += idle_arrays(given, self.step.inputs, where)
        return evaluation

    @property
    def weights(self) -> dict[str, Array]:
        """Parameters and running statistics by name, as they are now. They change with the next step."""
        values = self._stepper.values
        return {name: values[name] for name in self.step.weights}

    def notes(self, epochs: int, *, resume: bool = False) -> tuple[str, ...]:
        """What to know of a training of so many epochs on these data, a sentence each.

        Args:
            epochs: see `train`.
            resume: whether it is to go on from the last checkpoint: what is another since then is told.

        Raises:
            ModelError: there is no such checkpoint, or it is damaged.
        """
        notes: list[str] = list(self._idle)
        updates = epochs * self.steps_per_epoch
        if resume and self._folder is not None:
            path, state = checkpoint.read_state(self._folder)
            if state.epoch < epochs:
                notes.extend(changes(path, state.asked, self._asked(updates)))
        if self._schedule.warmup >= updates:
            notes.append(
                f"the warm-up of {self._schedule.warmup} updates does not end within the training, of {updates}"
            )
        if left := self.samples % self.batch:
            notes.append(f"{left} of {self.samples} samples are left out in each epoch, others each time")
        if (count := self.batch // self.step.batch) > 1:
            mean = f"an update is the mean of {count} batches, each of which weighs as much as the others"
            for name, ignored in self._ignored.items():
                if (self._data[name] == ignored).any():
                    notes.append(f"{mean}, however many labels in `{name}` do not count ({ignored})")
            for name, spec in self.step.inputs.items():
                if spec.is_weighted:
                    notes.append(f"{mean}, whatever the classes in `{name}` weigh")
        return tuple(notes)

    @property
    def steps_per_epoch(self) -> int:
        """Updates in an epoch. What is left of the samples then is left out; it is drawn anew in each epoch."""
        return self.samples // self.batch

    def train(
        self, epochs: int, *, resume: bool = False, each_epoch: Callable[[Epoch], Any] | None = None
    ) -> list[Epoch]:
        """Train until so many epochs are done, those before a checkpoint included.

        Args:
            epochs: at least 1.
            resume: go on from the last checkpoint, with the same numbers as without a stop if the data, the options and
                the number of threads are the same; `notes` tells which are not.
            each_epoch: called after each epoch, for example with ``print``.

        Returns:
            The epochs that were made now.

        Raises:
            ModelError: there is no checkpoint to resume from, or it is damaged.
            UsageError: it is of another training; no folder for checkpoints is named; there is one in it and ``resume``
                does not say what is to become of it; or another training writes one meanwhile.
            CheckFailedError: the loss is infinite or NaN. Checkpoints from before are good.
            EnvironmentUnavailableError: a checkpoint cannot be written. Earlier ones are whole.
        """
        check_number("the number of epochs", epochs, 1, whole=True)
        check_flag("`resume`", resume)
        if resume:
            self._resume()
        elif self._folder is not None and checkpoint.latest(self._folder) and not self.state.step:
            raise UsageError(f"{self._folder} holds checkpoints already", "go on with --resume, or name another folder")
        if self._folder is not None and self.state.epoch < epochs:
            checkpoint.check_folder(self._folder)
        self.state.asked = self._asked(epochs * self.steps_per_epoch)
        done: list[Epoch] = []
        with self._bar(epochs * self.steps_per_epoch) as advance:
            while self.state.epoch < epochs and not self.is_stale:
                done.append(self._epoch(epochs, advance))
                if each_epoch is not None:
                    each_epoch(done[-1])
        return done

    def save(
        self, path: str | os.PathLike[str], model: str | os.PathLike[str], *, force: bool = False
    ) -> tuple[str, ...]:
        """Write a model with the trained weights; see `ckplan.export_weights`.

        Args:
            path: the file to write.
            model: the model that the step was made from.
            force: whether the file may be overwritten.

        Returns:
            Notes: where the weights lie, if not in the file.
        """
        return export_weights(model, self.weights, path, lora=self.step.lora, force=force)

    def _default_rate(self, optimizer: str | None) -> float:
        if self.step.learning_rate:
            return float(self.step.initial(self.step.learning_rate))
        return _DEFAULT_RATE if optimizer is None else parse_optimizer(optimizer).learning_rate

    @property
    def is_stale(self) -> bool:
        """Whether the loss on the evaluation data has not fallen for too long."""
        return self._patience is not None and self.state.stale >= self._patience

    def _epoch(self, epochs: int, advance: Advance) -> Epoch:
        """Make what is left of an epoch."""
        state = self.state
        if not state.position:
            state.order = dict(self._rng.bit_generator.state)
            state.losses = []
        self._rng.bit_generator.state = state.order
        order = self._rng.permutation(self.samples)
        rate = 0.0
        while state.position < self.steps_per_epoch:
            chosen = order[state.position * self.batch : (state.position + 1) * self.batch]
            rate = self._rate * self._schedule.factor(state.step, epochs * self.steps_per_epoch)
            state.losses.append(self._update(chosen, rate))
            state.step += 1
            state.position += 1
            advance(state.step, f"epoch {state.epoch + 1} · loss {state.losses[-1]:.3f}")
            if self._every and state.step % self._every == 0 and state.position < self.steps_per_epoch:
                self._checkpoint()
        state.epoch += 1
        state.position = 0
        kept = [loss for loss in state.losses if math.isfinite(loss)]
        loss = float(np.mean(kept)) if kept else math.nan
        made = Epoch(state.epoch, loss, rate, self._score(), self._skipped)
        state.order = dict(self._rng.bit_generator.state)
        self._checkpoint()
        return made

    def _update(self, chosen: Array, rate: float) -> float:
        """Make one update; returns its loss."""
        scaled = bool(self.step.loss_scale)
        parts = list(batches(self._data, chosen, self.step.batch))
        loss = self._stepper.run(parts, rate, self._scale.scale)
        finite = math.isfinite(loss)
        if not finite and (ignored := self._without_labels(parts)):
            raise CheckFailedError(
                f"the loss is {loss} {self._place}: {ignored}", "leave such samples out, or use a larger batch"
            )
        if scaled:
            new = self._stepper.new
            finite = finite and all_finite(new[name] for name in self.step.parameters)
            self._scale = self._scale.after(finite)
            self.state.scale, self.state.good = self._scale.scale, self._scale.good
        if finite:
            self._stepper.accept()
        elif not scaled or self._scale.scale < SMALLEST:
            raise self._diverged(f"the loss is {loss}" if not math.isfinite(loss) else "gradients are not finite")
        else:
            self._skipped += 1
        return loss

    def _without_labels(self, parts: Iterable[Data]) -> str:
        """What to say of a batch in which no label counts, over which a mean is NaN; empty if there is none."""
        for name, ignored in self._ignored.items():
            if any((part[name] == ignored).all() for part in parts):
                return f"a batch has only {ignored} in `{name}`, and no label that counts"
        return ""

    @property
    def _place(self) -> str:
        return f"in step {self.state.step + 1}, epoch {self.state.epoch + 1}"

    def _diverged(self, what: str) -> CheckFailedError:
        last = None if self._folder is None else checkpoint.latest(self._folder)
        kept = "" if last is None else f"; the last checkpoint is {last}"
        clip = "write the step with --clip-norm" if self.step.learning_rate else "clip gradients with --clip-norm"
        return CheckFailedError(f"{what} {self._place}{kept}", f"lower the learning rate, or {clip}")

    def _score(self) -> Score | None:
        """Score the model, and note whether it is the best so far."""
        if self._evaluation is None:
            return None
        found = self._evaluation.score(self._stepper.values)
        state = self.state
        if math.isfinite(found.loss) and (state.best is None or found.loss < state.best):
            state.best, state.stale = found.loss, 0
            self._checkpoint(checkpoint.BEST)
        else:
            state.stale += 1
        return found

    def _checkpoint(self, name: str | None = None) -> None:
        if self._folder is None:
            return
        values = self._stepper.values
        if not all_finite(values.values()):
            raise self._diverged("parameters or their state are infinite or NaN")
        found = checkpoint.latest(self._folder)
        if found is not None and found not in self._own:
            raise UsageError(f"{found} is of another training, which writes to the same folder", "name one for each")
        written = checkpoint.write(self._folder, values, self.state, self.step.weights, name, self.step.lora)
        if name is None:
            self._own.add(written)
            if self.step.is_random:
                self._stepper.open(self.state.step)  # as whoever resumes from it

    def _resume(self) -> None:
        if self._folder is None:
            raise UsageError("there is nothing to resume from", "name the folder with --checkpoints")
        found = checkpoint.read_checkpoint(self._folder)
        self._own.add(found.path)
        _check_values(found.path, found.values, self._stepper.values)
        state = found.state
        if (state.samples, state.batch) != (self.samples, self.batch):
            raise UsageError(
                f"{found.path} is from a training run on {state.samples} samples in updates of {state.batch}, and this "
                f"one is on {self.samples} in updates of {self.batch}",
                "give the same data and batch, or start in another folder",
            )
        self._stepper.set(found.values)
        self.state = state
        self._scale = DynamicLossScale(state.scale, state.good)
        self._rng.bit_generator.state = state.order
        self._stepper.open(state.step)


def _arrays(data: Data | str | os.PathLike[str], called: str = "the data") -> tuple[Data, str]:
    """Data and what they are called: as told, or by their file."""
    if isinstance(data, Mapping):
        return {name: array_given(f"`{name}` in {called}", array) for name, array in data.items()}, called
    check_kind(called, data, (str, os.PathLike), "give a table of arrays by input, or the path of a file")
    return read_data(Path(data)), str(data)


def _check_values(path: Path, found: Mapping[str, Array], wanted: Mapping[str, Array]) -> None:
    """Hold the values of a checkpoint against those of a step."""
    for name in (*wanted, *found):
        one, other = found.get(name), wanted.get(name)
        if one is None or other is None or one.shape != other.shape or one.dtype != other.dtype:
            raise UsageError(
                f"{path} is a checkpoint of another step file or optimizer: '{name}' is not the same in both",
                "give those that it was made with",
            )

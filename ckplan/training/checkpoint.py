"""Checkpoints: all that a training needs to go on as if it had never stopped, in one safetensors file each.

A file is written under another name and then renamed, so that under its own name there is a whole one or none. The
last few are kept.
"""

from __future__ import annotations

import errno
import json
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ckplan.arguments import path_of
from ckplan.autodiff.lora import Lora
from ckplan.display import one_line, reason_of
from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from ckplan.isolation.arrays import Array
from ckplan.isolation.folders import made_folder, temporary_folder

WEIGHTS = "ckplan.weights"
"""The entry that lists which of the values are weights of the model, as JSON."""
LORA = "ckplan.lora"
"""The entry that says which adapters the weights are, as JSON; absent if they are none."""
STATE = "ckplan.training"
"""The entry of the file's metadata that holds the state, as JSON."""
BEST = "best.safetensors"
"""The checkpoint with the lowest loss on the evaluation data."""
_NAME = re.compile(r"step-(\d+)\.safetensors")
_KEPT = 2
_SCHEMA = 1
_LARGEST = 2**53
"""No count of a training is as large."""


@dataclass
class State:
    """Where a training is.

    Attributes:
        step: updates so far, those that were skipped for an overflow included.
        epoch: epochs that are finished.
        position: updates so far in this epoch.
        order: state of the generator of random numbers before it drew the order of this epoch's samples.
        losses: the losses of this epoch so far.
        scale: the loss scale.
        good: steps since the loss scale was last changed.
        best: lowest loss on the evaluation data.
        stale: evaluations since then.
        samples: number of samples of the training data.
        batch: samples of an update.
        asked: the options and data of the training; see `ckplan.training.resuming`.
    """

    step: int = 0
    epoch: int = 0
    position: int = 0
    order: dict[str, Any] = field(default_factory=dict)
    losses: list[float] = field(default_factory=list)
    scale: float = 1.0
    good: int = 0
    best: float | None = None
    stale: int = 0
    samples: int = 0
    batch: int = 0
    asked: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint, read.

    Attributes:
        path: the file.
        values: parameters, states and running statistics by name.
        state: where the training was.
        weights: names of the values that are weights of the model.
        lora: what the adapters among them are, if there are any.
    """

    path: Path
    values: dict[str, Array]
    state: State
    weights: tuple[str, ...]
    lora: Lora | None = None


def write(
    folder: Path,
    values: Mapping[str, Array],
    state: State,
    weights: Sequence[str],
    name: str | None = None,
    lora: Lora | None = None,
) -> Path:
    """Write a checkpoint whole or not at all, and remove those before the last but one.

    Args:
        folder: made if it is not there.
        values: by name.
        state: where the training is.
        weights: names of the values that are weights of the model.
        name: of the file; by default from the number of the step.
        lora: what the adapters among the weights are.

    Raises:
        EnvironmentUnavailableError: no space left, or no permission. Earlier checkpoints are untouched.
    """
    target = folder / (name or f"step-{state.step:08}.safetensors")
    about = {STATE: json.dumps({"schema": _SCHEMA, **asdict(state)}), WEIGHTS: json.dumps(list(weights))}
    if lora is not None:
        about[LORA] = lora.to_json()
    write_tensors(target, values, about)
    if name is None:
        for _, old in _found(folder)[:-_KEPT]:
            old.unlink(missing_ok=True)
    return target


def write_tensors(target: Path, values: Mapping[str, Array], about: Mapping[str, str]) -> None:
    """Write a safetensors file whole or not at all.

    Args:
        target: the file; its folder is made if it is not there.
        values: by name.
        about: metadata.

    Raises:
        EnvironmentUnavailableError: no space left, or no permission.
    """
    from safetensors import SafetensorError
    from safetensors.numpy import save_file

    try:
        with made_folder(target.parent), temporary_folder(target.parent) as place:
            made = place / target.name
            save_file({name: np.asarray(array, order="C") for name, array in values.items()}, made, dict(about))
            with made.open("rb") as stream:
                os.fsync(stream.fileno())
            made.replace(target)
        _sync(target.parent)
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise _unwritten(target, "no space left") from error
        raise _unwritten(target, error.strerror or str(error), "name another folder") from error
    except SafetensorError as error:  # how it tells of a full disk
        raise _unwritten(target, one_line(error)) from error


def check_folder(folder: Path) -> None:
    """See that checkpoints may be written to a folder, before a training takes the time that the first one takes.

    Args:
        folder: it need not be there yet.

    Raises:
        UsageError: it is no folder, or would lie in what is none.
        EnvironmentUnavailableError: permissions do not allow it.
    """
    there = next(place for place in (folder, *folder.absolute().parents) if os.path.lexists(place))
    if not there.is_dir():
        raise UsageError(f"{there} is not a directory", "name another folder for the checkpoints")
    if not os.access(there, os.W_OK):
        raise EnvironmentUnavailableError(f"no permission to write to {folder}", "name another folder")


def _unwritten(target: Path, reason: str, advice: str = "free some space") -> EnvironmentUnavailableError:
    return EnvironmentUnavailableError(
        f"cannot write {target}: {reason}", f"{advice}; what was written before is whole"
    )


def _sync(folder: Path) -> None:
    """Make renames last, where a folder can be opened."""
    if os.name != "nt":
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def _found(folder: Path) -> list[tuple[int, Path]]:
    """The checkpoints of a folder by number of the step, the last one last."""
    if not folder.is_dir():
        return []
    found = [(match, path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return sorted((int(match[1]), path) for match, path in found)


def latest(place: Path) -> Path | None:
    """The last checkpoint of a folder, None if there is none; a file is itself."""
    if place.is_file():
        return place
    found = _found(place)
    return found[-1][1] if found else None


def read_checkpoint(place: str | os.PathLike[str]) -> Checkpoint:
    """Read a checkpoint.

    Args:
        place: a file, or a folder of them, of which the last one is read.

    Raises:
        ModelError: there is none, or it is damaged or of something else.
    """
    path = _last(place)
    values, about = read_tensors(path)
    with _telling_of_others(path):
        weights = tuple(name for name in json.loads(about[WEIGHTS]) if name in values)
        lora = Lora.of(about[LORA]) if LORA in about else None
        return Checkpoint(path, values, _state(about), weights, lora)


def read_state(place: str | os.PathLike[str]) -> tuple[Path, State]:
    """Read where a training was when it wrote a checkpoint, without the values; returns the file, too.

    Args:
        place: see `read_checkpoint`.

    Raises:
        ModelError: as by `read_checkpoint`.
    """
    path = _last(place)
    about = _metadata(path)
    with _telling_of_others(path):
        return path, _state(about)


def _last(place: str | os.PathLike[str]) -> Path:
    path = latest(path_of("the checkpoint", place))
    if path is None:
        raise ModelError(
            f"there is no checkpoint in {place}",
            "check the path, or write one: `ckplan train` without --resume",
        )
    return path


def _state(about: Mapping[str, str]) -> State:
    state = json.loads(about[STATE])
    if state.pop("schema") != _SCHEMA:
        raise ValueError("of another version of ckplan")
    return _whole(State(**state))


@contextmanager
def _telling_of_others(path: Path) -> Iterator[None]:
    """Turn what reading a file's metadata raises, where they are not those of a checkpoint, into a ModelError."""
    try:
        yield
    except (AttributeError, KeyError, ValueError, TypeError, OverflowError, RecursionError) as error:
        raise ModelError(
            f"{path} is not a checkpoint of a training run ({reason_of(error)})",
            "name one that `ckplan train` or ckplan.Trainer wrote",
        ) from None


def _whole(state: State) -> State:
    """A state whose numbers are such.

    Raises:
        AttributeError, KeyError, OverflowError, TypeError, ValueError: one of them is not.
    """
    counts = (state.step, state.epoch, state.position, state.good, state.stale, state.samples, state.batch)
    if not all(isinstance(count, int) and 0 <= count < _LARGEST for count in counts):
        raise ValueError("one of its counts is not a number")
    for number in (*state.losses, state.scale, *(() if state.best is None else (state.best,))):
        float(number)
    np.random.default_rng().bit_generator.state = state.order
    if not all(isinstance(said, str) for said in state.asked.values()):
        raise ValueError("one of its options is not text")
    return state


def read_tensors(path: Path) -> tuple[dict[str, Array], dict[str, str]]:
    """Read a safetensors file: arrays by name, and metadata.

    Raises:
        ModelError: it is missing or damaged.
    """
    from safetensors.numpy import load_file

    about = _metadata(path)
    with _telling_of_damage(path):
        return load_file(path), about


def _metadata(path: Path) -> dict[str, str]:
    from safetensors import safe_open

    with _telling_of_damage(path), safe_open(path, "np") as stream:
        return dict(stream.metadata() or {})


@contextmanager
def _telling_of_damage(path: Path) -> Iterator[None]:
    """Turn what reading a safetensors file raises into a ModelError."""
    from safetensors import SafetensorError

    try:
        yield
    except FileNotFoundError:  # safetensors says so of files that may not be read, too
        what = f"no permission to read {path}" if path.exists() else f"there is no file {path}"
        raise ModelError(what, "check the path") from None
    except (OSError, SafetensorError, ValueError, TypeError) as error:
        reason = one_line(error)
        raise ModelError(
            f"{path} is damaged or not a safetensors file ({reason})",
            "name another, or remove it: of a folder the last one is taken",
        ) from None

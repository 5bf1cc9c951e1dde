"""How a model becomes a step: sizes, what is differentiated, and by what: one value, whatever is asked of the step."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ckplan.arguments import is_number, shown
from ckplan.autodiff.pieces.regions import OFF
from ckplan.errors import UsageError
from ckplan.units import spell_budget

Reader = Callable[[Any], Any]
Fixed: TypeAlias = "float | tuple[float, ...]"


def read_text(value: Any) -> str:
    """A string as it stands in a file.

    Raises:
        ValueError: it is no string.
    """
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _path(value: Any) -> str:
    if not isinstance(value, str | os.PathLike):
        raise ValueError("a path")
    return os.fspath(value)


def _number(value: Any) -> float:
    if not is_number(value):
        raise ValueError("a number")
    return float(value)


def _size(value: Any) -> int:
    if not is_number(value, whole=True) or value < 0:
        raise ValueError("a whole number, zero or more")
    return int(value)


def _size_of(what: str, value: Any) -> int:
    try:
        return _size(value)
    except ValueError:
        raise ValueError(f"a table of whole numbers, zero or more, and {what} is {shown(value)}") from None


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("a string or a list of strings")
    return tuple(value)


def _chunks(value: Any) -> int | str:
    if isinstance(value, str) and value == "sqrt":
        return value
    if not is_number(value, whole=True) or value < 1:
        raise ValueError("a number of chunks or 'sqrt'")
    return int(value)


def _pieces(value: Any) -> int | str:
    if not isinstance(value, str) and not is_number(value, whole=True):
        raise ValueError("'auto', 'off', a number of pieces, or numbers by kind of region")
    return value if isinstance(value, str) else int(value)


def _scale(value: Any) -> str:
    if not isinstance(value, str) and not is_number(value):
        raise ValueError("a number, or 'input'")
    return str(value)


def _one_of(*words: str) -> Reader:
    def read(value: Any) -> str:
        if not isinstance(value, str) or value not in words:
            raise ValueError(" or ".join(f"'{word}'" for word in words))
        return value

    return read


def _dims(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError("a table of sizes by name of the dimension")
    return {str(name): _size_of(f"`{name}`", size) for name, size in value.items()}


def _shapes(value: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, Mapping) or not all(isinstance(sizes, list | tuple) for sizes in value.values()):
        raise ValueError("a table of lists of sizes by name of the input")
    return {str(name): tuple(_size_of(f"a size of `{name}`", size) for size in sizes) for name, sizes in value.items()}


def _numbers(value: Any) -> dict[str, Fixed]:
    """Numbers by name of the input; a list of one is that one."""
    if not isinstance(value, Mapping):
        raise ValueError("a table of numbers, or lists of them, by name of the input")
    read: dict[str, Fixed] = {}
    for name, given in value.items():
        items = tuple(given) if isinstance(given, list | tuple) else (given,)
        if not items or not all(isinstance(item, bool | int | float) for item in items):
            raise ValueError("a table of numbers, or lists of them, by name of the input")
        read[str(name)] = items[0] if len(items) == 1 else items
    return read


TRAINING: Mapping[str, tuple[Reader, Any]] = {
    "loss": (_texts, ()),
    "wrt": (_texts, ()),
    "no_grad": (_texts, ()),
    "params": (_path, None),
    "retain_grad": (_texts, ()),
    "grad_ys": (_texts, ()),
    "unused": (_one_of("absent", "zero"), "absent"),
    "accumulation": (_one_of("auto", "eager", "lazy"), "auto"),
    "loss_scale": (_scale, None),
    "training": (_flag, False),
    "optimizer": (read_text, None),
    "clip_norm": (_number, None),
    "lora": (read_text, None),
    "straight_through": (_flag, False),
    "time_checkpoints": (_chunks, None),
    "store": (_texts, ()),
    "chunks": (_pieces, OFF),
}
"""The options of the training graph: how each is read, and its default."""


READERS: Mapping[str, Reader] = {
    "dims": _dims,
    "shapes": _shapes,
    "set": _numbers,
    "inference": _flag,
    **{name: reader for name, (reader, _) in TRAINING.items()},
}
"""How each option is read where it stands in a file."""

_TABLES = ("dims", "shapes", "set")
"""Options whose values are held against the model, whose names and kinds they have to fit."""


def checked(name: str, given: Any) -> Any:
    """The value of an option; None is its default.

    Raises:
        UsageError: it is of another kind.
    """
    if given is None and name in TRAINING:
        return TRAINING[name][1]
    try:
        return READERS[name](given)
    except ValueError as error:
        raise UsageError(f"`{name}` cannot be {shown(given)}", f"give {error}") from None


def _table(name: str, given: Any) -> dict[str, Any]:
    """What an option sets by name. Whether it fits is known when the model is.

    Raises:
        UsageError: it is no table.
    """
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        return dict(checked(name, given))  # which tells what is wanted
    return {str(key): value for key, value in given.items()}


@dataclass(frozen=True)
class StepOptions:
    """How a model is loaded and differentiated.

    Attributes:
        dims: sizes of named dimensions.
        shapes: shapes of inputs.
        fixed: numbers that inputs are fixed at, by name; the option ``set``.
        inference: whether the model is taken as it is, without loss and gradients.
        training: options of the training graph that differ from their default, by the names in `TRAINING`.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    inference: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)
    fixed: Mapping[str, Fixed] = field(default_factory=dict)

    @classmethod
    def of(cls, **options: Any) -> StepOptions:
        """The options of a command, or of a file; defaults may be left out.

        Raises:
            UsageError: there is no such option, or options do not go together.
        """
        for name in options:
            if name not in READERS:
                raise UsageError(f"there is no option `{name}`", f"choose among {', '.join(READERS)}")
        read = {name: checked(name, value) for name, value in options.items() if name not in _TABLES}
        given = {
            name: value for name, (_, default) in TRAINING.items() if (value := read.get(name, default)) != default
        }
        inference = read.get("inference", False)
        of_training = [name for name in given if name != "chunks"]
        if inference and of_training:
            raise UsageError(
                f"`--inference` plans the model as it is, without training, and does not go with "
                f"{', '.join(f'`{option_name(name)}`' for name in of_training)}",
                "leave out one or the other",
            )
        if given.get("clip_norm") is not None and given.get("optimizer") is None:
            raise UsageError(
                "`--clip-norm` clips the gradients that an optimizer gets, and there is no optimizer",
                "name one with --optimizer",
            )
        dims, shapes, fixed = (_table(name, options.get(name)) for name in _TABLES)
        return cls(dims, shapes, inference, given, fixed)

    def option(self, name: str) -> Any:
        """The value of an option of the training graph."""
        return self.training.get(name, TRAINING[name][1])

    @property
    def files(self) -> tuple[Path, ...]:
        """Files that the options name, which are read."""
        params = self.option("params")
        return () if params is None else (Path(params),)

    def options(self) -> dict[str, Any]:
        """The inverse of `of`, without what is at its default."""
        head = {"dims": self.dims, "shapes": self.shapes, "set": self.fixed, "inference": self.inference}
        return {**{name: value for name, value in head.items() if value}, **self.training}

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form of `options`."""
        shapes = {name: list(sizes) for name, sizes in self.shapes.items()}
        fixed = {name: list(given) if isinstance(given, tuple) else given for name, given in self.fixed.items()}
        head = {"dims": dict(self.dims), "shapes": shapes, "set": fixed, "inference": self.inference}
        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in self.training.items()}
        return {**{name: value for name, value in head.items() if value}, **lists}


def option_name(name: str) -> str:
    """An option as it stands on the command line: ``--no-grad`` for ``no_grad``."""
    return f"--{name.replace('_', '-')}"


def spell_options(options: Mapping[str, Any]) -> str:
    """Options as they stand on the command line, from a mapping by name."""
    words: list[str] = []
    for name, value in options.items():
        if name in _TABLES:
            texts = {key: ",".join(map(str, n)) if isinstance(n, tuple | list) else str(n) for key, n in value.items()}
            words += [word for key, text in texts.items() for word in (f"--{name.removesuffix('s')}", f"{key}={text}")]
        else:
            option = option_name(name)
            value = spell_budget(value) if name == "budget" else value
            for item in value if isinstance(value, tuple) else (value,):
                words += [option] if item is True else [option, str(item)]
    return shlex.join(words)

"""How a model is loaded, differentiated and planned for a comparison, as it stands in files."""

from __future__ import annotations

import difflib
import shlex
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckplan.errors import UsageError

Reader = Callable[[Any], Any]


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise ValueError("a string")
    return value


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError("true or false")
    return value


def _number(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError("a number")
    return float(value)


def _size(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError("a whole number, zero or more")
    return value


def _texts(value: Any) -> tuple[str, ...]:
    if isinstance(value, str):
        return (value,)
    if not isinstance(value, list | tuple) or not all(isinstance(item, str) for item in value):
        raise ValueError("a string or a list of strings")
    return tuple(value)


def _chunks(value: Any) -> int | str:
    if value == "sqrt":
        return "sqrt"
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError("a number of chunks or 'sqrt'")
    return value


def _one_of(*words: str) -> Reader:
    def read(value: Any) -> str:
        if value not in words:
            raise ValueError(" or ".join(f"'{word}'" for word in words))
        return str(value)

    return read


def _dims(value: Any) -> dict[str, int]:
    if not isinstance(value, Mapping):
        raise ValueError("a table of sizes by name of the dimension")
    return {str(name): _size(size) for name, size in value.items()}


def _shapes(value: Any) -> dict[str, tuple[int, ...]]:
    if not isinstance(value, Mapping) or not all(isinstance(sizes, list | tuple) for sizes in value.values()):
        raise ValueError("a table of lists of sizes by name of the input")
    return {str(name): tuple(_size(size) for size in sizes) for name, sizes in value.items()}


TRAINING: Mapping[str, tuple[Reader, Any]] = {
    "loss": (_texts, ()),
    "wrt": (_texts, ()),
    "no_grad": (_texts, ()),
    "retain_grad": (_texts, ()),
    "grad_ys": (_texts, ()),
    "unused": (_one_of("absent", "zero"), "absent"),
    "accumulation": (_one_of("auto", "eager", "lazy"), "auto"),
    "loss_scale": (_text, None),
    "training": (_flag, False),
    "optimizer": (_text, None),
    "clip_norm": (_number, None),
    "straight_through": (_flag, False),
    "time_checkpoints": (_chunks, None),
    "store": (_texts, ()),
}
"""The options of the training graph: how each is read, and its default."""

_READERS: Mapping[str, Reader] = {
    "dims": _dims,
    "shapes": _shapes,
    "strategy": _text,
    "inference": _flag,
    **{name: reader for name, (reader, _) in TRAINING.items()},
}

KEYS = tuple(name.replace("_", "-") for name in _READERS)
"""The settings as they are written in configuration files."""


@dataclass(frozen=True)
class Settings:
    """How a model is loaded, differentiated and planned.

    Attributes:
        dims: sizes of named dimensions.
        shapes: shapes of inputs.
        strategy: how to plan, as one writes it on the command line.
        inference: whether the model is taken as it is, without training and without a plan.
        training: options of the training graph that differ from their default, by the names in `TRAINING`.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    shapes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    strategy: str = "auto"
    inference: bool = False
    training: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, **options: Any) -> Settings:
        """The settings that a command's options ask for; defaults may be left out.

        Raises:
            UsageError: options do not go together.
        """
        given = {
            name: options[name] for name, (_, default) in TRAINING.items() if options.get(name, default) != default
        }
        made = cls(
            dims=dict(options.get("dims", {})),
            shapes=dict(options.get("shapes", {})),
            strategy=options.get("strategy", "auto"),
            inference=options.get("inference", False),
            training=given,
        )
        if made.inference and (given or made.strategy != "auto"):
            odd = [*(["strategy"] if made.strategy != "auto" else []), *given]
            raise UsageError(
                f"`inference` takes a model as it is, without training and without a plan, and does not go with "
                f"{', '.join('`' + name.replace('_', '-') + '`' for name in odd)}",
                "leave out one or the other",
            )
        return made

    def option(self, name: str) -> Any:
        """The value of an option of the training graph."""
        return self.training.get(name, TRAINING[name][1])

    def options(self) -> dict[str, Any]:
        """The inverse of `of`, without what is at its default."""
        head = {"dims": self.dims, "shapes": self.shapes, "strategy": self.strategy, "inference": self.inference}
        default = Settings()
        given = {name: value for name, value in head.items() if value != getattr(default, name)}
        return {**given, **self.training}

    def __str__(self) -> str:
        """As it would stand on the command line."""
        options = self.options()
        return spell_options(options if self.inference else {"strategy": self.strategy, **options})

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form; what is at its default is left out, but for the strategy of a model that is planned."""
        shapes = {name: list(sizes) for name, sizes in self.shapes.items()}
        head = {"dims": dict(self.dims), "shapes": shapes, "inference": self.inference}
        data = {name: value for name, value in head.items() if value}
        if not self.inference:
            data["strategy"] = self.strategy
        lists = {name: list(value) if isinstance(value, tuple) else value for name, value in self.training.items()}
        return data | lists

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """The inverse of `to_json`.

        Raises:
            ValueError: a value is of the wrong kind, or a key is not known.
        """
        return cls.of(**{name: read_setting(name, value) for name, value in data.items()})


def spell_options(options: Mapping[str, Any]) -> str:
    """Settings as they stand on the command line, from a mapping as `Settings.of` takes it."""
    words: list[str] = []
    for name, value in options.items():
        if name in ("dims", "shapes"):
            sizes = {key: size if name == "dims" else ",".join(map(str, size)) for key, size in value.items()}
            words += [word for key, text in sizes.items() for word in (f"--{name[:-1]}", f"{key}={text}")]
        else:
            option = f"--{name.replace('_', '-')}"
            for item in value if isinstance(value, tuple) else (value,):
                words += [option] if item is True else [option, str(item)]
    return shlex.join(words)


def read_setting(name: str, value: Any) -> Any:
    """Read one setting from a file.

    Args:
        name: its name, with underscores.
        value: what stands in the file.

    Raises:
        ValueError: the value is not what the message says.
    """
    if name not in _READERS:
        raise ValueError(f"a known setting ({name} is none)")
    return _READERS[name](value)


def unknown(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not one of those known: the nearest, or all of them."""
    listed = list(known)
    near = difflib.get_close_matches(name, listed, n=1, cutoff=0.5)
    return f"did you mean `{near[0]}`?" if near else f"choose one of {', '.join(listed)}"

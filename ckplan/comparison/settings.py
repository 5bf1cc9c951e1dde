"""How a model is loaded, differentiated and planned for a comparison, as it stands in files."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ckplan.display import did_you_mean
from ckplan.errors import UsageError
from ckplan.pipeline.goal import Goal
from ckplan.pipeline.options import READERS, Reader, StepOptions, read_text, spell_options
from ckplan.units import parse_budget, spell_budget

_READERS: Mapping[str, Reader] = {"strategy": read_text, **READERS}

KEYS = tuple(name.replace("_", "-") for name in _READERS)
"""The settings as they are written in configuration files."""


@dataclass(frozen=True)
class Settings:
    """How a model is loaded, differentiated and planned.

    Attributes:
        step: how it is loaded and differentiated.
        strategy: how to plan, as one writes it on the command line.
        budget: what the plan must not exceed: bytes of activations, or (a float) a ratio of what the step takes without
            a plan.
    """

    step: StepOptions = field(default_factory=StepOptions)
    strategy: str = "auto"
    budget: int | float | None = None

    @classmethod
    def of(cls, *, strategy: str = "auto", budget: int | float | None = None, **options: Any) -> Settings:
        """The settings that a command's options ask for; defaults may be left out.

        Raises:
            UsageError: options do not go together.
        """
        made = cls(StepOptions.of(**options), strategy, budget)
        if made.step.inference and strategy != "auto":
            raise UsageError(
                "`inference` takes a model as it is, without training or a plan, and does not go with `strategy`",
                "leave out one or the other",
            )
        return made

    @property
    def goal(self) -> Goal:
        """What a plan is to keep to."""
        return Goal.of(budget=self.budget)

    def options(self) -> dict[str, Any]:
        """The inverse of `of`, without what is at its default."""
        head = {"strategy": self.strategy, "budget": self.budget}
        default = Settings()
        given = {name: value for name, value in head.items() if value != getattr(default, name)}
        return {**self.step.options(), **given}

    def __str__(self) -> str:
        """As it would stand on the command line."""
        options = self.options()
        return spell_options(options if self.step.inference else {"strategy": self.strategy, **options})

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form; what is at its default is left out, but for the strategy of a model that is planned."""
        data = self.step.to_json()
        if not self.step.inference:
            data["strategy"] = self.strategy
        return data if self.budget is None else data | {"budget": spell_budget(self.budget)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Settings:
        """The inverse of `to_json`.

        Raises:
            ValueError: a value is of the wrong kind, or a key is not known.
        """
        return cls.of(**{name: read_setting(name, value) for name, value in data.items()})


def read_setting(name: str, value: Any) -> Any:
    """Read one setting from a file.

    Args:
        name: its name, with underscores.
        value: what stands in the file.

    Raises:
        ValueError: the value is not what the message says.
    """
    if name == "budget":
        return parse_budget(read_text(value))
    if name not in _READERS:
        raise ValueError(f"a known setting ({name} is not one)")
    return _READERS[name](value)


def unknown(name: str, known: Iterable[str]) -> str:
    """What to say of a name that is not one of those known: the nearest, or all of them."""
    listed = list(known)
    return did_you_mean(name, listed) or f"choose one of {', '.join(listed)}"

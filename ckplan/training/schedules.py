"""How the learning rate changes from step to step."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from ckplan.arguments import check_number
from ckplan.choices import parse_choice, spell


@dataclass(frozen=True)
class Constant:
    """The learning rate as it is, from the end of a linear warm-up on.

    Attributes:
        warmup: steps over which the rate rises from almost zero: 1 / (warmup + 1) of it in the first.
    """

    name: ClassVar[str] = "constant"

    warmup: int = 0

    def __post_init__(self) -> None:
        check_number(f"option `warmup` of schedule `{self.name}`", self.warmup, whole=True)

    def factor(self, step: int, steps: int) -> float:
        """What the learning rate is multiplied by.

        Args:
            step: number of the step, from 0.
            steps: how many there will be.
        """
        if step < self.warmup:
            return (step + 1) / (self.warmup + 1)
        left = steps - self.warmup
        return self.share(min((step - self.warmup) / left, 1.0) if left > 0 else 1.0)

    def share(self, passed: float) -> float:
        """What the learning rate is multiplied by after the warm-up, when a share of the steps has passed."""
        return 1.0

    def __str__(self) -> str:
        """The schedule as one writes it on the command line."""
        return spell(self)


@dataclass(frozen=True)
class Linear(Constant):
    """From the learning rate in a straight line to a share of it.

    Attributes:
        final: the share of the rate that is left at the end.
    """

    name: ClassVar[str] = "linear"

    final: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_number(f"option `final` of schedule `{self.name}`", self.final)

    def share(self, passed: float) -> float:
        """See `Constant.share`."""
        return 1 + (self.final - 1) * passed


@dataclass(frozen=True)
class Cosine(Linear):
    """From the learning rate along half a cosine to a share of it.

    Loshchilov and Hutter, "SGDR: Stochastic Gradient Descent with Warm Restarts", 2017, without restarts.
    """

    name: ClassVar[str] = "cosine"

    def share(self, passed: float) -> float:
        """See `Constant.share`."""
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * passed)) / 2


SCHEDULES: tuple[type[Constant], ...] = (Constant, Linear, Cosine)
"""All schedules."""


def parse_schedule(text: str) -> Constant:
    """Make a schedule from ``cosine`` or ``cosine:warmup=100,final=0.1``.

    Raises:
        UsageError: there is no such schedule or option.
    """
    return parse_choice(text, SCHEDULES, "schedule")

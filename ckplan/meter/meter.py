"""What a meter is: a way to find out what memory a file takes, and what is shown of it."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ckplan.meter.running.device import DEVICES

if TYPE_CHECKING:
    from ckplan.meter.types import Measurement

Of = Callable[["Measurement"], int | None]


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of a measured file, in bytes: a row of what is shown.

    Attributes:
        title: what it is; a part of the figure above is indented by two blanks.
        of: reads it off a measurement; None where it is not known.
        expected: the same, as it was simulated.
        promised: the same, as the file promises it.
        style: ``bold``, ``dim`` or nothing.
        under: the title of another meter's figure that it is a part of; else it stands with its own meter's.
        alone: whether it is left out where two files are compared.
    """

    title: str
    of: Of
    expected: Of | None = None
    promised: Of | None = None
    style: str = ""
    under: str = ""
    alone: bool = False


@dataclass(frozen=True, slots=True)
class Meter:
    """A way to measure memory. Each is one file of this package, and stands in `ckplan.meter.memory.meters.METERS`.

    Attributes:
        name: what it is called in JSON.
        figures: what is shown of it.
        job: a module whose function ``job`` measures in a process of its own (see `ckplan.meter.running.child`) and
            returns what JSON can hold; empty for a meter that reads along while the file runs for another reason.
        read: makes a record of what the job returned; it becomes ``Measurement.readings[name]``.
        doing: what is being done meanwhile, in words.
        devices: where it works.
    """

    name: str
    figures: tuple[Figure, ...]
    job: str = ""
    read: Callable[[Any], Any] = dict
    doing: str = ""
    devices: tuple[str, ...] = DEVICES


def in_order(figures: Iterable[Figure]) -> list[Figure]:
    """Figures as they are shown: those that are a part of another behind it and its other parts."""
    placed: list[Figure] = []
    for figure in figures:
        titles = [other.title for other in placed]
        if figure.under not in titles:
            placed.append(figure)
            continue
        place = titles.index(figure.under) + 1
        while place < len(placed) and placed[place].title.startswith("  "):
            place += 1
        placed.insert(place, figure)
    return placed

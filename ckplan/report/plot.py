"""The frontier of peak against overhead as a picture, before it is known how it is drawn."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from string import ascii_letters
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ckplan.answers.pareto import Pareto

_ROOM = 1.5
"""How far beyond the frontier's dearest plan the picture reaches at most."""

_TICKS = 5
"""About so many labels stand along an axis."""
_UNITS = ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB"), (1, "B"))


@dataclass(frozen=True, slots=True)
class Mark:
    """A strategy's own plan in the picture.

    Attributes:
        letter: what marks it.
        strategy: its name.
        overhead: extra compute as a ratio of the step.
        peak: bytes of activations.
    """

    letter: str
    strategy: str
    overhead: float
    peak: int


@dataclass(frozen=True, slots=True)
class Plot:
    """What is drawn: overhead to the right, peak upwards, both from zero.

    Attributes:
        frontier: ``(overhead, bytes)`` of each point, the cheapest first.
        marks: plans of strategies; those that lie beyond the picture are left out when it is drawn.
        base: bytes of the step without a plan.
        bound: bytes below which no plan can go.
        right: overhead at the right end.
        top: bytes at the upper end.
    """

    frontier: tuple[tuple[float, int], ...]
    marks: tuple[Mark, ...]
    base: int
    bound: int
    right: float
    top: int

    @property
    def inside(self) -> tuple[Mark, ...]:
        """The marks that lie within the picture."""
        return tuple(mark for mark in self.marks if mark.overhead <= self.right and mark.peak <= self.top)

    def staircase(self) -> list[tuple[float, int]]:
        """Corners of the line of the lowest peak that a given overhead buys."""
        corners: list[tuple[float, int]] = []
        for overhead, peak in self.frontier:
            if corners:
                corners.append((overhead, corners[-1][1]))
            corners.append((overhead, peak))
        return [*corners, (self.right, corners[-1][1])] if corners else []


def plot_of(found: Pareto) -> Plot:
    """The picture of a frontier."""
    frontier = tuple((plan.overhead, plan.predicted.peak_activations) for plan in found.points)
    plans = [(made.strategy, made.plan) for made in found.offers if made.plan is not None]
    letters = {name: ascii_letters[index % len(ascii_letters)] for index, (name, _) in enumerate(plans)}
    marks = tuple(Mark(letters[name], name, plan.overhead, plan.predicted.peak_activations) for name, plan in plans)
    dearest = max((overhead for overhead, _ in frontier), default=0.0)
    reach = max(dearest * _ROOM, 0.1)
    right = max([dearest * 1.05, 0.1, *(mark.overhead * 1.05 for mark in marks if mark.overhead * 1.05 <= reach)])
    base = found.base.peak_activations
    top = max([base, *(peak for _, peak in frontier), *(mark.peak for mark in marks if mark.peak <= 1.5 * base)])
    return Plot(frontier, marks, base, found.lower_bound, right, max(math.ceil(top * 1.05), 1))


def percent_ticks(right: float) -> list[tuple[float, str]]:
    """Round overheads from 0 to the right end, with their labels: ``(0.1, "10 %")``."""
    return [(value / 100, f"{value:g} %") for value in _ticks(right * 100, _TICKS)]


def byte_ticks(top: int, count: int = _TICKS) -> list[tuple[float, str]]:
    """Round sizes from 0 to the upper end, in one unit, with their labels: ``(2097152, "2 MiB")``."""
    factor, unit = next((factor, unit) for factor, unit in _UNITS if top >= factor)
    return [(value * factor, f"{value:g} {unit}") for value in _ticks(top / factor, count)]


def _ticks(end: float, count: int) -> Sequence[float]:
    """Multiples of 1, 2 or 5 times a power of ten, about ``count`` of them."""
    rough = end / count
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= rough * 0.999)
    return [round(step * index, 10) for index in range(int(end / step + 1e-9) + 1)]

"""All meters. A new one is a file of this folder and its place in `METERS`, or `register_meter` from outside."""

from __future__ import annotations

from dataclasses import replace

from ckplan.arguments import check_kind
from ckplan.extensions import check_unused, load_group, running
from ckplan.meter.memory import counters, heap, nvml, plain
from ckplan.meter.meter import Figure, Meter, in_order

METERS: tuple[Meter, ...] = (counters.METER, heap.METER, nvml.METER, plain.METER)
"""The meters of ckplan, in the order in which their figures are shown."""

GROUP = "ckplan.meters"
"""Entry points of installed packages: meters of theirs."""

_OTHERS: list[Meter] = []


def register_meter(meter: Meter) -> None:
    """Make a meter known; it measures from then on whenever a file is measured.

    Raises:
        UsageError: it is no `Meter`, or another meter has its name.
    """
    _OTHERS.append(_named(meter, *METERS, *_OTHERS))


def meters() -> tuple[Meter, ...]:
    """Every meter: those of ckplan, those of installed packages, those that were registered."""
    return (*METERS, *(meter for _, meter in load_group(GROUP, _installed)), *_OTHERS)


def _installed(name: str, meter: Meter) -> Meter:
    return _named(meter, *METERS)


def _named(meter: Meter, *known: Meter) -> Meter:
    """A meter of others, whose functions are named where they fail.

    Raises:
        UsageError: it is none, or one of those that are known has its name.
    """
    check_kind("the meter", meter, Meter, "give a `ckplan.meter.meter.Meter`")
    check_unused(meter.name, [other.name for other in known], "meters")
    figures = []
    for figure in meter.figures:
        named = running(f"figure '{figure.title.strip()}' of the {meter.name} meter")
        given = {field: getattr(figure, field) for field in ("of", "expected", "promised")}
        figures.append(replace(figure, **{field: named(read) for field, read in given.items() if read is not None}))
    return replace(meter, figures=tuple(figures), read=running("what reads its figures")(meter.read))


def figures() -> list[Figure]:
    """What all meters show, in order."""
    return in_order(figure for meter in meters() for figure in meter.figures)

"""All meters. A new one is a file of this package and its place in `METERS`, or `register_meter` from outside."""

from __future__ import annotations

from ckplan.arguments import check_kind
from ckplan.errors import UsageError
from ckplan.extensions import load_group
from ckplan.meter import counters, heap, nvml, plain
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
    check_kind("the meter", meter, Meter, "give a `ckplan.meter.meter.Meter`")
    if any(known.name == meter.name for known in (*METERS, *_OTHERS)):
        raise UsageError(f"two meters are called `{meter.name}`", "give one another name, and register each once")
    _OTHERS.append(meter)


def meters() -> tuple[Meter, ...]:
    """Every meter: those of ckplan, those of installed packages, those that were registered."""
    return (*METERS, *(meter for _, meter in load_group(GROUP)), *_OTHERS)


def figures() -> list[Figure]:
    """What all meters show, in order."""
    return in_order(figure for meter in meters() for figure in meter.figures)

"""A meter as somebody else would write it, in one file: how many bytes the file itself has."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ckplan.meter.meter import Figure, Meter
from ckplan.meter.running.child import Channel


@dataclass(frozen=True)
class Size:
    """What the meter found."""

    bytes: int


def job(channel: Channel) -> dict[str, int]:
    """In the child."""
    channel.progress("weighing the file")
    return {"bytes": Path(channel.request["path"]).stat().st_size}


METER = Meter(
    "size",
    (Figure("  the file itself", lambda found: found.readings["size"].bytes if "size" in found.readings else None),),
    job="tests.meter.counting",
    read=lambda told: Size(**told),
    doing="size of the file",
)

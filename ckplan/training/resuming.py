"""What a training was asked for, as its checkpoints keep it, and what is another when it goes on from one of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ckplan.autodiff import parse_optimizer
from ckplan.training.data import Data
from ckplan.training.schedules import Constant

_DATA = "data"
_NONE = "none"


def asked_for(
    rate: float, schedule: Constant, optimizer: str | None, clip_norm: float | None, updates: int, data: Data
) -> dict[str, str]:
    """The options and data of a training, as text by what they are.

    Args:
        rate: the learning rate.
        schedule: how it changes.
        optimizer: of a file without one, as on the command line.
        clip_norm: goes with ``optimizer``.
        updates: how many there will be, which a schedule goes by.
        data: the training data, of which a checksum is kept.
    """
    asked = {"learning rate": f"{rate:g}", "schedule": str(schedule), _DATA: _checksum(data)}
    if type(schedule) is not Constant:
        asked["number of updates"] = str(updates)
    if optimizer is not None:
        asked["optimizer"] = str(parse_optimizer(optimizer))
    if clip_norm is not None:
        asked["clip norm"] = f"{clip_norm:g}"
    return asked


def changes(path: Path, before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """What is another than in the training that wrote a checkpoint, a sentence each.

    Args:
        path: the checkpoint.
        before: what that training was asked for; empty in checkpoints that do not tell it.
        now: what it is asked for as it goes on.
    """
    if not before:
        return ()
    notes = [
        f"the {what} is {now.get(what, _NONE)} from here on, and was {before.get(what, _NONE)} in {path}"
        for what in dict.fromkeys((*now, *before))
        if what != _DATA and now.get(what) != before.get(what)
    ]
    if now[_DATA] != before.get(_DATA):
        notes.append(f"the training data hold other numbers than those that {path} was made with")
    return tuple(notes)


def _checksum(data: Data) -> str:
    found = 0
    for name in sorted(data):
        found = zlib.crc32(np.ascontiguousarray(data[name]).reshape(-1).view(np.uint8).data, found)
    return f"{found:08x}"

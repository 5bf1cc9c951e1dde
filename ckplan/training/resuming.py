"""What a training was asked for, as its checkpoints keep it, and what is another when it goes on from one of them."""

from __future__ import annotations

import zlib
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from ckplan.training.data import Data
from ckplan.training.schedules import Constant

_SEED = "seed"
_DATA = "data"


def asked_for(
    rate: float, schedule: Constant, optimizer: str, clip_norm: float | None, seed: int, data: str, updates: int
) -> dict[str, str]:
    """The options and data of a training, as text by what they are.

    Args:
        rate: the learning rate.
        schedule: how it changes.
        optimizer: the file's own, or the one beside it, with its options.
        clip_norm: goes with the one beside it.
        seed: of the order of the samples.
        data: the `checksum` of the training data.
        updates: how many there will be, which a schedule goes by.
    """
    return {
        "learning rate": f"{rate:g}",
        "schedule": str(schedule) if type(schedule) is Constant else f"{schedule} over {updates} updates",
        "optimizer": optimizer,
        "clip norm": "none" if clip_norm is None else f"{clip_norm:g}",
        _SEED: str(seed),
        _DATA: data,
    }


def changes(path: Path, before: Mapping[str, str], now: Mapping[str, str]) -> tuple[str, ...]:
    """What is another than in the training that wrote a checkpoint, a sentence each.

    Args:
        path: the checkpoint.
        before: what that training was asked for; nothing is said of what it does not tell.
        now: what it is asked for as it goes on.
    """
    others = [what for what, said in before.items() if now.get(what, said) != said]
    told = {
        _SEED: f"the order of the samples is that of the seed in {path}, {before.get(_SEED)}",
        _DATA: f"the training data hold other numbers than those that {path} was made with",
    }
    return tuple(
        told.get(what, f"the {what} is {now[what]} from here on, and was {before[what]} in {path}") for what in others
    )


def checksum(data: Data) -> str:
    """A number that is another where the arrays hold other numbers."""
    found = 0
    for name in sorted(data):
        found = zlib.crc32(np.ascontiguousarray(data[name]).reshape(-1).view(np.uint8).data, found)
    return f"{found:08x}"

"""Step times of two files, taken in turns.

Each file has a process of its own that stays warm, and the parent asks them in turns: base, new, base, new. A
slow spell of the machine then hits both. Processes rather than two sessions in one: their arenas and thread pools do
not mix, and one running out of memory tells which one it was. Both are in memory at once, so the machine must hold
both steady states.

On a CPU a step runs on one thread, and what is read is the processor time of its process: time that others take of a
shared machine is not in it, nor is the spinning of idle threads.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckplan.isolation.arrays import load_arrays
from ckplan.meter.compared import Timing
from ckplan.meter.memory.plain import WARM_UP
from ckplan.meter.running.child import Channel
from ckplan.meter.running.process import started
from ckplan.meter.running.session import open_session, step_of

_PAUSE = 0.02
"""Seconds between steps: onnxruntime's threads spin for a while after a run and would slow the other file's."""

_ENOUGH = 2.0
"""Seconds of steps after which no more pairs than asked for are taken."""

_PAIRS = 5
"""Pairs that are taken where no number was asked for."""

_FEWEST = 2
_PLENTY = 8.0
"""Seconds of steps after which fewer of these will do, and how many: what disturbs single steps is little of so long a
time."""

_LONG = 1.0
"""Seconds of a step from which a single one is enough to warm up: later ones differ by milliseconds."""

_MOST = 4
"""How many times the pairs that were asked for are taken where steps are short."""


def job(channel: Channel) -> None:
    """In the child: warm up, say so, then run and time one step per line of standard input."""
    request = channel.request
    feed = load_arrays(Path(request["inputs"]))
    channel.progress("the loading (timing)")
    session, _ = open_session(request["path"], request["device"], threads=request["threads"] or _alone(request))
    clock = time.process_time if _alone(request) else time.perf_counter
    step = step_of(session, feed)
    for number in range(WARM_UP):
        channel.progress(f"warm-up run {number + 1} (timing)")
        start = clock()
        step()
        if clock() - start > _LONG:
            break
    channel.progress("a timed run")
    for _ in sys.stdin:
        start = clock()
        step()
        channel.reply(clock() - start)


def _alone(request: Mapping[str, Any]) -> int | None:
    """One thread, where the processor time of a step can be told; None on a GPU, and where threads are asked for."""
    return 1 if request["device"] == "cpu" and request["threads"] in (None, 1) else None


def enough(asked: int | None, pairs: int, seconds: float) -> bool:
    """Whether it will do to have timed so many pairs of steps.

    Args:
        asked: how many were asked for, if a number was.
        pairs: how many there are.
        seconds: how long their steps took together.
    """
    wanted = _PAIRS if asked is None else asked
    if asked is None and pairs >= _FEWEST and seconds >= _PLENTY:
        return True
    return pairs >= _MOST * wanted or (pairs >= wanted and seconds >= _ENOUGH)


def alternate(base: Mapping[str, Any], new: Mapping[str, Any], pairs: int | None, processes: int = 1) -> Timing:
    """Time two files in turns.

    Where the memory of a process lies differs from one to the next, and with it all its steps, by some percent. A
    figure that is to hold in another process is that of several: the least over them varies by a few tenths.

    Args:
        base: request of the base file: ``path``, ``inputs``, ``device``, and ``threads``, which is None for what is
            said above and else the number of threads that the wall clock is read for.
        new: and of the new one.
        pairs: number of pairs of steps, up to four times as many where steps are short; None leaves it to `enough`.
        processes: how many processes each file has, one after the other, with so many pairs each.

    Raises:
        CkplanError: as `ckplan.meter.running.process.run_job`.
    """
    base_seconds: list[float] = []
    new_seconds: list[float] = []
    for _ in range(processes):
        for one, other in _pairs(base, new, pairs):
            base_seconds.append(one)
            new_seconds.append(other)
    return Timing(tuple(base_seconds), tuple(new_seconds), "processor" if _alone(base) else "wall")


def _pairs(base: Mapping[str, Any], new: Mapping[str, Any], asked: int | None) -> list[tuple[float, float]]:
    """Seconds of steps of two files, in one process each."""
    found: list[tuple[float, float]] = []
    with started("ckplan.meter.seconds.timing", base) as first, started("ckplan.meter.seconds.timing", new) as second:
        first.ask("warm")  # the first answer comes when the file is loaded and warm: it is not counted
        second.ask("warm")
        while not enough(asked, len(found), sum(map(sum, found))):
            time.sleep(_PAUSE)
            one = float(first.ask("step"))
            time.sleep(_PAUSE)
            found.append((one, float(second.ask("step"))))
        first.finish()
        second.finish()
    return found

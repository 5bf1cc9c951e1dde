"""Step times of two files, taken in turns.

Each file has a process of its own that stays warm, and the parent asks them in turns: base, new, base, new. A
slow spell of the machine then hits both, and each pair gives a ratio of its own. Processes rather than two
sessions in one: their arenas and thread pools do not mix, and one running out of memory tells which one it was.
Both are in memory at once, so the machine must hold both steady states.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ckplan.isolation.arrays import load_arrays
from ckplan.meter.child import Channel
from ckplan.meter.plain import WARM_UP
from ckplan.meter.process import started
from ckplan.meter.session import open_session, step_of
from ckplan.meter.types import Timing

_PAUSE = 0.02
"""Seconds between steps: onnxruntime's threads spin for a while after a run and would slow the other file's."""


def job(channel: Channel) -> None:
    """In the child: warm up, say so, then run and time one step per line of standard input."""
    request = channel.request
    feed = load_arrays(Path(request["inputs"]))
    channel.progress("the loading (timing)")
    session, _ = open_session(request["path"], request["device"], threads=request["threads"])
    step = step_of(session, feed)
    for number in range(WARM_UP):
        channel.progress(f"warm-up run {number + 1} (timing)")
        step()
    channel.progress("a timed run")
    for _ in sys.stdin:
        start = time.perf_counter()
        step()
        channel.reply(time.perf_counter() - start)


def alternate(base: Mapping[str, Any], new: Mapping[str, Any], pairs: int) -> Timing:
    """Time two files in turns.

    Args:
        base: request of the base file: ``path``, ``inputs``, ``device``, ``threads``.
        new: and of the new one.
        pairs: number of pairs of steps.

    Raises:
        CkplanError: as `ckplan.meter.process.run_job`.
    """
    base_seconds, new_seconds = [], []
    with started("timing", base) as first, started("timing", new) as second:
        first.ask("warm")  # the first answer comes when the file is loaded and warm: it is not counted
        second.ask("warm")
        for _ in range(pairs):
            time.sleep(_PAUSE)
            base_seconds.append(float(first.ask("step")))
            time.sleep(_PAUSE)
            new_seconds.append(float(second.ask("step")))
        first.finish()
        second.finish()
    return Timing(tuple(base_seconds), tuple(new_seconds))

"""How long a process that runs a model may go on without a sign of progress: a model may never end.

The signs are those of `ckplan.meter.running.child.Channel.progress`: before the loading, before each run. So the limit
is one of a single run, however many there are.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from ckplan.errors import UsageError

SECONDS = 600.0
"""Seconds that loading a model, or one run of it, may take unless told otherwise."""

_allowed = SECONDS


def allowed() -> float:
    """Seconds that loading a model, or one run of it, may take."""
    return _allowed


@contextmanager
def run_limit(seconds: float) -> Iterator[None]:
    """Let loading a model, and each run of it, take so long and no longer, within a block.

    Raises:
        UsageError: the number is not positive.
    """
    global _allowed
    if not seconds > 0:
        raise UsageError(f"a run cannot be limited to {seconds} s", "give a positive number of seconds")
    before, _allowed = _allowed, seconds
    try:
        yield
    finally:
        _allowed = before


@contextmanager
def watched(sign: Callable[[], int], end: Callable[[], None]) -> Iterator[None]:
    """End something that shows no new sign for too long while a block waits for it.

    Until there is a first sign, it has the time that it has by default: to start Python is not the model's affair.

    Args:
        sign: what changes when there is progress; 0 before the first.
        end: is called at most once, from another thread.
    """
    done, limit = threading.Event(), _allowed

    def watch() -> None:
        last, since = sign(), time.monotonic()
        while not done.wait(min(1.0, limit / 10)):
            if (new := sign()) != last:
                last, since = new, time.monotonic()
            elif time.monotonic() - since > (limit if last else max(limit, SECONDS)):
                end()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        yield
    finally:
        done.set()
        watcher.join()

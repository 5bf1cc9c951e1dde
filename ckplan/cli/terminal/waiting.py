"""While a command works: what it does, for how long, and the best plan so far, live or in plain lines."""

from __future__ import annotations

import io
import logging
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ckplan.cli.terminal.streams import say

if TYPE_CHECKING:
    from rich.text import Text

PERIOD = 2.5
"""Seconds between plain lines."""


class Waiting:
    """The state of one stage, and its line.

    Args:
        doing: what is being done, in words.
        clock: seconds, from any origin.
    """

    def __init__(self, doing: str, clock: Callable[[], float] = time.monotonic) -> None:
        self._doing, self._message, self._best = doing, "", ""
        self._clock, self._start = clock, clock()

    def go_on(self, doing: str) -> None:
        """The next thing is being done."""
        self._doing, self._message = doing, ""

    def hear(self, record: logging.LogRecord) -> None:
        """Take in what the library logs; a record may bear the ``best`` plan that an interruption would leave."""
        best = getattr(record, "best", None)
        if best is not None:
            self._best = str(best)
            return
        self._message = record.getMessage()
        if not record.name.startswith("ckplan.planner"):
            self._best = ""  # what follows a search is not ended by taking its plan

    def line(self) -> str:
        """What is to be shown now."""
        seconds = int(self._clock() - self._start)
        passed = f"{seconds // 60}:{seconds % 60:02} min" if seconds >= 60 else f"{seconds} s"
        best = f"best so far {self._best}; Ctrl-C takes it" if self._best else ""
        return " · ".join(part for part in (f"{self._doing} … {passed}", best, self._message) if part)


class _Live:
    """A line that is made anew each time it is drawn."""

    def __init__(self, waiting: Waiting, width: int) -> None:
        self._waiting, self._width = waiting, width

    def __rich__(self) -> Text:
        from rich.text import Text

        from ckplan.report.untrusted import printable

        text = printable(self._waiting.line())  # one line, or the terminal scrolls with each change
        return Text(text if len(text) < self._width - 4 else f"{text[: self._width - 5]}…", no_wrap=True)


@contextmanager
def shown(waiting: Waiting, colour: bool) -> Iterator[None]:
    """Show the line on stderr: live on a terminal, as plain lines where only a file or a pipe is.

    A command that is called as a function, whose output is a string, shows nothing: nobody waits for it.
    """
    from rich.console import Console

    console = Console(stderr=True, no_color=None if colour else True)
    with listening(waiting.hear, logging.DEBUG):
        if console.is_terminal:
            with console.status(_Live(waiting, console.width)):
                yield
        elif _is_watched():
            done = threading.Event()
            thread = threading.Thread(target=_tell, args=(waiting, done), daemon=True)
            thread.start()
            try:
                yield
            finally:
                done.set()
                thread.join()
        else:
            yield


def _is_watched() -> bool:
    try:
        sys.stderr.fileno()
    except (AttributeError, OSError, io.UnsupportedOperation):
        return False
    return True


def _tell(waiting: Waiting, done: threading.Event) -> None:
    while not done.wait(PERIOD):
        say(f"… {waiting.line()}")


@contextmanager
def listening(hear: Callable[[logging.LogRecord], None], level: int = logging.INFO) -> Iterator[None]:
    """Pass on what the library logs."""

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            hear(record)

    logger, listener = logging.getLogger("ckplan"), Listener()
    before = logger.level
    logger.setLevel(level)
    logger.addHandler(listener)
    try:
        yield
    finally:
        logger.removeHandler(listener)
        logger.setLevel(before)

"""Ctrl-C ends a command within seconds, also where a library computes outside of Python and would not hear of it."""

from __future__ import annotations

import atexit
import os
import signal
import socket
import threading
import time
from types import FrameType

import click

from ckplan.isolation.lifetime import comes_again

GRACE = 4.0
"""Seconds of processor time that Python gets to hear of an interruption, and to clean up."""
_LONGEST = 16.0
"""The same on the clock: a busy machine lets a process wait, and one that sleeps takes no processor time."""
_MOMENT = 0.1
"""Seconds that a thread takes at most to hear that there is nothing to wait for."""
INTERRUPTED = 130


def end_when_stuck() -> None:
    """From now on, end the process if Ctrl-C is not heard in time.

    Python runs a signal's handler between two of its own instructions, so a call into a library that takes a minute
    takes it to the end. A thread is told of the signal at once, and looks whether the handler has run. Does nothing
    where Ctrl-C has a handler already, or outside of the main thread.
    """
    if threading.current_thread() is not threading.main_thread():
        return
    if signal.getsignal(signal.SIGINT) is not signal.default_int_handler:
        return
    heard = [0.0]
    reader, writer = socket.socketpair()
    writer.setblocking(False)

    def handle(number: int, frame: FrameType | None) -> None:
        heard[0] = time.monotonic()
        if not comes_again(number, frame):
            signal.default_int_handler(number, frame)

    def watch() -> None:
        with reader:
            while received := reader.recv(1):
                if received[0] == signal.SIGINT:
                    since = time.monotonic() - 1  # the handler may have been faster than this thread
                    _wait()
                    if heard[0] < since:
                        click.echo("ckplan: interrupted", err=True)
                        os._exit(INTERRUPTED)
                elif received[0] in _ENDING:
                    # Whoever is asked to end has not, by now: what it leaves goes with the next command.
                    _wait()
                    os._exit(128 + received[0])

    signal.signal(signal.SIGINT, handle)
    signal.set_wakeup_fd(writer.fileno(), warn_on_full_buffer=False)
    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    atexit.register(_end_watch, writer, watcher)


def _end_watch(writer: socket.socket, watcher: threading.Thread) -> None:
    """Close both sockets; a thread that waits for what was interrupted to end is not waited for."""
    signal.set_wakeup_fd(-1)
    writer.close()
    watcher.join(_MOMENT)


def _wait() -> None:
    began, since = time.process_time(), time.monotonic()
    while time.process_time() - began < GRACE and time.monotonic() - since < _LONGEST:
        time.sleep(0.1)


_ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))
"""Signals that leave blocks in order where they are heard; see `ckplan.isolation.lifetime.end_cleanly`."""

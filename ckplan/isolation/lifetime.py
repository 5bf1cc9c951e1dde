"""A process that works for another ends with it, and takes no more memory than it was given."""

from __future__ import annotations

import _thread
import os
import platform
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType
from typing import Any, TypeVar, cast

_PR_SET_PDEATHSIG = 1
_PERIOD = 0.5
_Function = TypeVar("_Function", bound=Callable[..., Any])


def end_with(parent: int) -> None:
    """Let this process be killed as soon as its parent has ended, were it by SIGKILL.

    Linux does that by itself; elsewhere a thread looks for the parent twice a second.

    Args:
        parent: the process id of the parent.
    """
    if platform.system() == "Linux":
        import ctypes

        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it had ended before
            os._exit(1)
        return
    threading.Thread(target=_watch, args=(parent,), daemon=True).start()


def _watch(parent: int) -> None:
    import psutil  # type: ignore[import-untyped,unused-ignore]

    while psutil.pid_exists(parent):
        time.sleep(_PERIOD)
    os._exit(1)


def limit_memory(nbytes: int) -> None:
    """Let allocations of this process fail beyond a number of bytes; does nothing where the system cannot.

    What is counted is what the process may write to: a weight that is mapped from a file is not.
    """
    try:
        import resource
    except ImportError:  # Windows
        return
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    most = nbytes if hard == resource.RLIM_INFINITY else min(nbytes, hard)
    resource.setrlimit(resource.RLIMIT_DATA, (most, hard))


def end_cleanly() -> None:
    """Let SIGTERM and SIGHUP leave blocks as Ctrl-C does, so that children and temporary folders go.

    A signal that is ignored, as SIGHUP is under nohup, stays ignored.
    """
    for name in ("SIGTERM", "SIGHUP"):
        number = getattr(signal, name, None)
        if number is not None and signal.getsignal(number) == signal.SIG_DFL:
            signal.signal(number, _leave)


def asked_to_end() -> int | None:
    """The signal that this process was asked to end with and that it heard of, if any."""
    return _asked


_asked: int | None = None


_held: set[CodeType] = set()


def uninterrupted(function: _Function) -> _Function:
    """Let signals that end the process wait until a function has returned; see `comes_again`."""
    _held.add(cast("FunctionType", function).__code__)
    return function


def comes_again(number: int, frame: FrameType | None) -> bool:
    """Say whether a signal came in the middle of an import or of what is `uninterrupted`; if so, let it come again.

    A library in C need not survive what a handler raises while it is imported: some crash, some make an ImportError
    of it.

    Args:
        number: the signal.
        frame: what its handler was given.
    """
    while frame is not None:
        if frame.f_code.co_filename == _IMPORTING or frame.f_code in _held:
            again = threading.Timer(_SOON, _thread.interrupt_main, (number,))
            again.daemon = True
            again.start()
            return True
        frame = frame.f_back
    return False


@contextmanager
def interruptions() -> Iterator[list[int]]:
    """Note each Ctrl-C that comes while a block runs, those included that somebody within catches to keep what it has.

    What handles them goes on doing so. Outside of the main thread, and where no function handles them, none is noted.
    """
    heard: list[int] = []
    handler = signal.getsignal(signal.SIGINT)
    if not callable(handler) or threading.current_thread() is not threading.main_thread():
        yield heard
        return

    def note(number: int, frame: FrameType | None) -> None:
        heard.append(number)
        handler(number, frame)

    signal.signal(signal.SIGINT, note)
    try:
        yield heard
    finally:
        if signal.getsignal(signal.SIGINT) is note:
            signal.signal(signal.SIGINT, handler)


_IMPORTING = "<frozen importlib._bootstrap>"
_SOON = 0.05
"""Seconds until it is looked again whether that has ended."""


def _leave(number: int, frame: FrameType | None) -> None:
    global _asked
    if comes_again(number, frame):
        return
    _asked = number
    for name in ("SIGTERM", "SIGHUP", "SIGINT"):  # what cleans up is not to be interrupted
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), signal.SIG_IGN)
    raise SystemExit(128 + number)

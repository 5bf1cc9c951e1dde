"""Temporary folders that do not outlive their process for long, whatever ends it.

A folder is locked while its process lives, and the system gives up the lock when the process ends, were it by SIGKILL.
Whoever makes the next folder in the same place removes those that are not locked. Where folders cannot be locked
(Windows, some network file systems) they are left alone.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ckplan.errors import EnvironmentUnavailableError
from ckplan.isolation.claims import remove_claimed
from ckplan.isolation.lifetime import uninterrupted

_NAMES = re.compile(r"ckplan-[a-z0-9_]{8}|\.ckplan-[a-z0-9_]{8}\.tmp")


@contextmanager
def temporary_folder(beside: Path | None = None) -> Iterator[Path]:
    """A new folder, removed with all that is in it when the block is left.

    Args:
        beside: the folder to make it in, as a hidden one: what is written there can be moved to its place by renaming.
            By default the system's folder for temporary files.

    Raises:
        EnvironmentUnavailableError: there is no folder for temporary files, or it is full.
        OSError: the folder `beside` cannot be written to.
    """
    place = beside or temporary_place()
    _remove_abandoned(place)
    folder, lock = _made(place, hidden=beside is not None)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)
        _there.pop(folder, None)
        if lock is not None:
            os.close(lock)


@contextmanager
def made_folder(folder: Path) -> Iterator[None]:
    """A folder for what a block writes, made with those above it where they are not there.

    If the block fails, those of them that are empty are removed again.

    Raises:
        EnvironmentUnavailableError: the folder cannot be made.
    """
    missing = [place for place in (folder, *folder.parents) if not os.path.lexists(place)]
    try:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise EnvironmentUnavailableError(
                f"cannot make folder {folder}: {error.strerror or error}", "name another"
            ) from error
        yield
    except BaseException:
        with suppress(OSError):
            for place in missing:
                place.rmdir()
        raise


_there: dict[Path, int] = {}
"""Folders that have not been removed yet, and the process that made each."""


@atexit.register
def _remove_left() -> None:
    """Remove what a signal kept from its block: one that came between the making of a folder and the block's begin."""
    for folder, process in _there.items():
        if process == os.getpid():
            shutil.rmtree(folder, ignore_errors=True)


def is_temporary(file: Path) -> bool:
    """Whether a file lies in a folder of ours among the system's temporary files, where nobody asked for it to be.

    A result that somebody wants under `/tmp` is not one of these.
    """
    place = temporary_place().resolve()
    return any(folder.parent == place and _NAMES.fullmatch(folder.name) for folder in file.resolve().parents)


def temporary_place() -> Path:
    """Where temporary folders are made.

    Raises:
        EnvironmentUnavailableError: nothing can be written there.
    """
    try:
        return Path(tempfile.gettempdir())
    except OSError as error:
        raise no_room(error) from error


def take_place_of_parent() -> None:
    """Make temporary files where the parent does, who has tried the place.

    Python tries it with a file of its own, which stays behind if the process is killed just then.
    """
    tempfile.tempdir = os.environ.get("TMPDIR")


def no_room(error: OSError) -> EnvironmentUnavailableError:
    """The error for temporary files that cannot be written."""
    return EnvironmentUnavailableError(
        f"cannot write temporary files: {error.strerror or error}",
        "free disk space, or set TMPDIR to another folder",
    )


@uninterrupted
def _made(place: Path, hidden: bool) -> tuple[Path, int | None]:
    prefix, suffix = (".ckplan-", ".tmp") if hidden else ("ckplan-", "")
    while True:
        try:
            folder = Path(tempfile.mkdtemp(prefix=prefix, suffix=suffix, dir=place))
        except OSError as error:
            if hidden:
                raise
            raise no_room(error) from error
        try:
            lock = _lock(folder)
        except BlockingIOError:
            continue  # another process took it for abandoned in the moment before it was locked, and removes it
        if folder.exists():
            _there[folder] = os.getpid()
            return folder, lock
        if lock is not None:
            os.close(lock)


def _lock(folder: Path) -> int | None:
    """An open descriptor that holds the lock of a folder; None where nobody can.

    Raises:
        BlockingIOError: another process has it.
    """
    if os.name == "nt":
        return None
    import fcntl

    try:
        descriptor = os.open(folder, os.O_RDONLY | os.O_NOFOLLOW)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def _remove_abandoned(place: Path) -> None:
    """Remove the folders of ours in a place whose processes have ended, and what these would have removed there."""
    with suppress(OSError), os.scandir(place) as entries:
        for entry in entries:
            if not _NAMES.fullmatch(entry.name) or not entry.is_dir(follow_symlinks=False):
                continue
            lock = None
            with suppress(BlockingIOError):
                lock = _lock(Path(entry.path))
            if lock is not None:
                remove_claimed(Path(entry.path))
                shutil.rmtree(entry.path, ignore_errors=True)
                os.close(lock)

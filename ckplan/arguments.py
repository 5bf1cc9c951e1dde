"""What a user gives, held to the kind that it has to be of."""

from __future__ import annotations

import errno
import math
import os
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from ckplan.display import one_line
from ckplan.errors import EnvironmentUnavailableError, UsageError

LARGEST = (2 - 2.0**-23) * 2.0**127
"""The largest number of single precision: what is multiplied by more becomes infinite."""
_BYTES = 100
"""From this on a budget that is a ratio limits nothing."""
_PERCENT = 10
"""From this on any other ratio does not."""
_MOST = 80
"""Characters of a value in a message, at most: arrays and models would fill a screen."""


def is_number(given: Any, *, whole: bool = False) -> bool:
    """Whether something is a number, of Python's or of numpy's, or a whole one; true and false are none."""
    return isinstance(given, Integral if whole else Real) and not isinstance(given, bool)


def check_number(what: str, given: Any, least: float = 0, *, whole: bool = False) -> None:
    """See that a number is finite and not below another.

    Args:
        what: what it is, for the message.
        given: a number, of Python's or of numpy's.
        least: what it may be at the least; minus infinity lets it be any.
        whole: whether it has to be a whole number.

    Raises:
        UsageError: it is of another kind or out of range.
    """
    if not is_number(given, whole=whole) or not least <= given < math.inf:
        range_ = "" if least == -math.inf else f" of at least {least:g}"
        raise UsageError(f"{what} is {shown(given)}", f"give a {'whole ' if whole else ''}number{range_}")


def check_factor(what: str, given: Any) -> None:
    """See that a number that tensors are multiplied by is finite in single precision, and at least 0.

    Raises:
        UsageError: it is of another kind or out of range.
    """
    check_number(what, given)
    if given > LARGEST:
        raise UsageError(f"{what} is {shown(given)}", f"give at most {LARGEST:g}")


def check_budget(what: str, given: Any) -> None:
    """See that a budget is bytes as a whole number, or else a ratio of a peak.

    Raises:
        UsageError: it is of another kind, negative, or a ratio that limits nothing, as bytes that are a float would be.
    """
    check_number(what, given)
    if not is_number(given, whole=True) and given >= _BYTES:
        raise UsageError(
            f"{what} is {float(given):.12g} times the peak without a plan",
            "bytes are whole numbers, such as 536870912, and ratios are like 0.4",
        )


def check_ratio(what: str, given: Any) -> None:
    """See that a number is a ratio of at least zero.

    Raises:
        UsageError: it is of another kind, negative, or so large that percent were meant.
    """
    check_number(what, given)
    if given >= _PERCENT:
        raise UsageError(
            f"{what} is {float(given):g}, which is {100 * float(given):g} %", "give less, such as 10% (a ratio of 0.1)"
        )


def check_kind(what: str, given: Any, kind: type | tuple[type, ...], remedy: str) -> None:
    """See that something is of a kind.

    Args:
        what: what it is, for the message.
        given: the thing.
        kind: a class, or several.
        remedy: what to give instead of another thing, as a clause.

    Raises:
        UsageError: it is of another kind.
    """
    if not isinstance(given, kind):
        raise UsageError(f"{what} is {shown(given)}", remedy)


def check_flag(what: str, given: Any) -> None:
    """See that a switch is true or false: all else counts as true where Python asks, the text "no" as well.

    Raises:
        UsageError: it is of another kind.
    """
    check_kind(what, given, bool, "give True or False")


def check_text(what: str, given: Any) -> None:
    """See that a name is a string.

    Raises:
        UsageError: it is of another kind.
    """
    check_kind(what, given, str, "give a string")


def check_word(what: str, given: Any, words: Collection[str]) -> None:
    """See that a choice is one of several words.

    Raises:
        UsageError: it is another word, or of another kind.
    """
    if not isinstance(given, str) or given not in words:
        raise UsageError(f"{what} is {shown(given)}", f"choose one of {', '.join(words)}")


def check_table(what: str, given: Any) -> None:
    """See that values by name are a mapping from strings.

    Raises:
        UsageError: they are of another kind.
    """
    if not isinstance(given, Mapping) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{what} is {shown(given)}", "give a table: values by name")


def names_of(what: str, given: Any) -> tuple[str, ...]:
    """The names that a user gives: strings of a list or of another collection, such as the names of a state dict.

    Raises:
        UsageError: it is a single string, or of another kind.
    """
    if isinstance(given, str) or not isinstance(given, Collection) or not all(isinstance(name, str) for name in given):
        raise UsageError(f"{what} is {shown(given)}", "give a list of names")
    return tuple(given)


def path_of(what: str, given: Any) -> Path:
    """The path that a user gives, as text or as a path.

    Args:
        what: what lies there, for the message.
        given: the path.

    Raises:
        EnvironmentUnavailableError: nobody may look there.
        UsageError: it is of another kind, or no file system has such names.
    """
    check_kind(what, given, (str, os.PathLike), "give a path")
    if given == "":  # which would be the current directory
        raise UsageError(f"{what} is ''", "give a path")
    path = Path(given)
    try:
        os.lstat(path)
    except ValueError:
        raise UsageError(f"{what} is {shown(str(path))}", "give a path without null characters") from None
    except OSError as error:
        if error.errno == errno.ENAMETOOLONG:
            raise UsageError(f"{what} is {shown(str(path))}, a name that is too long", "give a shorter one") from None
        if error.errno == errno.EACCES:
            raise EnvironmentUnavailableError(
                f"no permission to look for {path}", "check the permissions of the folders that it lies in"
            ) from None
    return path


def file_to_write(path: Path, force: bool) -> Path:
    """The file that a path leads to, through links: what a rename puts in its place.

    Args:
        path: as the user gave it.
        force: whether the file may be overwritten.

    Raises:
        UsageError: the file exists and may not be overwritten, it cannot be a file, or its directory does not exist.
    """
    if path.is_dir():
        raise UsageError(f"{path} is a directory", "name a file in it")
    if path.exists() and not path.is_file():  # before links are followed: to a pipe they lead to no name
        raise UsageError(f"{path} is not a regular file", "name a file")
    if path.exists() and not force:
        raise UsageError(f"{path} exists", "pass --force to overwrite it")
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise UsageError(f"{path} is a link that leads back to itself", "name another file")
    for folder in (path.parent, target.parent):
        check_directory(folder)
    return target


def check_directory(folder: Path) -> None:
    """Make sure that there is a directory to write in.

    Raises:
        UsageError: there is nothing of that name, or a file.
    """
    if folder.is_dir():
        return
    if folder.exists():
        raise UsageError(f"{folder} is not a directory", "write to another place")
    raise UsageError(f"directory {folder} does not exist", "create it first")


def shown(given: Any) -> str:
    """A value for a message: as Python writes it, on one line, and no longer than a line has room for."""
    return one_line(repr(given), _MOST)

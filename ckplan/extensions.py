"""What installed packages add to ckplan: entry points of their distributions, loaded when they are first wanted.

A package names what it adds in its ``pyproject.toml``::

    [project.entry-points."ckplan.rules"]
    fancy = "my_package.gradients"
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ckplan.display import one_line
from ckplan.errors import CkplanError, EnvironmentUnavailableError, UsageError


@functools.cache
def load_group(group: str, taken: Callable[[str, Any], Any] | None = None) -> tuple[tuple[str, Any], ...]:
    """Load all entry points of a group, once in a process.

    Args:
        group: what the entry points are of.
        taken: makes what is used of a name and what it stands for, and raises where that is nothing of the group's
            kind; else it is used as it is.

    Returns:
        Names with what they stand for (a module, a class, a function), by name.

    Raises:
        EnvironmentUnavailableError: one cannot be loaded or taken; the message names it and its package.
    """
    points = sorted(entry_points(group=group), key=lambda point: point.name)
    return tuple((point.name, _loaded(point, taken)) for point in points)


def _loaded(point: EntryPoint, taken: Callable[[str, Any], Any] | None) -> Any:
    try:
        found = point.load()
        return found if taken is None else taken(point.name, found)
    except Exception as error:  # it is code of others
        package = point.dist.name if point.dist is not None else "an installed package"
        raise EnvironmentUnavailableError(
            f"`{point.value}`, which {package} registers as `{point.name}` in {point.group}, cannot be loaded "
            f"({type(error).__name__}: {one_line(error)})",
            f"repair or uninstall {package}",
        ) from error


def check_unused(name: str, known: Iterable[str], what: str) -> None:
    """Make sure that what is registered, or comes with a package, has a name of its own.

    Args:
        name: its name.
        known: the names of the others.
        what: what they are, such as ``"meters"``.

    Raises:
        UsageError: one of them has the name.
    """
    if name in known:
        raise UsageError(f"two {what} are called `{name}`", "give one another name, and register each once")


def is_of_others(code: Any) -> bool:
    """Whether a function or a class is none of ckplan's own."""
    return not str(code.__module__).startswith("ckplan.")


def running_of(code: Any, what: str) -> AbstractContextManager[None]:
    """`running` where a function or a class is of others; what ckplan's own raises goes through as it is.

    Args:
        code: what is called in the context.
        what: see `running`.
    """
    return running(what) if is_of_others(code) else nullcontext()


@contextmanager
def running(what: str) -> Iterator[None]:
    """Name code of others where it fails; also a decorator of it.

    Args:
        what: the code, as a message begins with it: "the gradient rule of Fancy 'node'".

    Raises:
        EnvironmentUnavailableError: it fails; errors of ckplan's go through.
    """
    try:
        yield
    except CkplanError:
        raise
    except Exception as error:  # it is code of others
        raise EnvironmentUnavailableError(
            f"{what} fails ({type(error).__name__}: {one_line(error)})",
            "repair it; its traceback (`ckplan ... --debug`) shows where",
        ) from error

"""What installed packages add to ckplan: entry points of their distributions, loaded when they are first wanted.

A package names what it adds in its ``pyproject.toml``::

    [project.entry-points."ckplan.rules"]
    fancy = "my_package.gradients"
"""

from __future__ import annotations

import functools
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from ckplan.display import one_line
from ckplan.errors import EnvironmentUnavailableError


@functools.cache
def load_group(group: str) -> tuple[tuple[str, Any], ...]:
    """Load all entry points of a group, once in a process.

    Returns:
        Names with what they stand for (a module, a class, a function), by name.

    Raises:
        EnvironmentUnavailableError: one cannot be loaded; the message names it and its package.
    """
    return tuple((point.name, _loaded(point)) for point in sorted(entry_points(group=group), key=lambda p: p.name))


def _loaded(point: EntryPoint) -> Any:
    try:
        return point.load()
    except Exception as error:  # it is code of others
        package = point.dist.name if point.dist is not None else "an installed package"
        raise EnvironmentUnavailableError(
            f"`{point.value}`, which {package} registers as `{point.name}` in {point.group}, cannot be loaded "
            f"({type(error).__name__}: {one_line(error)})",
            f"repair or uninstall {package}",
        ) from error

"""Writers: a document in, a format out. A new format is one file here and a line in `FORMATS`, or an entry point."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from ckplan.errors import UsageError
from ckplan.report.document import Document

Writer = Callable[[Document], str]

FORMATS: Mapping[str, str] = {
    "text": "ckplan.report.writers.terminal:text",
    "markdown": "ckplan.report.writers.markdown:markdown",
    "junit": "ckplan.report.writers.junit:junit",
    "github": "ckplan.report.writers.github:github",
}
"""Where the function of each format is, as entry points spell it."""

GROUP = "ckplan.reporters"
"""The group of entry points that packages add formats with: a function from a `Document` to text."""


def writer(kind: str) -> Writer:
    """The writer of a format.

    Args:
        kind: its name: one of `FORMATS`, or of an entry point of the group ``ckplan.reporters``.

    Raises:
        UsageError: there is no such format.
    """
    if kind in FORMATS:
        module, _, function = FORMATS[kind].partition(":")
        found: Writer = getattr(importlib.import_module(module), function)
        return found
    others = entry_points(group=GROUP)
    if kind in others.names:
        loaded: Writer = others[kind].load()
        return loaded
    raise UsageError(f"there is no format `{kind}`", f"choose one of {', '.join([*FORMATS, *sorted(others.names)])}")

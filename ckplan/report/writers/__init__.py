"""Writers: a document in, a format out. A new format is one file here and a line in `FORMATS`, or an entry point."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping

from ckplan.arguments import check_text, shown
from ckplan.errors import UsageError
from ckplan.extensions import check_unused, load_group, running
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


_OTHERS: dict[str, Writer] = {}


def register_reporter(kind: str) -> Callable[[Writer], Writer]:
    """Make a format known by its name; a decorator of the function that writes it.

    Raises:
        UsageError: the name is no string, or another format has it.
    """
    check_text("the name of the format", kind)
    check_unused(kind, (*FORMATS, *_OTHERS), "formats")

    def register(function: Writer) -> Writer:
        _OTHERS[kind] = function
        return function

    return register


def _installed(kind: str, function: Writer) -> Writer:
    check_unused(kind, FORMATS, "formats")
    if not callable(function):
        raise UsageError(f"format `{kind}` is {shown(function)}", "give a function from a `Document` to text")
    return function


def writer(kind: str) -> Writer:
    """The writer of a format.

    Args:
        kind: its name: one of `FORMATS`, one that was registered, or of an entry point of ``ckplan.reporters``.

    Raises:
        UsageError: there is no such format.
        EnvironmentUnavailableError: what an installed package adds cannot be loaded.
    """
    if kind in FORMATS:
        module, _, function = FORMATS[kind].partition(":")
        found: Writer = getattr(importlib.import_module(module), function)
        return found
    others: dict[str, Writer] = {**dict(load_group(GROUP, _installed)), **_OTHERS}
    if kind not in others:
        raise UsageError(f"there is no format `{kind}`", f"choose one of {', '.join([*FORMATS, *sorted(others)])}")

    @running(f"format `{kind}`")
    def written(document: Document) -> str:
        text: object = others[kind](document)
        if not isinstance(text, str):
            raise TypeError(f"it makes {type(text).__name__} and no text")
        return text

    return written

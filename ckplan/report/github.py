"""A comparison as annotations: workflow commands that GitHub Actions reads from a job's log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath
from typing import TYPE_CHECKING

from ckplan.comparison import Level
from ckplan.report.comparison import remedies
from ckplan.report.untrusted import command_data, command_property, printable
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.comparison import Check, Comparison

_SHOWN = 5
_COMMANDS = {Level.WARNED: "warning", Level.FAILED: "error", Level.ERROR: "error"}


def comparison(found: Comparison) -> list[str]:
    """One line for each limit that is not kept, and for each check that could not be made."""
    return [line for check in found.checks for line in _of(found, check)]


def failure(message: str) -> str:
    """The annotation of a comparison that could not be made at all."""
    return f"::error title=ckplan compare::{command_data(printable(message))}"


def _of(found: Comparison, check: Check) -> Iterator[str]:
    if check.error is not None:
        yield _line(Level.ERROR, check, str(check.error))
    for finding in check.findings:
        lines = [finding.message, *_grown(check)]
        if finding.level is Level.FAILED:
            lines += [remedies(found, check)]
        yield _line(finding.level, check, *lines)


def _grown(check: Check) -> Iterator[str]:
    for growth in check.grown[:_SHOWN]:
        more = f"+{format_bytes(growth.change)}{'' if growth.before else ' (new)'}"
        yield f"{more}: '{growth.alive.tensor}', {growth.alive.op_type} '{growth.alive.node}'"
    if len(check.grown) > _SHOWN:
        yield f"and {len(check.grown) - _SHOWN} more"


def _line(level: Level, check: Check, *lines: str) -> str:
    file = command_property(printable(PurePath(check.source).as_posix()))
    title = command_property(printable(f"Memory of {check.name}"))
    message = command_data("\n".join(printable(line) for line in lines if line))
    return f"::{_COMMANDS[level]} file={file},title={title}::{message}"

"""A document as annotations: workflow commands that GitHub Actions reads from a job's log."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import PurePath

from ckplan.report.document import Document, Facts, Section, Table
from ckplan.report.untrusted import command_data, command_property, printable

_SHOWN = 5
_COMMANDS = {"warned": "warning", "failed": "error", "error": "error"}


def github(document: Document) -> str:
    """One line for each fact that is judged and not passed."""
    return "".join(f"{line}\n" for line in annotated(document))


def annotated(document: Document) -> list[str]:
    """One line for each fact that is judged and not passed."""
    return [line for section in document.sections for line in _of(section)]


def failure(message: str) -> str:
    """The annotation of a command that could not be run at all."""
    return f"::error title=ckplan compare::{command_data(printable(message))}"


def _of(section: Section) -> Iterator[str]:
    facts = [fact for block in section.blocks if isinstance(block, Facts) for fact in block.rows]
    rows = [row for block in section.blocks if isinstance(block, Table) and not block.caption for row in block.rows]
    grown = [", ".join(f"'{cell.text}'" if cell.name else cell.text for cell in row.cells) for row in rows]
    more = [f"and {len(grown) - _SHOWN} more"] if len(grown) > _SHOWN else []
    remedies = [fact.text for fact in facts if fact.name == "next"]
    for fact in facts:
        if fact.level in _COMMANDS:
            failed = remedies if fact.level == "failed" else []
            details = [] if fact.level == "error" else [*grown[:_SHOWN], *more]
            yield _line(section, fact.level, fact.text, *details, *failed)


def _line(section: Section, level: str, *lines: str) -> str:
    file = command_property(printable(PurePath(section.source).as_posix()))
    title = command_property(printable(f"Memory of {section.title}"))
    message = command_data("\n".join(printable(line) for line in lines if line))
    return f"::{_COMMANDS[level]} file={file},title={title}::{message}"

"""A document as Markdown, for the summary of a CI job or a comment. Names in it are untrusted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from ckplan.report.document import Block, Cell, Document, Facts, Line, Section, Table
from ckplan.report.untrusted import code
from ckplan.report.untrusted import markdown as escaped

_MARKS = {"passed": "✅ ", "warned": "⚠️ ", "failed": "❌ ", "error": "❌ "}


def markdown(document: Document) -> str:
    """The document; ends in a newline. Charts are left out."""
    return "\n".join(_lines(document)) + "\n"


def _lines(document: Document) -> Iterator[str]:
    if document.title:
        yield f"### {_MARKS.get(document.level, '')}{escaped(document.title)}"
    for section in document.sections:
        if not section.minor:
            yield ""
            yield from _section(section)
    if document.notes:
        yield from ("", "<details><summary>Notes</summary>", "")
        yield from (f"- {escaped(note)}" for note in document.notes)
        yield from ("", "</details>")


def _section(section: Section) -> Iterator[str]:
    if section.title:
        yield f"#### {escaped(section.title)}"
        yield ""
    for number, block in enumerate(section.blocks):
        if number:
            yield ""
        yield from _block(block)


def _block(block: Block) -> Iterator[str]:
    match block:
        case Facts():
            yield from (f"- {escaped(fact.name)}: {escaped(fact.text)}" for fact in block.rows)
        case Line():
            text = block.text.removeprefix("- ")
            yield f"- {escaped(text)}" if text != block.text else escaped(text)
        case Table():
            yield from _table(block)


def _table(table: Table) -> Iterator[str]:
    if table.caption:
        yield escaped(table.caption)
        yield ""
    yield _row(map(escaped, table.columns))
    yield _row("--:" if right else ":--" for right in table.numeric)
    for row in table.rows[: table.top]:
        yield _row(map(_cell, row.cells))
    for text in (table.beyond(table.top), table.more):
        if text:
            yield ""
            yield escaped(text)


def _row(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cell(cell: Cell) -> str:
    return code(cell.text) if cell.name else _MARKS.get(cell.level, "") + escaped(cell.text)

"""A document for people, on 80 columns."""

from __future__ import annotations

import re

from rich import box
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.measure import Measurement
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from ckplan.report.chart import Chart
from ckplan.report.document import Block, Cell, Document, Facts, Line, MemoryChart, Section, Table
from ckplan.report.frontier_chart import Scatter
from ckplan.report.plot import Plot
from ckplan.report.untrusted import printable

_LEVELS = {"passed": "green", "warned": "yellow", "failed": "red", "error": "red", "ok": "green", "missing": "yellow"}
_TERMINAL = 80
"""Letters of a line of a terminal that does not tell."""
_LINE = _TERMINAL - 4
"""Letters of a line of a table; sections are set in by two."""
_SHORTEST, _WIDTH = 12, 34
"""Letters of a name in a table, at least and at most."""
_BREAKS = re.compile(r"(?<=\w\+)(?=[^\W\d]|…)|(?<=\s)(?=\S)")
"""Where a text may go on in the next line: behind a space, and behind a plus between the names of operators."""


def terminal(document: Document) -> Group:
    """The document for a console of rich's; names are shortened, long tables cut."""
    parts: list[RenderableType] = [_headline(document.title)] if document.title else []
    shown = [_section(section) for section in document.sections if not section.minor]
    return Group(*[part for content in (*parts, *shown) for part in ("", content)][1:])


def text(document: Document, console: Console | None = None) -> str:
    """The document as a console shows it, by default one of 80 columns without colours."""
    console = console or Console(width=_TERMINAL, no_color=True, highlight=False, force_terminal=False)
    if console.width < 1:  # COLUMNS=0, as some programs set it: nothing would be shown
        console.width = _TERMINAL
    with console.capture() as captured:
        # In a group, since a text that is printed by itself is wrapped even where it says not to.
        console.print(Group(terminal(document)), crop=False)
    return "\n".join(line.rstrip() for line in captured.get().splitlines()) + "\n"


def ending(name: str, width: int = _WIDTH) -> str:
    """The end of a long name, which tells more than its beginning; JSON has all of it."""
    return name if len(name) <= width else f"…{name[1 - width :]}"


def _text(text: str, style: str = "") -> Text:
    """A text of a stranger's as it may stand in a terminal, in one line; nothing in it is markup of rich's."""
    return Text(printable(text), style)


def _headline(text: str) -> Text:
    """A line that is never folded, so that it can be searched."""
    return Text(printable(text), "bold", no_wrap=True, overflow="ignore")


def _section(section: Section) -> RenderableType:
    parts = [part for block in section.blocks for part in _block(block)]
    if not section.title:
        return Group(*parts)
    return Group(_text(section.title, "bold"), *(Padding(part, (0, 0, 0, 2)) for part in parts))


def _block(block: Block) -> list[RenderableType]:
    match block:
        case Table():
            return _table(block)
        case Facts():
            return [_facts(block)]
        case Line():
            return [_headline(block.text) if block.style == "headline" else _text(block.text, block.style)]
        case MemoryChart():
            return [Chart(block.timeline, expected=block.expected)]
        case Plot():
            return [Scatter(block)]


def _facts(facts: Facts) -> Grid:
    grid = Grid.grid(padding=(0, 2))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for fact in facts.rows:
        grid.add_row(_text(fact.name), _text(fact.text, "bold" if fact.strong else ""))
    return grid


def _table(table: Table) -> list[RenderableType]:
    made = Grid(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    kept = [index for index in range(len(table.columns)) if index not in table.wide]
    width = _name_width(table, kept)
    for index in kept:
        right = table.numeric[index]
        made.add_column(
            _text(table.columns[index]), justify="right" if right else "left", no_wrap=right, overflow="fold"
        )
    for row in table.rows[: table.top]:
        made.add_row(*(_cell(row.cells[index], width) for index in kept), style=row.style)
    said = [text for text in (table.beyond(table.top), table.more) if text]
    return [*([_text(table.caption)] if table.caption else []), made, *map(_text, said)]


def _name_width(table: Table, columns: list[int]) -> int:
    """Letters that names may have so that no row is broken: what the other columns leave."""
    rows = table.rows[: table.top]
    named = {index for index in columns if any(row.cells[index].name for row in rows)}
    texts = {index: [table.columns[index], *(row.cells[index].text for row in rows)] for index in columns}
    others = sum(max(map(len, texts[index])) for index in columns if index not in named)
    left = (_LINE - others - 3 * (len(columns) - 1)) // max(1, len(named))
    return max(_SHORTEST, min(left, _WIDTH))


def _cell(cell: Cell, width: int) -> RenderableType:
    if cell.name:
        return Text(ending(printable(cell.text), width), no_wrap=True)
    shown = _text(cell.text, _LEVELS.get(cell.level, ""))
    return _Broken(shown) if _BREAKS.search(shown.plain) else shown


class _Broken:
    """A text that goes on in the next line where `_BREAKS` says, and only where that is not enough within a word."""

    def __init__(self, text: Text) -> None:
        self.text, self.parts = text, _BREAKS.split(text.plain)

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        longest = max(cell_len(part.rstrip()) for part in self.parts)
        return Measurement(longest, cell_len(self.text.plain)).with_maximum(options.max_width)

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = [""]
        for part in self.parts:
            if lines[-1] and cell_len(lines[-1] + part.rstrip()) > options.max_width:
                lines.append("")
            lines[-1] += part
        yield Text("\n".join(line.rstrip() for line in lines), self.text.style, overflow="fold")

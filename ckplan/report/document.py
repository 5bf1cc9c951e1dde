"""What there is to say, before it is known where: sections of facts, tables, lines and charts.

Every answer becomes a `Document` once; a writer for each format (`ckplan.report.writers`) puts it on a terminal, into
Markdown, into XML. Texts in it are still those of strangers: writers escape them for where they put them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from ckplan.planner import Timeline
from ckplan.report.plot import Plot
from ckplan.units import format_bytes

TOP = 10
"""Rows of a long table that a writer with little room shows."""
ALL = sys.maxsize
"""The same for a table that is shown whole."""

T = TypeVar("T")

Columns: TypeAlias = "Mapping[str, Callable[[T], Cell]]"
"""What makes the cell of a thing, by heading."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it shows.
        order: what the column is sorted by, if it is not the text.
        name: whether the text is a name out of the model.
        level: how it is judged: ``passed``, ``warned``, ``failed`` or ``error``.
    """

    text: str
    order: float | None = None
    name: bool = False
    level: str = ""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        cells: one for each column.
        style: ``bold`` or ``dim``, where it is to stand out or back.
        band: ``chart:band`` of the tensor that it is about, to be shown in a page's chart; empty if there is none.
        mark: ``kept``, ``recomputed`` and the like: the colour of the tensor in a page.
    """

    cells: tuple[Cell, ...]
    style: str = ""
    band: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table.

    Attributes:
        columns: the headings.
        rows: as they stand first.
        caption: what is in it, where its section does not say so.
        rest: what is said in place of the rows that a writer with little room leaves out; by default how many.
        more: what no writer shows as a row, in words.
        sorted_by: the column that it is sorted by, the largest first; -1 for none.
        wide: columns that writers with little room leave out.
        top: rows that those show.
    """

    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    caption: str = ""
    rest: str = ""
    more: str = ""
    sorted_by: int = -1
    wide: frozenset[int] = frozenset()
    top: int = TOP

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column whether it holds figures, and dashes where there is none."""
        columns = [[row.cells[index] for row in self.rows] for index in range(len(self.columns))]
        return tuple(
            any(cell.order is not None for cell in cells)
            and all(cell.order is not None or cell.text in ("", "-", "–") for cell in cells)
            for cells in columns
        )

    def beyond(self, shown: int) -> str:
        """What is said of the rows after those that are shown; empty if there are none."""
        left = len(self.rows) - shown
        return (self.rest or f"and {left:,} more") if left > 0 else ""


@dataclass(frozen=True, slots=True)
class Fact:
    """A name and what there is to say under it.

    Attributes:
        name: the name.
        text: what is said.
        level: how it is judged, if it is; see `Cell`.
        strong: whether it is what matters most.
    """

    name: str
    text: str
    level: str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Facts:
    """Facts that stand under each other."""

    rows: tuple[Fact, ...]


@dataclass(frozen=True, slots=True)
class Line:
    """A sentence.

    Attributes:
        text: what it says.
        style: ``bold``, ``dim`` or nothing; a ``headline`` is one line, however long.
    """

    text: str
    style: str = ""


@dataclass(frozen=True, slots=True)
class MemoryChart:
    """Activations over the steps of a timeline.

    Attributes:
        timeline: what happened.
        expected: what was to happen, step by step.
    """

    timeline: Timeline
    expected: Timeline | None = None


Block: TypeAlias = Table | Facts | Line | MemoryChart | Plot


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it.

    Attributes:
        title: the heading; empty where none is needed.
        blocks: in order.
        level: how what it is about is judged, if it is; see `Cell`.
        source: the file that it is about, where there are several.
        minor: whether a writer with little room leaves it out.
    """

    title: str
    blocks: tuple[Block, ...]
    level: str = ""
    source: str = ""
    minor: bool = False


@dataclass(frozen=True, slots=True)
class Document:
    """An answer.

    Attributes:
        title: the answer in one line; empty if the sections say it all.
        sections: in order.
        notes: what was chosen on the way, a sentence each, where the terminal has told it already.
        level: how it is judged, if it is; see `Cell`.
    """

    title: str
    sections: tuple[Section, ...]
    notes: tuple[str, ...] = ()
    level: str = ""


def joined(*documents: Document) -> Document:
    """Several answers as one; the lines of all but the first become sections."""
    first, *others = documents
    sections = list(first.sections)
    for other in others:
        sections += [Section("", (Line(other.title, "headline"),)), *other.sections]
    notes = tuple(note for document in documents for note in document.notes)
    return Document(first.title, tuple(sections), notes, others[-1].level if others else first.level)


def table_of(items: Sequence[T], columns: Columns[T], marks: Sequence[str] = (), **layout: Any) -> Table:
    """A table of things that are alike, a row each.

    Args:
        items: the things.
        columns: its headings, and what makes the cells below.
        marks: of the rows; see `Row`.
        layout: how it is shown; see `Table`.
    """
    rows = tuple(
        Row(tuple(cell(item) for cell in columns.values()), mark=mark)
        for item, mark in zip(items, marks or [""] * len(items), strict=True)
    )
    return Table(tuple(columns), rows, **layout)


def size(count: int | None, unknown: str = "-") -> Cell:
    """A cell with bytes, or what stands where they are not known."""
    return Cell(unknown) if count is None else Cell(format_bytes(count), count)


def number(value: float, text: str = "") -> Cell:
    """A cell with a figure; by itself it is a count."""
    return Cell(text or f"{value:,}", value)


def name(text: str) -> Cell:
    """A cell with a name out of the model."""
    return Cell(text, None, True)


def share(part: float, whole: float = 1) -> Cell:
    """A cell with a part of a whole, as a percentage; empty where there is no whole."""
    return Cell(percent(part / whole), part / whole) if whole else Cell("")


def shape_cell(shape: Sequence[int] | None) -> Cell:
    """A cell with a shape: ``8x3``."""
    return Cell("?" if shape is None else "x".join(map(str, shape)) or "scalar")


def percent(ratio: float) -> str:
    """``0.256`` as ``25.6 %``."""
    return f"{100 * ratio:.1f} %"


def counted(count: int, noun: str) -> str:
    """``3 nodes``, ``1 node``."""
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def saving(before: int, after: int, ordered: int | None = None, by: str = "order") -> str:
    """``4.0 MiB -> 1.0 MiB (-75.0 %: order -25 %, recompute -50 %)``.

    Args:
        before: bytes without a plan.
        after: bytes with it.
        ordered: bytes in the best order without recomputation, if that is known. What is not above ``before`` and not
            below ``after`` is a part of the saving, told if it is not next to nothing.
        by: what that part is called.
    """
    shares = ""
    if before and ordered is not None:
        between = min(before, max(after, ordered))
        parts = ((by, between - before), ("recompute", after - between))
        if round(100 * (between - before) / before):
            shares = ": " + ", ".join(f"{what} {100 * change / before:+.0f} %" for what, change in parts)
    change = f" ({100 * (after / before - 1):+.1f} %{shares})" if before else ""
    return f"{format_bytes(before)} -> {format_bytes(after)}{change}"


def listed(title: str, sentences: Sequence[str]) -> tuple[Section, ...]:
    """A section of sentences, or none."""
    return (Section(title, tuple(Line(f"- {text}") for text in sentences)),) if sentences else ()

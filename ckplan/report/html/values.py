"""What the template of a page reads: plain values, all text still unescaped."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckplan.units import format_bytes


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its name, and a remark below."""

    label: str
    value: str
    remark: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A cell of a table.

    Attributes:
        text: what it shows.
        order: what the column is sorted by, if it is not the text.
        name: whether the text is a name out of the model.
    """

    text: str
    order: float | None = None
    name: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """A row of a table.

    Attributes:
        cells: one for each column.
        band: ``chart:band`` of the tensor that it is about, to be shown in the chart; empty if there is none.
        mark: ``kept``, ``recomputed`` and the like: the colour of the tensor.
    """

    cells: tuple[Cell, ...]
    band: str = ""
    mark: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """A table that the reader can sort.

    Attributes:
        caption: what is in it.
        columns: the headings.
        rows: as they stand first.
        more: what was left out, in words.
        sorted_by: the column that it is sorted by, the largest first; -1 for none.
    """

    caption: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]
    more: str = ""
    sorted_by: int = -1

    @property
    def numeric(self) -> tuple[bool, ...]:
        """For each column whether it holds figures."""
        return tuple(
            bool(self.rows) and all(row.cells[index].order is not None for row in self.rows)
            for index in range(len(self.columns))
        )


@dataclass(frozen=True, slots=True)
class Chart:
    """A place for a chart; what it shows is in the data of the page.

    Attributes:
        title: what it shows.
        peak: the figure beside the title.
        summary: the same in words, for those who do not see it.
    """

    title: str
    peak: str
    summary: str


@dataclass(frozen=True, slots=True)
class Group:
    """Decisions of the plan on one kind of block.

    Attributes:
        name: its operators.
        count: how often it stands in the model.
        kept: bytes that are kept, as text.
        recomputed: bytes that are made again, as text.
        seconds: extra compute, as text.
        bars: widths of both parts of its bar, out of 100.
        table: its tensors.
    """

    name: str
    count: int
    kept: str
    recomputed: str
    seconds: str
    bars: tuple[float, float]
    table: Table


@dataclass(frozen=True, slots=True)
class Checked:
    """A model of a comparison.

    Attributes:
        name: what it is called.
        facts: what there is to say, as titles and texts.
        tables: the tensors that it is about.
    """

    name: str
    facts: tuple[tuple[str, str], ...]
    tables: tuple[Table, ...]


def size(count: int) -> Cell:
    """A cell with bytes."""
    return Cell(format_bytes(count), count)


def number(value: float, text: str) -> Cell:
    """A cell with a figure."""
    return Cell(text, value)


def name(text: str) -> Cell:
    """A cell with a name out of the model."""
    return Cell(text, None, True)


def shape_cell(shape: Sequence[int] | None) -> Cell:
    """A cell with a shape: ``8 × 3``."""
    if shape is None:
        return Cell("?")
    return Cell(" × ".join(map(str, shape)) or "scalar")

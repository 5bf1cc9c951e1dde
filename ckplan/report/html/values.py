"""What the template of a page reads: plain values, all text still unescaped."""

from __future__ import annotations

from dataclasses import dataclass

from ckplan.report.document import Table


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its name, and a remark below."""

    label: str
    value: str
    remark: str = ""


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
        recomputed: bytes that are recomputed, as text.
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

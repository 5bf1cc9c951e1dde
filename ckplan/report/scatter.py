"""The frontier of peak against overhead in the terminal."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from ckplan.report.plot import Plot, byte_ticks, percent_ticks

_LABEL = 11
_LINE, _MARK, _FAINT = Style(color="cyan"), Style(color="magenta", bold=True), Style(dim=True)
SEVERAL = "+"
"""Stands where the letters of several strategies would."""


@dataclass(frozen=True)
class Scatter:
    """The frontier as a staircase with a dot at each plan, a letter for each strategy, a line at the lower bound."""

    plot: Plot
    height: int = 14

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Draw within the width at hand, in ASCII where the terminal has nothing else."""
        width = min(options.max_width - _LABEL - 2, 100)
        if width < 10:
            return
        dot, level, bound, axis, corner, under = "*-.|++" if options.ascii_only else "●─┄┤└┴"
        plot, cells = self.plot, _Cells(self.plot, width, self.height)
        for column in range(width):
            cells.put(column, cells.row(plot.bound), bound, _FAINT)
        stairs = plot.staircase()
        for (left, peak), (right, _) in zip(stairs[::2], stairs[1::2], strict=True):
            for column in range(cells.column(left), cells.column(right) + 1):
                cells.put(column, cells.row(peak), level, _LINE)
        for overhead, peak in plot.frontier:
            cells.put(cells.column(overhead), cells.row(peak), dot, _LINE)
        seen: set[tuple[int, int]] = set()
        for mark in plot.inside:
            place = cells.column(mark.overhead), cells.row(mark.peak)
            cells.put(*place, SEVERAL if place in seen else mark.letter, _MARK)
            seen.add(place)
        labels = {cells.row(value): text for value, text in byte_ticks(plot.top)}
        for row in range(self.height):
            yield Segment(f"{labels.get(row, ''):>{_LABEL}}{axis}", _FAINT)
            yield from cells.line(row)
            yield Segment.line()
        ticks = [(cells.column(value), text) for value, text in percent_ticks(plot.right)]
        yield Segment(" " * _LABEL + corner, _FAINT)
        marked = {column for column, _ in ticks}
        yield Segment("".join(under if column in marked else level for column in range(width)), _FAINT)
        yield Segment.line()
        line = ""
        for column, text in ticks:
            if column >= len(line) and column + len(text) <= width:
                line = f"{line:<{column}}{text} "
        yield Segment(f"{'':{_LABEL + 1}}{line.rstrip()}", _FAINT)
        yield Segment.line()
        yield Segment(f"{'':{_LABEL + 1}}{'overhead: extra compute'[:width]:>{width}}", _FAINT)
        yield Segment.line()


class _Cells:
    """Characters on a grid; row 0 is the uppermost."""

    def __init__(self, plot: Plot, width: int, height: int) -> None:
        self._plot, self._width, self._height = plot, width, height
        self._content: dict[tuple[int, int], Segment] = {}

    def column(self, overhead: float) -> int:
        return min(max(int(overhead / self._plot.right * (self._width - 1) + 0.5), 0), self._width - 1)

    def row(self, peak: float) -> int:
        return min(max(int((1 - peak / self._plot.top) * (self._height - 1) + 0.5), 0), self._height - 1)

    def put(self, column: int, row: int, text: str, style: Style) -> None:
        self._content[column, row] = Segment(text, style)

    def line(self, row: int) -> list[Segment]:
        return [self._content.get((column, row), Segment(" ")) for column in range(self._width)]

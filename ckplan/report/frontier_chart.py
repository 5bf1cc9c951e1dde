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
        plot = self.plot

        def column(overhead: float) -> int:
            return min(max(int(overhead / plot.right * (width - 1) + 0.5), 0), width - 1)

        def row(peak: float) -> int:  # 0 is the uppermost
            return min(max(int((1 - peak / plot.top) * (self.height - 1) + 0.5), 0), self.height - 1)

        cells = {(across, row(plot.bound)): Segment(bound, _FAINT) for across in range(width)}
        stairs = plot.staircase()
        for (left, peak), (right, _) in zip(stairs[::2], stairs[1::2], strict=True):
            for across in range(column(left), column(right) + 1):
                cells[across, row(peak)] = Segment(level, _LINE)
        for overhead, peak in plot.frontier:
            cells[column(overhead), row(peak)] = Segment(dot, _LINE)
        places = [(column(mark.overhead), row(mark.peak)) for mark in plot.inside]
        for mark, place in zip(plot.inside, places, strict=True):
            cells[place] = Segment(SEVERAL if places.count(place) > 1 else mark.letter, _MARK)
        labels = {row(value): text for value, text in byte_ticks(plot.top)}
        for down in range(self.height):
            yield Segment(f"{labels.get(down, ''):>{_LABEL}}{axis}", _FAINT)
            yield from (cells.get((across, down), Segment(" ")) for across in range(width))
            yield Segment.line()
        ticks = [(column(value), text) for value, text in percent_ticks(plot.right)]
        yield Segment(" " * _LABEL + corner, _FAINT)
        marked = {across for across, _ in ticks}
        yield Segment("".join(under if across in marked else level for across in range(width)), _FAINT)
        yield Segment.line()
        line = ""
        for across, text in ticks:
            if across >= len(line) and across + len(text) <= width:
                line = f"{line:<{across}}{text} "
        yield Segment(f"{'':{_LABEL + 1}}{line.rstrip()}", _FAINT)
        yield Segment.line()
        yield Segment(f"{'':{_LABEL + 1}}{'overhead: extra compute'[:width]:>{width}}", _FAINT)
        yield Segment.line()

"""A timeline as a block chart in the terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from rich.console import Console, ConsoleOptions
from rich.segment import Segment
from rich.style import Style

from ckplan.planner import Moment, Timeline
from ckplan.units import format_bytes

_EIGHTHS = " ▁▂▃▄▅▆▇█"
_ASCII = " ..::||##"
_LABEL = 11
_APART = 3
"""Eighths of a row by which two levels differ visibly."""
LINE = "╌"
"""How an expected level is marked."""
_FORWARD, _BACKWARD, _FAINT = Style(color="cyan"), Style(color="magenta"), Style(dim=True)
_EXPECTED = Style(color="yellow", bold=True)


@dataclass(frozen=True)
class Chart:
    """The activations of a timeline over its steps: forward, backward, and where the peak is.

    Each column shows the largest step of its stretch, so that the peak is always seen.

    Attributes:
        timeline: what is drawn in blocks.
        height: rows.
        expected: a timeline of as many steps, drawn as a line where it is visibly apart.
    """

    timeline: Timeline
    height: int = 8
    expected: Timeline | None = None

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Segment]:
        """Draw within the width at hand, in ASCII where the terminal has nothing else."""
        steps = self.timeline.steps
        width = min(options.max_width - _LABEL - 2, 100, len(steps))
        if width < 1:
            return
        peak = max(self.timeline.peak_activations, self.expected.peak_activations if self.expected else 0)
        levels = columns([step.activations for step in steps], width)
        turn = column_of(backward_pass(steps), len(steps), width)
        blocks, axis, marker, dash = (_ASCII, "|", "^", "-") if options.ascii_only else (_EIGHTHS, "┤", "▲", LINE)
        lines = self._lines(levels, width, peak)
        for row in reversed(range(self.height)):
            scale = format_bytes(peak) if row == self.height - 1 else "0 B" if row == 0 else ""
            yield Segment(f"{scale:>{_LABEL}}{axis}", _FAINT)
            cells = [blocks[eighths(level, peak, self.height, row)] for level in levels]
            marked = [line == row for line in lines]
            for start, end, style in ((0, turn, _FORWARD), (turn, width, _BACKWARD)):
                for is_line, run in groupby(range(start, end), marked.__getitem__):
                    text = "".join(dash if is_line else cells[column] for column in run)
                    yield Segment(text, _EXPECTED if is_line else style)
            yield Segment.line()
        place = column_of(self.timeline.peak_step, len(steps), width)
        where = f"peak at step {self.timeline.peak_step + 1} of {len(steps)}"
        if place + len(where) + 2 <= options.max_width - _LABEL - 1:
            caption = f"{' ' * place}{marker} {where}"
        else:
            caption = f"{where} {marker}".rjust(place + 1)
        yield Segment(" " * (_LABEL + 1) + caption)
        yield Segment.line()
        yield Segment(" " * (_LABEL + 1))
        yield Segment(label("forward", turn), _FORWARD)
        yield Segment(label("backward", width - turn), _BACKWARD)
        yield Segment.line()

    def _lines(self, levels: Sequence[int], width: int, peak: int) -> list[int]:
        """For each column the row in which the expected level is marked, -1 where it needs no mark."""
        if self.expected is None:
            return [-1] * width
        rows = []
        for measured, expected in zip(
            levels, columns([s.activations for s in self.expected.steps], width), strict=True
        ):
            heights = [-(-level * self.height * 8 // peak) if peak else 0 for level in (measured, expected)]
            rows.append(max(heights[1] - 1, 0) // 8 if abs(heights[0] - heights[1]) >= _APART else -1)
        return rows


def label(text: str, width: int) -> str:
    """The text in its place, or blank if the place is too small."""
    return f"{text if len(text) < width else '':<{width}}"


def columns(values: Sequence[int], width: int) -> list[int]:
    """The largest value of each of ``width`` stretches of about equal length."""
    count = len(values)
    return [max(values[column * count // width : (column + 1) * count // width]) for column in range(width)]


def backward_pass(steps: Sequence[Moment]) -> int:
    """Where the backward pass begins: at the start of the longest stretch without new forward ops.

    onnxruntime may run single backward ops early and single forward ops late.
    """
    start, longest, best = 0, 0, len(steps)
    for index, step in enumerate(steps):
        if not (step.backward or step.recomputed):
            start = index + 1
        elif index + 1 - start > longest:
            longest, best = index + 1 - start, start
    return best


def column_of(index: int, count: int, width: int) -> int:
    """The stretch of `columns` that the value at ``index`` falls into."""
    return ((index + 1) * width - 1) // count


def eighths(level: int, peak: int, height: int, row: int) -> int:
    """How many eighths of a character cell in a row (0 at the bottom) a level fills."""
    filled = -(-level * height * 8 // peak) if peak else 0
    return min(max(filled - 8 * row, 0), 8)

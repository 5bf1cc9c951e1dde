"""The frontier of peak against overhead as SVG: one file without outside resources, for light and dark pages."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING
from xml.sax.saxutils import escape

from ckplan.report.plot import Mark, Plot, byte_ticks, percent_ticks, plot_of
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.answers.pareto import Pareto

_WIDTH, _HEIGHT = 940, 460
_LEFT, _TOP, _RIGHT, _BOTTOM = 92, 48, 600, 396
_MARGIN = 20
"""Pixels between the left axis and no overhead: room for half a marker."""
_NEAR = 13.0
"""Markers whose centres are nearer than this many pixels share one."""
_KEY = 17
"""Pixels from one line of the key to the next."""

_COMMON = """
text { font: 12px system-ui, sans-serif; fill: #1b1f24; }
text.title { font-size: 16px; font-weight: 600; }
text.faint { fill: #6b7280; }
.end { text-anchor: end; }
.middle { text-anchor: middle; }
.ground { fill: #fff; }
.grid { stroke: #e5e7eb; }
@media (prefers-color-scheme: dark) {
  text { fill: #e6e8eb; }
  text.faint { fill: #9aa2ad; }
  .ground { fill: #16181d; }
  .grid { stroke: #2b3038; }
}
"""
_STYLE = """
text.title { font-size: 15px; }
text.letter { fill: #a21caf; font-weight: 600; text-anchor: middle; }
.level { stroke: #6b7280; stroke-dasharray: 5 4; }
.frontier { stroke: #0e7490; stroke-width: 2; fill: none; }
.point { fill: #0e7490; }
.mark { fill: #fff; stroke: #a21caf; stroke-width: 1.5; }
@media (prefers-color-scheme: dark) {
  text.letter { fill: #f0abfc; }
  .level { stroke: #9aa2ad; }
  .frontier { stroke: #22d3ee; }
  .point { fill: #22d3ee; }
  .mark { fill: #16181d; stroke: #f0abfc; }
}
"""


def pareto(found: Pareto, title: str) -> str:
    """The picture as the text of an SVG file.

    Args:
        found: the frontier and the strategies' plans.
        title: what stands above it.
    """
    plot = plot_of(found)
    return picture(title, (_WIDTH, _height(plot)), _LEFT, _STYLE, _marks(plot))


def drawing(found: Pareto) -> str:
    """The picture as an element of a page, which has the styles for it and says what it is."""
    plot = plot_of(found)
    start = f'<svg viewBox="0 {_TOP - 16} {_WIDTH} {_height(plot) - _TOP + 16}" class="pareto">'
    return "\n".join((start, *_marks(plot), "</svg>"))


def _height(plot: Plot) -> int:
    return max(_HEIGHT, _TOP + _KEY * (len(plot.marks) + 4))


def picture(title: str, size: tuple[int, int], left: int, style: str, drawn: Iterable[str], about: str = "") -> str:
    """A whole file.

    Args:
        title: what stands above the picture.
        size: its width and height, in pixels.
        left: where the title begins.
        style: rules of its own.
        drawn: its elements.
        about: what is to be said of it to those who do not see it.
    """
    width, height = size
    box = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" {box}>',
        f"<title>{xml_text(title)}</title>",
        *([f"<desc>{xml_text(about)}</desc>"] if about else []),
        f"<style>{_COMMON}{style}</style>",
        f'<rect class="ground" width="{width}" height="{height}"/>',
        f'<text class="title" x="{left}" y="28">{xml_text(title)}</text>',
    )
    return "\n".join((*head, *drawn, "</svg>")) + "\n"


def byte_axis(top: int, count: int, ends: tuple[int, int], y: Callable[[float], float]) -> Iterator[str]:
    """Lines across at round sizes, with their labels.

    Args:
        top: bytes at the upper end.
        count: about how many lines there are to be.
        ends: where they begin and end, in pixels.
        y: from bytes to pixels.
    """
    left, right = ends
    for value, label in byte_ticks(top, count):
        yield f'<line class="grid" x1="{left}" y1="{y(value)}" x2="{right}" y2="{y(value)}"/>'
        yield f'<text class="faint end" x="{left - 8}" y="{y(value) + 4}">{label}</text>'


def _marks(plot: Plot) -> Iterator[str]:
    """Axes, lines, points and their key."""

    def x(overhead: float) -> float:
        return round(_LEFT + _MARGIN + (_RIGHT - _LEFT - _MARGIN) * overhead / plot.right, 1)

    def y(peak: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * peak / plot.top, 1)

    yield from byte_axis(plot.top, 5, (_LEFT, _RIGHT), y)
    for value, label in percent_ticks(plot.right):
        yield f'<line class="grid" x1="{x(value)}" y1="{_TOP}" x2="{x(value)}" y2="{_BOTTOM}"/>'
        yield f'<text class="faint middle" x="{x(value)}" y="{_BOTTOM + 18}">{label}</text>'
    middle = (_TOP + _BOTTOM) / 2
    yield f'<text class="middle" transform="translate(18 {middle}) rotate(-90)">peak of activations (bytes)</text>'
    yield (
        f'<text class="middle" x="{(_LEFT + _RIGHT) / 2}" y="{_BOTTOM + 40}">'
        "overhead: extra compute (% of the step)</text>"
    )
    for label, peak, below in (("without a plan", plot.base, -5), ("lower bound", plot.bound, 14)):
        yield f'<line class="level" x1="{_LEFT}" y1="{y(peak)}" x2="{_RIGHT}" y2="{y(peak)}"/>'
        yield f'<text class="faint end" x="{_RIGHT - 4}" y="{y(peak) + below}">{label}: {format_bytes(peak)}</text>'
    corners = " ".join(f"{x(overhead)},{y(peak)}" for overhead, peak in plot.staircase())
    yield f'<polyline class="frontier" points="{corners}"/>'
    for overhead, peak in plot.frontier:
        yield (
            f'<circle class="point" cx="{x(overhead)}" cy="{y(peak)}" r="3.5">'
            f"<title>{format_bytes(peak)} at {_percent(overhead)}</title></circle>"
        )
    for marks in _heaps([(mark, x(mark.overhead), y(mark.peak)) for mark in plot.inside]):
        _, across, down = marks[0]
        letters = ",".join(mark.letter for mark, _, _ in marks)
        half = 8 + 4.5 * (len(marks) - 1) * 1.1
        named = "; ".join(_described(mark) for mark, _, _ in marks)
        yield f"<g><title>{xml_text(named)}</title>"
        box = f'x="{across - half:.1f}" y="{down - 8:.1f}" width="{2 * half:.1f}" height="16" rx="8"'
        yield f'<rect class="mark" {box}/><text class="letter" x="{across}" y="{down + 4:.1f}">{letters}</text></g>'
    yield from _key(plot.marks, {mark.letter for mark in plot.inside})


def _heaps(placed: list[tuple[Mark, float, float]]) -> list[list[tuple[Mark, float, float]]]:
    """Marks that would cover each other, together; the first one gives the place."""
    heaps: list[list[tuple[Mark, float, float]]] = []
    for entry in placed:
        for heap in heaps:
            if abs(heap[0][1] - entry[1]) < _NEAR and abs(heap[0][2] - entry[2]) < _NEAR:
                heap.append(entry)
                break
        else:
            heaps.append([entry])
    return heaps


def _key(marks: tuple[Mark, ...], inside: set[str]) -> Iterator[str]:
    """The names of the marks, beside the picture."""
    left, down = _RIGHT + 28, _TOP + 6
    yield f'<circle class="point" cx="{left}" cy="{down - 4}" r="3.5"/>'
    yield f'<text x="{left + 14}" y="{down}">frontier: the best found</text>'
    for number, mark in enumerate(marks, 1):
        line = down + number * _KEY
        beyond = "" if mark.letter in inside else " (beyond)"
        yield f'<text class="letter" x="{left}" y="{line}">{mark.letter}</text>'
        yield f'<text x="{left + 14}" y="{line}">{xml_text(_described(mark, 20) + beyond)}</text>'


def _described(mark: Mark, width: int = 80) -> str:
    name = mark.strategy if len(mark.strategy) <= width else f"{mark.strategy[: width - 1]}…"
    return f"{name}: {format_bytes(mark.peak)} at {_percent(mark.overhead)}"


def _percent(overhead: float) -> str:
    return f"{100 * overhead:+.1f} %"


def xml_text(text: str) -> str:
    """Text as it may stand in XML: escaped, and without the control characters that XML does not know."""
    return escape("".join(letter if letter.isprintable() else "�" for letter in text))

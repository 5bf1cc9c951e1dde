"""Memory over a step as SVG, several runs of it over each other: one file, for light and dark pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ckplan.report.chart import columns
from ckplan.report.svg import byte_axis, picture, xml_text
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.planner import Timeline

_WIDTH, _HEIGHT = 940, 348
_LEFT, _TOP, _RIGHT, _BOTTOM = 84, 52, 920, 300
_COLUMNS = 380
"""The most points that a line has."""
_RUG = 8
"""Pixels that the marks of recomputed ops are high."""

_STYLE = """
text { font-size: 13px; }
.area { fill-opacity: 0.22; }
.area.curve1 { fill-opacity: 0.45; }
.line { fill: none; stroke-width: 1.6; }
.area.curve0 { fill: #9aa2ad; }
.line.curve0 { stroke: #9aa2ad; }
.area.curve1 { fill: #0e7490; }
.line.curve1 { stroke: #0e7490; }
text.curve0 { fill: #57606a; font-weight: 600; }
text.curve1 { fill: #0e7490; font-weight: 600; }
.rug { stroke: #a21caf; stroke-width: 1.2; }
@media (prefers-color-scheme: dark) {
  .area.curve0 { fill: #8b949e; }
  .line.curve0 { stroke: #8b949e; }
  .area.curve1 { fill: #22d3ee; }
  .line.curve1 { stroke: #22d3ee; }
  text.curve0 { fill: #b1bac4; }
  text.curve1 { fill: #22d3ee; }
  .rug { stroke: #f0abfc; }
}
"""


@dataclass(frozen=True)
class Curve:
    """A run of the step.

    Attributes:
        label: what stands at its peak, before the bytes.
        timeline: memory over the run's ops.
    """

    label: str
    timeline: Timeline


def curves(drawn: Sequence[Curve], title: str) -> str:
    """Activations over the ops of each run, from its first to its last, as the text of an SVG file.

    Each point is the largest value of its stretch, so that every peak is seen. Under the picture stands where
    ops of the last run are recomputed.

    Args:
        drawn: the runs, at most two; the later ones lie on top.
        title: what stands above them.
    """
    peaks = "; ".join(f"{curve.label}: {curve.timeline.peak_activations} bytes" for curve in drawn)
    return picture(title, (_WIDTH, _HEIGHT), _LEFT, _STYLE, _elements(drawn), f"Peaks. {peaks}")


def _elements(drawn: Sequence[Curve]) -> Iterator[str]:
    top = max(max((curve.timeline.peak_activations for curve in drawn), default=0) * 1.12, 1)

    def y(activations: float) -> float:
        return round(_BOTTOM - (_BOTTOM - _TOP) * activations / top, 1)

    yield from byte_axis(int(top), 4, (_LEFT, _RIGHT), y)
    for number, curve in enumerate(drawn):
        colour = f"curve{number}"
        points = _points(curve.timeline)
        path = " ".join(f"{x},{y(value)}" for x, value in points)
        yield f'<polygon class="area {colour}" points="{_LEFT},{_BOTTOM} {path} {_RIGHT},{_BOTTOM}"/>'
        yield f'<polyline class="line {colour}" points="{path}"/>'
    for number, curve in enumerate(drawn):  # the label over each peak, moved to where it fits
        peak, place = curve.timeline.peak_activations, _across(curve.timeline, curve.timeline.peak_step)
        at = f'x="{min(max(place, _LEFT + 150), _RIGHT - 150):.1f}" y="{y(peak) - 8:.1f}"'
        label = xml_text(f"{curve.label}: {format_bytes(peak)}")
        yield f'<text class="curve{number} middle" {at}>{label}</text>'
    yield f'<text class="faint" x="{_LEFT}" y="{_BOTTOM + 34}">first node</text>'
    yield f'<text class="faint end" x="{_RIGHT}" y="{_BOTTOM + 34}">last node of the step</text>'
    if drawn:
        yield from _rug(drawn[-1].timeline)


def _points(timeline: Timeline) -> list[tuple[float, int]]:
    """Where the line runs: pixels to the right, bytes."""
    values = [step.activations for step in timeline.steps]
    heights = columns(values, min(len(values), _COLUMNS)) if values else [0]
    width = (_RIGHT - _LEFT) / max(len(heights) - 1, 1)
    return [(round(_LEFT + index * width, 1), value) for index, value in enumerate(heights)]


def _across(timeline: Timeline, step: int) -> float:
    """Where a step is, in pixels."""
    return _LEFT + (_RIGHT - _LEFT) * step / max(len(timeline.steps) - 1, 1)


def _rug(timeline: Timeline) -> Iterator[str]:
    """A mark under the picture for each op that is run again."""
    across = [_across(timeline, index) for index, step in enumerate(timeline.steps) if step.recomputed]
    if not across:
        return
    middle = (_LEFT + _RIGHT) / 2
    key = f"M{middle - 80},{_BOTTOM + 26}v{_RUG}"
    marks = "".join(f"M{x:.1f},{_BOTTOM + 4}v{_RUG}" for x in across)
    yield f'<path class="rug" d="{marks}{key}"/>'
    yield f'<text class="faint" x="{middle - 70}" y="{_BOTTOM + 34}">a node is run again ({len(across)} are)</text>'

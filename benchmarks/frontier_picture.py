"""The picture of `benchmarks.frontier`: memory against time, a panel for each network, torch eager at (1, 1)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ckplan.report.svg import picture, xml_text

_ACROSS = 5
"""Panels in a row."""
_PANEL, _GAP, _LEFT, _TOP = 138, 46, 60, 66
_MOST_TIME, _MOST_MEMORY = 1.75, 1.4
"""Ratios at the right and the upper edge; what is beyond is drawn there."""
_TITLE = "A training step beside torch eager (1, 1): heap upwards, processor time to the right"
_STYLE = """
text.small { font-size: 11px; }
.eager { fill: #b45309; }
.own { fill: none; stroke: #b45309; stroke-width: 2; }
.line { stroke: #0e7490; stroke-width: 2; fill: none; }
.point { fill: #0e7490; }
@media (prefers-color-scheme: dark) {
  .eager { fill: #fbbf24; }
  .own { stroke: #fbbf24; }
  .line { stroke: #22d3ee; }
  .point { fill: #22d3ee; }
}
"""

Panel = Mapping[str, tuple[float, float]]
"""Time and memory of each side, as ratios to torch eager."""


def draw(panels: Mapping[str, Panel], eager: str, own: str) -> str:
    """The text of an SVG file.

    Args:
        panels: by network.
        eager: the side that all others are ratios to.
        own: torch's checkpoints.
    """
    down = -(-len(panels) // _ACROSS)
    size = (_LEFT + _ACROSS * (_PANEL + _GAP), _TOP + down * (_PANEL + _GAP + 12) + 10)
    parts = [part for number, entry in enumerate(panels.items()) for part in _panel(number, *entry, eager, own)]
    return picture(_TITLE, size, 20, _STYLE, [*parts, *_key(size[1] - 14)], _told(panels, eager))


def _panel(number: int, name: str, sides: Panel, eager: str, own: str) -> Iterator[str]:
    left, top = _LEFT + number % _ACROSS * (_PANEL + _GAP), _TOP + number // _ACROSS * (_PANEL + _GAP + 12)

    def x(seconds: float) -> float:
        return round(left + _PANEL * min(seconds, _MOST_TIME) / _MOST_TIME, 1)

    def y(heap: float) -> float:
        return round(top + _PANEL * (1 - min(heap, _MOST_MEMORY) / _MOST_MEMORY), 1)

    yield f'<text x="{left}" y="{top - 8}">{xml_text(name)}</text>'
    for tick in (0.0, 0.5, 1.0, 1.5):
        yield f'<line class="grid" x1="{x(tick)}" y1="{top}" x2="{x(tick)}" y2="{top + _PANEL}"/>'
        yield f'<text class="faint small middle" x="{x(tick)}" y="{top + _PANEL + 15}">{tick:g}</text>'
        if tick <= _MOST_MEMORY:
            yield f'<line class="grid" x1="{left}" y1="{y(tick)}" x2="{left + _PANEL}" y2="{y(tick)}"/>'
            yield f'<text class="faint small end" x="{left - 5}" y="{y(tick) + 4}">{tick:g}</text>'
    planned = sorted((place for side, place in sides.items() if side not in (eager, own)), key=lambda place: -place[1])
    corners = " ".join(f"{x(seconds)},{y(heap)}" for seconds, heap in planned)
    yield f'<polyline class="line" points="{corners}"/>'
    for seconds, heap in planned:
        yield f'<circle class="point" cx="{x(seconds)}" cy="{y(heap)}" r="3"/>'
    yield f'<circle class="eager" cx="{x(1)}" cy="{y(1)}" r="4.5"/>'
    if own in sides:
        seconds, heap = sides[own]
        yield f'<circle class="own" cx="{x(seconds)}" cy="{y(heap)}" r="4"/>'


def _key(down: int) -> Iterator[str]:
    for left, mark, text in (
        (_LEFT, "eager", "torch eager"),
        (_LEFT + 120, "own", "torch, a checkpoint at every block"),
        (_LEFT + 370, "point", "ckplan: without a plan, within budgets, least memory"),
    ):
        yield f'<circle class="{mark}" cx="{left}" cy="{down - 4}" r="4"/>'
        yield f'<text x="{left + 12}" y="{down}">{text}</text>'


def _told(panels: Mapping[str, Panel], eager: str) -> str:
    """What the picture says, in words."""
    told = []
    for name, sides in panels.items():
        seconds, heap = min((place for side, place in sides.items() if side != eager), key=lambda place: place[1])
        told.append(f"{name}: {heap:.2f} of the memory at {seconds:.2f} of the time")
    return "; ".join(told)

"""The picture of `benchmarks.planner_rivals`: peak against overhead, a panel for each network, as SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 260, 50, 40, 60
MOST = 0.4
"""Overhead at the right edge; what is beyond is drawn there."""
COLOURS = ("#d62728", "#ff7f0e", "#9467bd", "#8c564b", "#2ca02c", "#17becf", "#e377c2", "#7f7f7f", "#bcbd22", "#000000")

Panel = tuple[Sequence[tuple[str, float, float]], Sequence[tuple[float, float]]]


def draw(panels: Mapping[str, Panel]) -> str:
    """Points of rivals (name, peak, overhead) and the line of our own plans (peak, overhead), by network."""
    names = list(dict.fromkeys(name for rivals, _ in panels.values() for name, _, _ in rivals))
    colour = dict(zip(names, COLOURS * len(names), strict=False))
    full = LEFT + len(panels) * (WIDTH + GAP)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{full}" height="{TOP + HEIGHT + 70 + 16 * len(names)}" '
        'font-family="sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
    ]
    for number, (network, (rivals, line)) in enumerate(panels.items()):
        left = LEFT + number * (WIDTH + GAP)

        def place(peak: float, overhead: float, left: int = left) -> tuple[str, str]:
            across = left + WIDTH * min(overhead, MOST) / MOST
            return f"{across:.1f}", f"{TOP + HEIGHT * (1 - min(peak, 1.0)):.1f}"

        parts.append(f'<text x="{left}" y="{TOP - 14}" font-weight="bold">{network}</text>')
        for tick in range(5):
            x, bottom = place(0.0, MOST * tick / 4)
            _, y = place(tick / 4, 0.0)
            parts += [
                f'<line x1="{x}" y1="{TOP}" x2="{x}" y2="{bottom}" stroke="#ddd"/>',
                f'<line x1="{left}" y1="{y}" x2="{left + WIDTH}" y2="{y}" stroke="#ddd"/>',
                f'<text x="{x}" y="{TOP + HEIGHT + 16}" text-anchor="middle">{100 * MOST * tick / 4:.0f} %</text>',
                f'<text x="{left - 6}" y="{y}" text-anchor="end">{tick / 4:.2f}</text>',
            ]
        path = " ".join(",".join(place(peak, overhead)) for peak, overhead in _frontier(line))
        parts.append(f'<polyline points="{path}" fill="none" stroke="#1f77b4" stroke-width="2"/>')
        for name, peak, overhead in rivals:
            x, y = place(peak, overhead)
            parts.append(f'<circle cx="{x}" cy="{y}" r="5" fill="{colour[name]}"/>')
    y_text = TOP + HEIGHT + 40
    parts.append(
        f'<text x="{LEFT}" y="{y_text}">peak of activations (up) against repeated time (right); line: ckplan</text>'
    )
    for row, name in enumerate(names, start=1):
        parts.append(f'<circle cx="{LEFT + 6}" cy="{y_text + 16 * row - 4}" r="5" fill="{colour[name]}"/>')
        parts.append(f'<text x="{LEFT + 18}" y="{y_text + 16 * row}">{name}</text>')
    return "\n".join([*parts, "</svg>", ""])


def _frontier(line: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """Those points that no other beats, the highest peak first."""
    left: list[tuple[float, float]] = []
    for peak, overhead in sorted(line, key=lambda point: (point[1], point[0])):
        if not left or peak < left[-1][0]:
            left.append((peak, overhead))
    return left

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from ckplan.planner import Moment, Timeline
from ckplan.report.chart import Chart, columns, eighths


def timeline(*activations: int) -> Timeline:
    """A step per figure; the second half is the backward pass."""
    half = len(activations) / 2
    return Timeline(tuple(Moment(f"op{i}", bytes_, bytes_, backward=i >= half) for i, bytes_ in enumerate(activations)))


def drawn(chart: Chart, width: int = 80, encoding: str = "utf-8") -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None)
    options = replace(console.options, encoding=encoding)
    return "".join(segment.text for segment in chart.__rich_console__(console, options)).splitlines()


def test_a_ramp_is_drawn_as_a_ramp() -> None:
    chart = Chart(timeline(*(1024 * level for level in range(1, 25))), height=3)
    assert drawn(chart) == [
        "   24.0 KiB┤                ▁▂▃▄▅▆▇█",
        "           ┤        ▁▂▃▄▅▆▇█████████",
        "        0 B┤▁▂▃▄▅▆▇█████████████████",
        "                                   ▲ peak at step 24 of 24",
        "            forward     backward    ",
    ]


def test_the_peak_survives_downsampling() -> None:
    activations = [1] * 1000
    activations[777] = 8000
    lines = drawn(Chart(timeline(*activations)))
    assert "█" in lines[0]
    assert "peak at step 778 of 1000" in lines[8]


@pytest.mark.parametrize("peak", [0, 3, 500, 998, 999])
@pytest.mark.parametrize("width", [50, 80, 200])
def test_the_chart_stays_within_its_width(peak: int, width: int) -> None:
    activations = [1] * 1000
    activations[peak] = 10
    lines = drawn(Chart(timeline(*activations)), width)
    assert max(map(len, lines)) <= width


@pytest.mark.parametrize("steps", [1, 60, 67, 68, 100, 997])
def test_the_marker_stands_under_the_peak(steps: int) -> None:
    for peak in range(steps):
        activations = [1] * steps
        activations[peak] = 80
        lines = drawn(Chart(timeline(*activations)))
        assert lines[8].index("▲") == lines[0].index("█"), peak


def test_ascii_terminals_get_ascii() -> None:
    text = "\n".join(drawn(Chart(timeline(1, 2, 3, 4)), encoding="ascii"))
    assert text.isascii()
    assert "#" in text
    assert "^" in text


def test_nothing_is_drawn_of_nothing() -> None:
    assert drawn(Chart(Timeline(()))) == []


def test_a_step_without_activations_is_flat() -> None:
    lines = drawn(Chart(timeline(0, 0), height=2))
    assert not {"█", "▁"} & set("".join(lines))


@given(st.lists(st.integers(0, 10**9), min_size=1, max_size=300), st.integers(1, 300))
def test_columns_cover_every_step(values: list[int], width: int) -> None:
    width = min(width, len(values))
    found = columns(values, width)
    assert len(found) == width
    assert max(found) == max(values)
    assert set(found) <= set(values)


@given(st.integers(0, 10**9), st.integers(1, 10**9), st.integers(1, 20))
def test_a_column_is_as_high_as_its_level(level: int, peak: int, height: int) -> None:
    level = min(level, peak)
    filled = sum(eighths(level, peak, height, row) for row in range(height))
    assert filled / 8 == pytest.approx(level / peak * height, abs=1 / 8)


def test_what_was_expected_is_drawn_where_it_is_visibly_apart() -> None:
    measured, expected = timeline(8, 8, 8, 8), timeline(8, 4, 6, 8)
    assert drawn(Chart(measured, height=4, expected=expected))[:4] == [
        "        8 B┤████",
        "           ┤██╌█",
        "           ┤█╌██",
        "        0 B┤████",
    ]
    assert drawn(Chart(measured, expected=measured)) == drawn(Chart(measured))
    assert "-" in "".join(drawn(Chart(measured, expected=expected), encoding="ascii"))


def test_the_scale_has_room_for_what_was_expected() -> None:
    lines = drawn(Chart(timeline(4, 4), height=2, expected=timeline(8, 4)))
    assert lines[:2] == ["        8 B┤╌ ", "        0 B┤██"]

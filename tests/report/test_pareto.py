"""The frontier as tables, as a picture in the terminal, and as SVG."""

from __future__ import annotations

import re
from dataclasses import replace
from io import StringIO
from typing import Any
from xml.etree import ElementTree

import pytest
from rich.console import Console

from ckplan.answers.analysis import Offer
from ckplan.answers.pareto import Pareto
from ckplan.planner import Kind, Op, Plan, Problem, Tensor, make_plan
from ckplan.report import svg
from ckplan.report.documents.plans import pareto as reported
from ckplan.report.frontier_chart import Scatter
from ckplan.report.plot import Plot, byte_ticks, percent_ticks, plot_of
from tests.report.examples import KIB, printed, timeline

PROBLEM = Problem((Op("op", (0,), (1,)),), (Tensor("x", 4, Kind.INPUT), Tensor("y", 8 * KIB)))
SVG = "{http://www.w3.org/2000/svg}"


def plan(strategy: str, kib: int, overhead: float) -> Plan:
    made = make_plan(PROBLEM, strategy, [0])
    return replace(made, predicted=timeline(1, kib), cost=1 + overhead, base_cost=1.0)


def pareto(*offers: Offer, **changes: Any) -> Pareto:
    points = (plan("none", 40, 0.0), plan("frontier", 20, 0.1), plan("memory", 10, 0.3))
    found: dict[str, Any] = {
        "base": timeline(1, 50),
        "points": points,
        "knee": 1,
        "offers": offers or (Offer("none", points[0]), Offer("memory", points[2]), Offer("list", None, "no tensors")),
        "lower_bound": 8 * KIB,
        "interrupted": False,
    }
    return Pareto(**(found | changes))


def drawn(plot: Plot, width: int = 80, encoding: str = "utf-8") -> list[str]:
    console = Console(file=StringIO(), width=width, color_system=None)
    options = replace(console.options, encoding=encoding)
    return "".join(segment.text for segment in Scatter(plot).__rich_console__(console, options)).splitlines()


def test_tables_name_every_point_and_every_strategy() -> None:
    text = printed(reported("model.onnx", pareto()))
    assert "50.0 KiB of activations without a plan; no plan can go below 8.0 KiB" in text
    assert re.search(r"20\.0 KiB +60\.0 % +10\.0 % +0 +frontier +knee", text)
    assert re.search(r"b +memory +10\.0 KiB +80\.0 % +30\.0 % +-", text)
    assert "list: no tensors" in text


def test_a_strategy_is_held_against_the_frontier() -> None:
    text = printed(reported("model.onnx", pareto(Offer("sqrt", plan("sqrt", 15, 0.5)))))
    assert re.search(r"a +sqrt +15\.0 KiB +70\.0 % +50\.0 % +20\.0 %", text)


def test_the_terminal_shows_the_staircase_and_the_letters() -> None:
    lines = drawn(plot_of(pareto(lower_bound=2 * KIB)))
    text = "\n".join(lines)
    rows = {mark: next(i for i, line in enumerate(lines) if mark in line[12:]) for mark in ("a", "●", "b", "┄")}
    assert rows["a"] < rows["●"] < rows["b"] < rows["┄"]
    columns = {mark: min(line.index(mark, 12) for line in lines[:14] if mark in line[12:]) for mark in ("a", "●", "b")}
    assert columns["a"] < columns["●"] < columns["b"]
    assert "40 KiB┤" in text
    assert "10 %" in text


@pytest.mark.parametrize("width", [30, 50, 80, 200])
@pytest.mark.parametrize("kib", [1, 39, 10**6])
def test_the_picture_stays_within_its_width(width: int, kib: int) -> None:
    found = pareto(Offer("far", plan("far", kib, 9.0)), Offer("near", plan("near", kib, 0.05)))
    assert max(map(len, drawn(plot_of(found), width))) <= width


def test_ascii_terminals_get_ascii() -> None:
    text = "\n".join(drawn(plot_of(pareto()), encoding="ascii"))
    assert text.isascii()
    assert "*" in text


def test_strategies_at_one_place_are_told_from_one() -> None:
    found = pareto(Offer("sqrt", plan("sqrt", 15, 0.2)), Offer("chen", plan("chen", 15, 0.2)))
    assert any("+" in line[12:] for line in drawn(plot_of(found))[:14])


def test_a_graph_without_room_for_plans_has_a_picture() -> None:
    only = plan("none", 0, 0.0)
    found = pareto(Offer("none", only), points=(only,), knee=0, base=timeline(0), lower_bound=0)
    assert drawn(plot_of(found))
    assert ElementTree.fromstring(svg.pareto(found, "nothing")).tag.endswith("svg")
    assert "knee" not in printed(reported("m.onnx", found))


def test_svg_is_xml_that_needs_nothing_from_outside() -> None:
    text = svg.pareto(pareto(), "model.onnx")
    root = ElementTree.fromstring(text)
    assert root.tag == f"{SVG}svg"
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(href|src|url\(|@import|<script)", text)
    assert len(re.findall("://", text)) == 1  # the namespace
    labels = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert "overhead: extra compute (% of the step)" in labels
    assert "peak of activations (bytes)" in labels
    assert {"40 KiB", "0 KiB", "20 %"} <= set(labels)
    assert any(label.startswith("memory: 10.0 KiB at +30.0 %") for label in labels)


def test_svg_escapes_names() -> None:
    odd = 'list:tensors=<a&b>"]]>\x00\ud800'
    root = ElementTree.fromstring(svg.pareto(pareto(Offer(odd, plan(odd, 15, 0.2))), f"<{odd}>"))
    labels = [element.text or "" for element in root.iter(f"{SVG}text")]
    assert labels[0] == '<list:tensors=<a&b>"]]>��>'


def test_svg_draws_points_where_they_are() -> None:
    root = ElementTree.fromstring(svg.pareto(pareto(), "model.onnx"))
    circles = [(float(c.get("cx", 0)), float(c.get("cy", 0))) for c in root.iter(f"{SVG}circle")][:3]
    assert circles == sorted(circles)  # ever dearer, ever lower (y grows downwards)
    assert len({x for x, _ in circles}) == 3
    heights = [396 - y for _, y in circles]
    assert heights[0] == pytest.approx(2 * heights[1], abs=0.2)


def test_marks_at_one_place_share_a_marker() -> None:
    found = pareto(Offer("sqrt", plan("sqrt", 15, 0.2)), Offer("chen", plan("chen", 15, 0.2)))
    root = ElementTree.fromstring(svg.pareto(found, "model.onnx"))
    assert "a,b" in [element.text for element in root.iter(f"{SVG}text")]


def test_what_lies_far_off_is_listed_but_not_drawn() -> None:
    plot = plot_of(pareto(Offer("far", plan("far", 15, 9.0))))
    assert plot.right < 1
    assert not plot.inside
    assert "(beyond)" in svg.pareto(pareto(Offer("far", plan("far", 15, 9.0))), "model.onnx")


@pytest.mark.parametrize(
    ("top", "labels"),
    [
        (5 * 2**20, ["0 MiB", "1 MiB", "2 MiB", "3 MiB", "4 MiB", "5 MiB"]),
        (900, ["0 B", "200 B", "400 B", "600 B", "800 B"]),
        (1, ["0 B", "0.2 B", "0.4 B", "0.6 B", "0.8 B", "1 B"]),
        (1500 * 2**30, ["0 TiB", "0.5 TiB", "1 TiB"]),
    ],
)
def test_ticks_of_bytes_are_round(top: int, labels: list[str]) -> None:
    assert [label for _, label in byte_ticks(top)] == labels


def test_ticks_of_overhead_are_round() -> None:
    assert [label for _, label in percent_ticks(0.33)] == ["0 %", "10 %", "20 %", "30 %"]

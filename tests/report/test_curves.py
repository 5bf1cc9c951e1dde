"""Memory over a step as SVG."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from ckplan.planner import Moment, Timeline
from ckplan.report.curves import Curve, curves

MIB = 2**20
SVG = "{http://www.w3.org/2000/svg}"
BASE = Timeline(tuple(Moment(f"op{index}", 9 * MIB, index * MIB, index > 4) for index in range(9)))
NEW = Timeline(tuple(Moment(f"op{index}", 3 * MIB, 2 * MIB, recomputed=index in (5, 7)) for index in range(9)))


def drawn(*runs: Curve) -> ElementTree.Element:
    return ElementTree.fromstring(curves(runs, "a step"))


def heights(line: ElementTree.Element) -> list[float]:
    return [float(pair.split(",")[1]) for pair in line.attrib["points"].split()]


def test_every_run_has_a_line_and_its_peak_in_words() -> None:
    root = drawn(Curve("before", BASE), Curve("after", NEW))
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "before: 8.0 MiB" in texts
    assert "after: 2.0 MiB" in texts
    before, after = (heights(line) for line in root.iter(f"{SVG}polyline"))
    assert len(before) == len(after) == 9
    assert before == sorted(before, reverse=True), "y runs downwards, so more bytes are further up"
    assert len(set(after)) == 1
    assert min(before) < after[0] < max(before)


def test_recomputed_ops_of_the_last_run_are_marked() -> None:
    root = drawn(Curve("before", BASE), Curve("after", NEW))
    (rug,) = (path for path in root.iter(f"{SVG}path") if path.attrib["class"] == "rug")
    assert len(re.findall("M", rug.attrib["d"])) == 2 + 1, "two ops and the key"
    assert "a node is run again (2 are)" in [text.text for text in root.iter(f"{SVG}text")]
    assert not list(drawn(Curve("before", BASE)).iter(f"{SVG}path"))


def test_a_peak_of_one_step_in_ten_thousand_is_seen() -> None:
    steps = tuple(Moment("op", 0, 100 * MIB if index == 4321 else MIB) for index in range(10_000))
    text = curves([Curve("run", Timeline(steps))], "a step")
    (line,) = ElementTree.fromstring(text).iter(f"{SVG}polyline")
    assert sum(height < 200 for height in heights(line)) == 1
    assert len(text) < 20_000


def test_names_are_text_and_the_picture_needs_nothing_else() -> None:
    text = curves([Curve("<script>", NEW)], "a & b")
    assert ElementTree.fromstring(text).findtext(f"{SVG}title") == "a & b"
    assert "<script>" not in text
    assert "prefers-color-scheme: dark" in text
    assert not re.search(r"(href|src|url\(|@import)", text)


def test_nothing_to_draw_is_no_failure() -> None:
    assert drawn().tag == f"{SVG}svg"
    assert "run: 0 B" in [text.text for text in drawn(Curve("run", Timeline(()))).iter(f"{SVG}text")]

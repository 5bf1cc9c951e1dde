"""The page as text: well formed, offline, and safe whatever names are in it."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest

from ckplan.answers.pareto import Pareto
from ckplan.planner import Kind, Op, Problem, Tensor, make_plan
from ckplan.report.html import render
from ckplan.report.html.chart_data import MOST_BANDS, Panel, Strings, chart_data
from ckplan.report.untrusted import printable
from ckplan.units import format_bytes
from tests.report.examples import analysis, verification
from tests.report.pages import EVIL, KIB, findings, occupancy

VOID = {"meta", "link", "br", "hr", "img", "input"}
MIB = 1024 * 1024


class Parsed(HTMLParser):
    """A page taken apart; every element that is opened must be closed."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[tuple[str, str]] = []
        self.feed(page)
        self.close()
        assert not self.open, f"left open: {self.open}"

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open, f"</{tag}> closes nothing"
        assert self.open.pop() == tag, f"</{tag}> closes another element"

    def handle_data(self, data: str) -> None:
        self.texts.append((self.open[-1] if self.open else "", data))

    def inside(self, tag: str) -> list[str]:
        return [text for parent, text in self.texts if parent == tag]

    @property
    def shown(self) -> str:
        return " ".join(" ".join(text for tag, text in self.texts if tag not in ("script", "style")).split())


def everything(**changes: Any) -> Any:
    """Findings with all sections."""
    problem = Problem((Op("op", (0,), (1,)),), (Tensor("x", 4, Kind.INPUT), Tensor("y", 8 * KIB)))
    plan = make_plan(problem, "memory", [0])
    found = analysis()
    frontier = Pareto(found.base, (plan,), 0, found.offers, 2 * KIB, False)
    return findings(analysis=found, pareto=frontier, verification=verification(), **changes)


PAGES = {
    "plan": findings(),
    "everything": everything(),
    "analysis": findings(chosen=None, after=None, analysis=analysis()),
    "verification": findings(chosen=None, contents=None, verification=verification()),
    "measured only": findings(chosen=None, contents=None, before=None, after=None, verification=verification()),
    "names": everything(odd=EVIL),
    "nothing": findings(0, chosen=None, contents=None, before=None, after=None),
    "no steps": findings(0),
}


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_well_formed_and_offline(name: str) -> None:
    text = render(PAGES[name])
    page = Parsed(text)
    assert text.startswith("<!doctype html>")
    for tag, attributes in page.elements:
        for key, value in attributes.items():
            assert not key.startswith("on"), f"{tag} has a handler"
            assert key != "style", "the policy would drop it"
            assert key not in ("src", "href", "action", "srcset") or str(value).startswith("data:"), (tag, key, value)
    assert {tag for tag, _ in page.elements} & {"iframe", "object", "embed", "base", "form", "img"} == set()
    code = "".join(page.inside("script")[1:] + page.inside("style"))
    assert not re.search(r"https?:|url\(|@import|fetch\(|XMLHttpRequest|WebSocket|import\(|eval\(|innerHTML", code)
    identifiers = [attributes["id"] for _, attributes in page.elements if "id" in attributes]
    assert len(identifiers) == len(set(identifiers))


def test_the_policy_allows_the_script_and_the_style_of_the_page_and_nothing_else() -> None:
    page = Parsed(render(everything(odd=EVIL)))
    (policy,) = (
        str(attributes["content"])
        for tag, attributes in page.elements
        if tag == "meta" and attributes.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    for rule, content in (("style-src", page.inside("style")[0]), ("script-src", page.inside("script")[-1])):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert rules[rule] == f"'sha256-{digest}'"
    assert [tag for tag, _ in page.elements].count("script") == 2
    assert [tag for tag, _ in page.elements].count("style") == 1


def test_names_are_text() -> None:
    text = render(everything(odd=EVIL))
    page = Parsed(text)
    assert "<script>alert" not in text
    data = page.inside("script")[0]
    assert not set("<>&\u2028\u2029") & set(data)
    strings = decoded(json.loads(data)["strings"])
    odd = printable(EVIL)
    assert odd != EVIL
    assert f"/model/encoder/layer.0/attention/output/dense{odd}_out" in strings
    for tag in ("code", "title", "bdi"):
        assert any(odd in shown for shown in page.inside(tag)), tag
    assert f"dimension 'batch{odd}' is 8 by default" in page.inside("li")


def test_the_headline_says_what_is_saved() -> None:
    found = findings()
    shown = Parsed(render(found)).shown
    assert found.before is not None
    assert found.after is not None
    before, after = found.before.timeline.peak_activations, found.after.timeline.peak_activations
    assert after < before
    assert f"{format_bytes(before)} → {format_bytes(after)}" in shown
    assert f"−{100 * (1 - after / before):.0f} % memory" in shown
    assert "+20 % compute" in shown
    assert "budget 40.0 KiB" in shown
    assert "lower bound 8.0 KiB" in shown
    assert "strategy memory" in shown


def test_a_plan_that_changes_nothing_says_so() -> None:
    found = findings()
    assert found.chosen is not None
    same = findings(after=found.before, chosen=replace(found.chosen, plan=replace(found.chosen.plan, cost=1.004)))
    page = Parsed(render(same))
    assert "±0 % memory ±0 % compute" in page.shown
    badges = [
        str(attributes["class"]) for _, attributes in page.elements if str(attributes.get("class")).startswith("badge ")
    ]
    assert badges == ["badge good", "badge good"]


def test_a_plan_that_takes_more_is_no_good_news() -> None:
    found = findings()
    page = Parsed(render(findings(before=found.after, after=found.before)))
    badges = [
        str(attributes["class"]) for _, attributes in page.elements if str(attributes.get("class")).startswith("badge ")
    ]
    assert badges == ["badge cost", "badge cost"]
    assert re.search(r"\+[0-9]+ % memory", page.shown)


def test_a_verification_alone_is_headed_by_what_was_measured() -> None:
    shown = Parsed(render(PAGES["verification"])).shown
    assert "64.0 KiB → 32.0 KiB" in shown
    assert "in one training step, measured" in shown
    assert "2 of 2 outputs equal to the bit" in shown
    found = PAGES["verification"].before
    assert found is not None
    assert f"base: {format_bytes(found.timeline.peak_activations)} predicted, 64.0 KiB measured" in shown


def test_the_sections_are_those_that_were_looked_into() -> None:
    def sections(name: str) -> set[str]:
        return {str(a["id"]) for tag, a in Parsed(render(PAGES[name])).elements if tag == "section" and "id" in a}

    assert sections("plan") == {"memory", "alive", "plan", "reproduce"}
    assert sections("analysis") == {"memory", "alive", "bottlenecks", "strategies", "reproduce"}
    assert sections("everything") == {
        "memory", "alive", "plan", "pareto", "strategies", "bottlenecks", "measured", "reproduce",
    }  # fmt: skip
    assert sections("measured only") == {"memory", "measured", "reproduce"}
    assert sections("nothing") == {"reproduce"}


def test_the_command_and_the_versions_are_told() -> None:
    page = Parsed(render(findings()))
    assert "ckplan report 'chain.onnx' -o page.html" in page.inside("code")
    assert "0.1.0" in page.inside("dd")


def test_what_the_bands_leave_out_is_summed() -> None:
    found = occupancy(MOST_BANDS)
    chart = json.loads(chart_data([Panel("chain", found.timeline, found)]))["charts"][0]
    assert len(chart["bands"]) == MOST_BANDS < len(found.buffers)
    rest, work = (dense(chart[name], len(chart["bytes"])) for name in ("rest", "work"))
    for step in (0, 1, MOST_BANDS - 1, MOST_BANDS, found.timeline.peak_step, 2 * MOST_BANDS - 1):
        shown = sum(size for size, born, dies, *_ in chart["bands"] if born <= step <= dies)
        assert shown + rest[step] + work[step] == chart["bytes"][step]


def decoded(parts: list[Any]) -> list[str]:
    texts: list[str] = []
    before = b""
    for length, rest in zip(parts[::2], parts[1::2], strict=True):
        before = before[: 2 * length] + rest.encode("utf-16-le")
        texts.append(before.decode("utf-16-le"))
    return texts


def test_texts_are_told_by_what_they_have_in_common() -> None:
    strings = Strings()
    texts = ["/layer/0/𝑥/Conv", "/layer/0/𝑥/Relu", "/layer/0/𝒚", "", "𝑥", "𝒚", "/layer/0/𝑥/Conv_out"]
    assert [strings(text) for text in texts] == list(range(len(texts)))
    assert strings(texts[2]) == 2
    coded = strings.coded()
    assert decoded(coded) == texts
    assert coded[2:4] == [12, "Relu"]


def dense(sparse: list[int], count: int) -> list[int]:
    values, found = dict(zip(sparse[::2], sparse[1::2], strict=True)), [0]
    for step in range(count):
        found.append(values.get(step, found[-1]))
    return found[1:]


def test_ten_thousand_nodes_make_less_than_five_megabytes() -> None:
    found = findings(5000)
    assert found.before is not None
    assert found.after is not None
    assert len(found.before.timeline.steps) == 10_000
    assert len(found.after.timeline.steps) > 13_000
    assert len(render(found).encode()) < 5 * MIB

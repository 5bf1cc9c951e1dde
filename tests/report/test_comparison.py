"""A comparison in every format; names of nodes, tensors and files come from strangers."""

from __future__ import annotations

import html
import json
import re
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

from ckplan.comparison import Check, Comparison, Level, Limits, PeakBuffer, Snapshot, judge
from ckplan.errors import ModelError
from ckplan.report import json as as_json
from ckplan.report.documents.comparisons import comparison
from ckplan.report.untrusted import printable
from ckplan.report.writers.github import annotated
from ckplan.report.writers.junit import junit
from ckplan.report.writers.markdown import markdown
from tests.comparison.examples import KIB, measured, snapshot
from tests.report.examples import printed

EVIL = [
    "<script>alert(1)</script>",
    "a\n::error file=x::owned",
    "::error::owned",
    "##[error]owned",
    "a|b|c",
    "`code` **bold** _it_ [link](http://evil) <!-- ",
    "https://evil.example www.evil.example @someone",
    "\x1b[31mred\x00\x07\r\u2028\u202e",
    "quote\" & <tag/> ' ]]>",
    "%0A::error::owned",
    "x" * 70 + " ::error::owned " * 9,
]


def grown(name: str) -> Comparison:
    def side(size: int) -> Snapshot:
        buffers = (PeakBuffer(name, size * KIB, name, name, "8x3", "kept"),)
        peak = {"peak_activations": size * KIB, "at_peak": buffers, "peak_node": name, "peak_op": name}
        return snapshot(**peak, source=name, recomputed={} if size == 4 else {name: KIB})

    check = judge(name, name, side(4), side(6), Limits())
    broken = Check(name, name, None, None, Limits(), error=ModelError(f"{name} is damaged"))
    return Comparison((check, broken), (name,), f"accept {name}")


@pytest.mark.parametrize("name", EVIL)
def test_names_are_printed_in_one_line(name: str) -> None:
    page = printed(comparison(grown(name)))
    assert not re.search(r"[^\n\x20-\x7e\xa0-\uffff]", page), "a control character"
    assert not re.search(r"[\u2028\u202e]", page)
    assert not [line for line in page.splitlines() if line.strip().startswith("::")]
    assert "##[" not in page
    shown = printable(name)
    assert "\n" not in shown
    assert "##[" not in shown
    assert printable("aten::add") == "aten::add"


@pytest.mark.parametrize("name", EVIL)
def test_names_are_text_in_markdown(name: str) -> None:
    page = markdown(comparison(grown(name)))
    assert set(re.findall(r"<[^>]*>", page)) <= {
        "<code>", "</code>", "<details>", "</details>", "<summary>", "</summary>",
    }  # fmt: skip
    for letters in ("`", "**bold", "](", "@someone", "http:", "https:", "www."):
        assert letters not in page
    rows = [line for line in page.splitlines() if line.startswith("|")]
    assert {row.count("|") for row in rows} == {7, 3}, "a name adds no column"
    assert len(rows) == 4 + 3 + 3
    # An entity stands for the letter itself, so that all of the name is shown.
    shown = re.sub(r"&#(\d+);", lambda match: chr(int(match[1])), page)
    assert printable(name) in shown


@pytest.mark.parametrize("name", EVIL)
def test_markdown_renders_as_text_and_tables(name: str) -> None:
    page = MarkdownIt("commonmark").enable("table").render(markdown(comparison(grown(name))))
    assert f"<code>{html.escape(printable(name))}</code>" in page.replace("&#39;", "'").replace("'", "&#x27;")
    assert len(re.findall("<table>", page)) == 3
    assert page.count("<h4>") == 2, "one for each check"
    assert not re.search("<(script|a|em|strong|img|h1|h2)[ >]", page)


@pytest.mark.parametrize("name", EVIL)
def test_names_cannot_make_commands_in_annotations(name: str) -> None:
    lines = annotated(comparison(grown(name)))
    assert len(lines) == 2
    for line in lines:
        head, body = re.fullmatch(r"::error (file=[^:,]*,title=[^:,]*)::(.*)", line).groups()  # type: ignore[union-attr]
        assert "\n" not in body
        unescaped = body.replace("%0A", "\n").replace("%25", "%")
        assert printable(name) in unescaped
        assert printable(name) in head.replace("%3A", ":").replace("%2C", ",").replace("%25", "%")


@pytest.mark.parametrize("name", EVIL)
def test_names_are_text_in_junit(name: str) -> None:
    suite = ElementTree.fromstring(junit(comparison(grown(name))))[0]
    failed, broken = suite.findall("testcase")
    assert failed.get("name") == broken.get("name") == printable(name)
    assert f"'{printable(name)}'" in str(failed.find("failure").text)  # type: ignore[union-attr]
    assert broken.find("error").get("message") == printable(f"{name} is damaged")  # type: ignore[union-attr]


@pytest.mark.parametrize("name", EVIL)
def test_json_has_names_as_they_are(name: str) -> None:
    data = json.loads(json.dumps(as_json.comparison(grown(name))))
    assert data["checks"][0]["growth"][0]["tensor"] == name


def test_the_page_names_what_grew() -> None:
    base = snapshot(("a", 4), ("gone", 1), measured=measured(5))
    head = snapshot(("a", 9), ("new", 3), measured=measured(12), recomputed={"b": KIB}, overhead=0.2)
    found = Comparison((judge("net", "net.onnx", base, head, Limits(0.5, budget=8 * KIB)),), (), "accept it so")
    page = [" ".join(line.split()) for line in printed(comparison(found)).splitlines()]
    for line in (
        "net: failed",
        "net 5.0 KiB 12.0 KiB +140.0 % 7.5 KiB failed",
        "measured 5.0 KiB 12.0 KiB",
        "failed peak of activations 5.0 KiB -> 12.0 KiB (+140.0 %, +7,168 B)",
        "failed peak of activations 12.0 KiB exceeds the budget of 8.0 KiB by 4,096",
        "base peak 5.0 KiB at Mul 'peak/node'",
        "new peak 12.0 KiB at Mul 'peak/node'",
        "compute +10.0 % -> +20.0 %",
        "+5.0 KiB 4.0 KiB 9.0 KiB Conv a",
        "+3.0 KiB new 3.0 KiB Conv new",
        "others shrank or left the peak, with 1.0 KiB",
        "recomputed now, and not by the base's plan:",
        "1.0 KiB b",
    ):
        assert line in page, line


def test_large_figures_and_long_names_fit() -> None:
    base, head = snapshot(peak_activations=1023 * 2**20), snapshot(peak_activations=1022 * 2**21)
    checks = tuple(judge(f"a/long/name/of/a/model/{n}", "net.onnx", base, head, Limits(0.015)) for n in range(2))
    page = printed(comparison(Comparison(checks)))
    rows = [line for line in page.splitlines() if line.startswith(("…", "a/long")) and "MiB" in line]
    assert [row.split()[1:3] for row in rows] == [["1023.0", "MiB"]] * 2
    assert [row.split()[-1] for row in rows] == ["failed"] * 2


def test_many_tensors_are_counted() -> None:
    base, head = snapshot(("a", 1)), snapshot(*((f"t{number}", 2) for number in range(14)))
    page = printed(comparison(Comparison((judge("net", "net.onnx", base, head),))))
    assert "and 4 more with 8.0 KiB" in page


def test_all_levels_are_told() -> None:
    same = snapshot(("a", 4))
    checks = (
        judge("one", "one.onnx", same, same),
        judge("two", "two.onnx", same, snapshot(("a", 6)), Limits(None, 0.1)),
        judge("three", "three.onnx", same, snapshot(("a", 6))),
    )
    found = Comparison(checks)
    assert found.level is Level.FAILED
    assert "3 checks: 1 passed, 1 warned, 1 failed" in printed(comparison(found))
    commands = [line.split(" ")[0] for line in annotated(comparison(found))]
    assert commands == ["::warning", "::error"]
    suite = ElementTree.fromstring(junit(comparison(found)))[0]
    assert [len(case.findall("failure")) for case in suite] == [0, 0, 1]
    assert suite.get("failures") == "1"
    assert printed(comparison(Comparison(()))).startswith("nothing was compared")

"""One document, many formats; and formats that other packages add."""

from __future__ import annotations

from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from click.testing import CliRunner

from ckplan import extensions
from ckplan.cli import cli
from ckplan.errors import UsageError
from ckplan.report import writers
from ckplan.report.document import Cell, Document, Fact, Facts, Line, MemoryChart, Row, Section, Table, name, size
from tests.cli.conftest import write_model
from tests.report.examples import timeline

TABLE = Table(("tensor", "bytes"), tuple(Row((name(f"t{n}"), size(n * 1024))) for n in range(12)), more="that is all")
DOCUMENT = Document(
    "all is told",
    (
        Section("", (Line("a sentence"),)),
        Section("a model", (Facts((Fact("failed", "it grew", "failed"),)), TABLE), level="failed", source="m.onnx"),
        Section("memory", (MemoryChart(timeline(1, 2)), Line("- a point"))),
        Section("of no account", (Line("hidden"),), minor=True),
    ),
    ("a note",),
    "failed",
)


def only_titles(document: Document) -> str:
    return document.title.upper()


@pytest.mark.parametrize("kind", [kind for kind in writers.FORMATS if kind != "github"])
def test_every_format_tells_the_facts_and_the_table(kind: str) -> None:
    text = writers.writer(kind)(DOCUMENT)
    for said in ("it grew", "t9", "9.0 KiB", "that is all"):
        assert said in text
    assert text.endswith("\n")


def test_narrow_formats_cut_tables_and_leave_out_what_is_minor() -> None:
    for kind in ("text", "markdown"):
        text = writers.writer(kind)(DOCUMENT)
        assert "and 2 more" in text
        assert "t11" not in text
        assert "hidden" not in text
    assert "t11" in writers.writer("junit")(DOCUMENT)


def test_an_annotation_stands_for_a_fact_that_is_judged() -> None:
    lines = writers.writer("github")(DOCUMENT).splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("::error file=m.onnx,title=Memory of a model::it grew")


def test_a_document_that_is_not_judged_is_one_test_case() -> None:
    text = writers.writer("junit")(Document("fine", (Section("", (Facts((Fact("a", "b"),)),)),)))
    assert 'tests="1"' in text
    assert 'failures="0"' in text


def test_chains_of_operators_are_broken_between_operators() -> None:
    chain = "Conv+Transpose+BatchNormalization+Clip (17 nodes)"
    figures = [size(2**20 + number) for number in range(5)]
    table = Table(("nodes", *map(str, range(5))), (Row((Cell(chain), *figures)),))
    told = writers.writer("text")(Document("", (Section("", (table,)),)))
    words = [line.split("  ")[0].split() for line in told.splitlines()[2:]]
    broken = [word for line in words for word in line]
    assert broken == ["Conv+Transpose+", "BatchNormalization+Clip", "(17", "nodes)"]
    assert max(map(len, told.splitlines())) <= 80


def test_a_dash_does_not_keep_a_column_from_being_one_of_figures() -> None:
    table = Table(("a", "b"), (Row((Cell("x"), Cell("-"))), Row((Cell("y"), size(1)))))
    assert table.numeric == (False, True)


def test_a_package_adds_a_format_by_an_entry_point(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    point = EntryPoint("titles", "tests.report.test_writers:only_titles", writers.GROUP)
    monkeypatch.setattr(extensions, "entry_points", lambda group: EntryPoints([point]).select(group=group))
    extensions.load_group.cache_clear()
    model = write_model(tmp_path / "model.onnx")
    out = tmp_path / "titles.txt"
    result = CliRunner().invoke(cli, ["compare", str(model), "--budget", "1GiB", "--report", f"titles={out}"])
    assert result.exit_code == 0, result.stderr
    assert out.read_text(encoding="utf-8") == "MODEL: PASSED"
    with pytest.raises(UsageError, match="nonsense"):
        writers.writer("nonsense")
    extensions.load_group.cache_clear()


def test_a_format_is_registered_in_python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(writers, "_OTHERS", {})
    register = writers.register_reporter("shout")
    assert register(only_titles) is only_titles
    assert writers.writer("shout")(DOCUMENT) == "ALL IS TOLD"
    for taken in ("shout", "markdown"):
        with pytest.raises(UsageError, match=f"two formats are called `{taken}`"):
            writers.register_reporter(taken)


def test_reports_are_checked_before_the_work(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx")
    for report in ("nonsense=x", f"markdown={tmp_path / 'no' / 'folder'}", f"text={model}"):
        result = CliRunner().invoke(cli, ["compare", str(model), "--budget", "1GiB", "--report", report])
        assert result.exit_code == 2, report

"""``ckplan report`` and ``--html`` through the entry that the shell uses."""

from __future__ import annotations

import json
import re
from html import unescape
from pathlib import Path

import pytest

from tests.cli.conftest import write_model
from tests.cli.test_commands import failure, run

LARGE = ("--dim", "batch=256")


def shown(page: Path) -> str:
    """What a reader sees of a page, roughly: its text without scripts and styles."""
    text = page.read_text(encoding="utf-8")
    visible = re.sub(r"<[^>]*>", " ", re.sub(r"<(script|style)\b.*?</\1>", "", text, flags=re.DOTALL))
    return " ".join(unescape(visible).split())


def test_a_report_shows_the_plan(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = run("report", model, "-o", page, "--strategy", "memory", *LARGE)
    assert result.exit_code == 0, result.stderr
    assert "predicted activations" in result.stdout
    told = shown(page)
    saving = re.search(r"activations ([0-9.]+ KiB) -> ([0-9.]+ KiB)", result.stdout)
    assert saving is not None
    assert f"{saving[1]} → {saving[2]}" in told
    for heading in ("Memory over the step", "Alive at the peak", "The plan, block by block", "How to reproduce"):
        assert heading in told
    assert re.search(r"MatMul\+Tanh × [1-6]", told)
    assert f"ckplan report {model} -o {page} --strategy memory --dim batch=256" in told
    assert "What each saved byte costs" not in told
    assert "Predicted and measured" not in told


@pytest.mark.slow
def test_a_report_with_everything(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = run("report", model, "-o", page, "--budget", "80%", "--pareto", "--verify", "--json", *LARGE)
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert (data["command"], data["output"]) == ("report", str(page))
    assert data["planned"]["peak_activations"] <= 0.8 * data["base"]["peak_activations"]
    assert data["verification"]["numerics"]["bitwise_equal"]
    told = shown(page)
    assert "What each saved byte costs" in told
    assert "Predicted and measured" in told
    assert "equal to the bit" in told
    assert "budget " in told


def test_an_inference_graph_has_a_report(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "report.html"
    result = run("report", model, "-o", page, "--inference", "--strategy", "none")
    assert result.exit_code == 0, result.stderr
    told = shown(page)
    assert "The loss is" not in told
    assert "peak of activations in one run, predicted" in told


def test_analyze_writes_a_page(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "analysis.html"
    result = run("analyze", model, "--html", page, "--strategy", "memory", "--json", *LARGE)
    assert result.exit_code == 0, result.stderr
    chart = json.loads(re.findall(r'id="data">(.*?)</script>', page.read_text(encoding="utf-8"))[0])["charts"][0]
    assert max(chart["bytes"]) == json.loads(result.stdout)["base"]["peak_activations"]
    assert "Strategies" in shown(page)
    assert "Bottlenecks" in shown(page)


@pytest.mark.slow
def test_rewrite_and_verify_write_pages(model: Path, tmp_path: Path) -> None:
    base, new, first, second = (tmp_path / name for name in ("base.onnx", "new.onnx", "first.html", "second.HTM"))
    assert run("grad", model, "-o", base, *LARGE).exit_code == 0
    result = run("rewrite", model, "-o", new, "--strategy", "memory", "--html", first, *LARGE)
    assert result.exit_code == 0, result.stderr
    assert "The plan, block by block" in shown(first)
    result = run("verify", base, new, "--html", second)
    assert result.exit_code == 0, result.stderr
    told = shown(second)
    assert "in one training step, measured" in told
    assert "Alive at the peak" in told
    assert "new: " in told


def test_names_of_nodes_are_text(tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx", activation="Tanh")
    import onnx

    proto = onnx.load(model)
    odd = "<script>alert(1)</script>"
    for node in proto.graph.node:
        node.name = f"{odd}{node.name}"
        for names in (node.input, node.output):
            for index, name in enumerate(names):
                if name.startswith(("m", "y")) and name != "y5":
                    names[index] = f"{odd}{name}"
    onnx.save(proto, model)
    page = tmp_path / "report.html"
    result = run("report", model, "-o", page, "--strategy", "memory", *LARGE)
    assert result.exit_code == 0, result.stderr
    text = page.read_text(encoding="utf-8")
    assert odd not in text
    assert text.count("<script") == 2
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text


@pytest.mark.parametrize("command", ["report", "analyze", "rewrite", "verify"])
@pytest.mark.parametrize(
    ("name", "wrong"),
    [("page.pdf", "end it in .html"), ("there.html", "pass --force"), ("no/page.html", "create it first")],
)
def test_a_page_that_cannot_be_written_is_refused_before_the_work(
    command: str, name: str, wrong: str, tmp_path: Path
) -> None:
    (tmp_path / "there.html").write_text("mine")
    missing = tmp_path / "no such model.onnx"
    arguments = {
        "report": ("report", missing, "-o", tmp_path / name),
        "analyze": ("analyze", missing, "--html", tmp_path / name),
        "rewrite": ("rewrite", missing, "-o", tmp_path / "out.onnx", "--html", tmp_path / name),
        "verify": ("verify", missing, missing, "--html", tmp_path / name),
    }[command]
    result = run(*arguments)
    assert result.exit_code == 2
    assert wrong in failure(result)
    assert (tmp_path / "there.html").read_text() == "mine"


def test_the_page_is_no_other_file_of_the_command(model: Path, tmp_path: Path) -> None:
    both = tmp_path / "both.html"
    result = run("rewrite", model, "-o", both, "--html", both)
    assert result.exit_code == 2
    assert "another file of this command" in failure(result)
    result = run("verify", model, model, "--html", both, "--report", f"text={both}")
    assert result.exit_code == 2
    assert "two outputs are" in failure(result)


def test_compare_writes_a_page(model: Path, tmp_path: Path) -> None:
    page = tmp_path / "compare.html"
    smaller, larger = tmp_path / "smaller.onnx", tmp_path / "larger.onnx"
    assert run("grad", model, "-o", smaller, "--dim", "batch=128").exit_code == 0
    assert run("grad", model, "-o", larger, *LARGE).exit_code == 0
    result = run("compare", smaller, larger, "--html", page)
    assert result.exit_code == 1
    told = shown(page)
    assert "grew or appeared at the peak" in told
    assert "✗ failed" in told
    assert "+100 % memory" in told
    text = page.read_text(encoding="utf-8")
    charts = json.loads(re.findall(r'id="data">(.*?)</script>', text)[0])["charts"]
    assert [chart["title"] for chart in charts] == ["Base", "New"]
    assert all(chart["bands"] for chart in charts)

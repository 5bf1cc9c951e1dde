"""Names from strangers: no output of any command lets them onto a line of their own or into the terminal's controls."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ckplan.cli.terminal.streams import Settings, annotate, say, show, stage
from ckplan.report.html import render
from tests.cli.test_commands import run
from tests.report.pages import findings, occupancy

EVIL = "\n::error file=x::pwned\r\n##[error]pwned\x1b]0;pwned\x07\x1b[31m\x9b31m\u202e\u2028[/bold][red]<script>\x00"
"""A command of GitHub's in its old and new form, a terminal's title and colours, an order of letters, rich's markup."""


def evil_model(path: Path, layers: int = 4) -> Path:
    """A chain whose every name, of nodes, tensors, a dimension and a domain, is hostile."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], f"{EVIL}x"
    for layer in range(layers):
        weight = f"{EVIL}weight{layer}"
        weights.append(numpy_helper.from_array(rng.normal(size=(8, 8)).astype(np.float32), weight))
        nodes.append(helper.make_node("MatMul", [value, weight], [f"{EVIL}m{layer}"], f"{EVIL}MatMul{layer}"))
        nodes.append(helper.make_node("Sigmoid", [f"{EVIL}m{layer}"], [f"{EVIL}y{layer}"], f"{EVIL}Sigmoid{layer}"))
        value = f"{EVIL}y{layer}"
    shape = [f"{EVIL}batch", 8]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in (f"{EVIL}x", value)]
    graph = helper.make_graph(nodes, f"{EVIL}graph", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def assert_tame(text: str, what: str) -> None:
    """Nothing that a terminal or a CI's log obeys; line ends are the program's own."""
    control = re.search(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u202e\u2028]", text)
    assert control is None, f"{what}: {control[0]!r} in {text[max(0, control.start() - 60) : control.end()]!r}"
    for line in text.splitlines():
        assert not line.lstrip().startswith("::error file=x"), f"{what}: {line!r}"
    assert "##[" not in text, what


#: What is run on the model of hostile names, in this order; files that one writes are read by later ones.
COMMANDS: list[tuple[str, Sequence[str]]] = [
    ("analyze", ["m.onnx"]),
    ("analyze", ["m.onnx", "--json"]),
    ("analyze", ["m.onnx", "--html", "analysis.html", "--verbose"]),
    ("pareto", ["m.onnx", "--strategy", "none", "--strategy", "memory", "--verbose"]),
    ("grad", ["m.onnx", "-o", "grad.onnx"]),
    ("plan", ["m.onnx", "-o", "plan.json", "--strategy", "sqrt", "--verbose"]),
    ("rewrite", ["m.onnx", "-o", "out.onnx", "--strategy", "sqrt", "--html", "rewritten.html"]),
    ("rewrite", ["m.onnx", "-o", "other.onnx", "--plan", "plan.json", "--json"]),
    ("explain", ["m.onnx", f"{EVIL}y1", "--strategy", "sqrt"]),
    ("explain", ["m.onnx", "nothing", "--strategy", "sqrt"]),
    ("report", ["m.onnx", "-o", "page.html", "--strategy", "sqrt"]),
    ("measure", ["grad.onnx", "--device", "cpu", "--csv", "steps.csv", "--trace", "trace.json", "--runs", "1"]),
    ("compare", ["m.onnx", "m.onnx", "--markdown", "c.md", "--junit", "c.xml"]),
    ("compare", ["m.onnx", "out.onnx"]),
    ("grad", ["m.onnx", "-o", "n.onnx", "--loss", "nothing"]),
    ("grad", ["m.onnx", "-o", "n.onnx", "--wrt", f"{EVIL}none"]),
    ("grad", ["m.onnx", "-o", "n.onnx", "--shape", f"{EVIL}none=8,8"]),
    ("grad", [f"{EVIL}none.onnx", "-o", "n.onnx"]),
    ("analyze", ["m.onnx", "--dim", f"{EVIL}={EVIL}"]),
]


def test_no_output_of_any_command_holds_a_raw_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("GITHUB_ACTIONS", "true")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", "summary.md")
    evil_model(tmp_path / "m.onnx")
    named = 0
    for command, arguments in COMMANDS:
        # No program can be called with a zero byte in its arguments.
        result = run(command, *(argument.replace("\x00", "") for argument in arguments))
        assert "bug" not in result.stderr, result.stderr
        assert "Traceback" not in result.stderr, result.stderr
        assert_tame(result.stdout, f"{command} {arguments}")
        assert_tame(result.stderr, f"{command} {arguments}")
        named += "pwned" in result.output
    assert named > 12  # the names are shown, not left out
    for file in tmp_path.iterdir():
        if file.suffix != ".onnx":
            assert_tame(file.read_text(encoding="utf-8").replace("\t", " "), file.name)


def test_failing_on_a_hostile_node_names_it_tamely(tmp_path: Path) -> None:
    model = onnx.load(evil_model(tmp_path / "m.onnx"))
    model.graph.node[3].op_type = f"{EVIL}Sigmoid"
    onnx.save(model, tmp_path / "m.onnx")
    for options in ((), ("--debug",)):
        result = run("grad", str(tmp_path / "m.onnx"), "-o", str(tmp_path / "n.onnx"), *options)
        assert result.exit_code == 3
        assert "pwned" in result.stderr
        assert_tame(result.stderr, "grad")
        assert ("Traceback" in result.stderr) == bool(options)


def test_a_report_takes_no_markup_and_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    import click

    from ckplan.report.document import Cell, Document, Fact, Facts, Row, Section, Table

    table = Table((EVIL,), (Row((Cell(EVIL),)),))
    with click.Context(click.Command("x"), obj=Settings()):
        show(Document(EVIL, (Section(EVIL, (Facts((Fact("a name", EVIL),)), table)),)))
        say(EVIL)
        annotate("::error title=x::kept")
    said = capsys.readouterr()
    assert said.out.count("[/bold][red]") == 5
    assert_tame(said.out, "show")
    assert_tame(said.err.partition("::error title=x")[0], "say")
    assert said.err.endswith("\n::error title=x::kept\n")


def test_progress_on_a_terminal_is_tame(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    import click

    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("COLUMNS", "200")
    with click.Context(click.Command("x"), obj=Settings()), stage(f"doing {EVIL}") as tell:
        tell(f"next {EVIL}")
    shown = capfd.readouterr().err
    assert "pwned" in shown
    assert "\x1b]0;" not in shown
    assert "\x07" not in shown
    assert "\n::error" not in shown


def test_page_holds_no_control_characters() -> None:
    assert_tame(render(findings(title=EVIL, notes=(EVIL,), before=occupancy(3, odd=EVIL))), "page")

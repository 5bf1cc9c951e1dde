"""How commands talk: within 80 columns whatever the names, quiet, verbose, in colour only where it is wanted."""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ckplan.cli import cli
from ckplan.cli.terminal.streams import Settings, stage
from ckplan.meter import checkup
from tests.cli.test_commands import run

LONG = "/encoder/a_module_with_a_very_long_name_that_no_terminal_has_room_for/" * 3


def long_names(path: Path) -> Path:
    """A model whose every name is longer than two lines of a terminal."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], f"{LONG}x"
    for layer in range(4):
        name = f"{LONG}{layer}"
        weight = rng.normal(size=(8, 8)).astype(np.float32)
        weights.append(numpy_helper.from_array(weight, f"{name}/weight"))
        nodes.append(helper.make_node("MatMul", [value, f"{name}/weight"], [f"{name}/product"], f"{name}/MatMul"))
        nodes.append(helper.make_node("Sigmoid", [f"{name}/product"], [f"{name}/y"], f"{name}/Sigmoid"))
        value = f"{name}/y"
    tensor = helper.make_tensor_value_info
    shape = [f"{LONG}batch", 8]
    graph = helper.make_graph(
        nodes, "g", [tensor(f"{LONG}x", TensorProto.FLOAT, shape)], [tensor(value, TensorProto.FLOAT, shape)], weights
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


#: What is run on the model of long names, in this order; files that one writes are read by later ones.
COMMANDS: dict[str, Sequence[str]] = {
    "demo": [],
    "analyze": ["m.onnx"],
    "pareto": ["m.onnx", "--strategy", "none", "--strategy", "memory"],
    "grad": ["m.onnx", "-o", "grad.onnx"],
    "plan": ["m.onnx", "-o", "plan.json", "--strategy", "sqrt"],
    "rewrite": ["m.onnx", "-o", "out.onnx", "--strategy", "sqrt"],
    "fit": ["m.onnx", "--memory", "16MiB", "--strategy", "memory"],
    "artifacts": ["m.onnx", "-o", "parts", "--strategy", "sqrt"],
    "train": ["grad.onnx", "--data", "data.npz", "--checkpoints", "trained", "--optimizer", "sgd"],
    "export-weights": ["trained", "m.onnx", "-o", "trained.onnx"],
    "explain": ["m.onnx", f"{LONG}1/y", "--strategy", "sqrt"],
    "report": ["m.onnx", "-o", "page.html", "--strategy", "sqrt"],
    "measure": ["grad.onnx", "--device", "cpu"],
    "verify": ["grad.onnx", "out.onnx", "--device", "cpu"],
    "compare": ["m.onnx", "m.onnx"],
    "strategies": [],
    "ops": [],
    "doctor": [],
}


def test_every_command_is_run_on_80_columns() -> None:
    assert list(COMMANDS) == cli.list_commands(click.Context(cli))


@pytest.mark.slow
def test_everything_fits_80_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")
    long_names(tmp_path / "m.onnx")
    np.savez(
        tmp_path / "data.npz", **{f"{LONG}x": np.ones((16, 8), np.float32), "target": np.ones((16, 8), np.float32)}
    )
    wide = {}
    for name, arguments in COMMANDS.items():
        result = run(name, *arguments)
        assert result.exit_code == 0, result.stderr
        first, *lines = result.stdout.splitlines()
        # A result in one line stays one line, for grep; a terminal folds it without harm, which a table is not.
        # What was planned comes first, and what was measured, if anything was, after it.
        lines = [line for line in lines if not line.startswith("measured: ")]
        wide[name] = [line for line in [first] * (": " not in first) + lines if len(line) > 80]
    assert {name: lines for name, lines in wide.items() if lines} == {}
    made = {file.name: file for file in (tmp_path / "ckplan-demo").iterdir()}
    assert made.keys() == {"gpt.onnx", "step.onnx", "without a plan.onnx", "saving.svg"}
    picture = made["saving.svg"].read_text(encoding="utf-8")
    assert "without a plan: 32." in picture
    assert "planned by ckplan: 6." in picture


@pytest.mark.parametrize("command", ["analyze", "pareto", "plan", "rewrite", "explain", "report"])
def test_verbose_gives_reasons_and_quiet_none(
    command: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    output = {"plan": ["-o", "p.json", "-f"], "rewrite": ["-o", "o.onnx", "-f"], "report": ["-o", "r.html", "-f"]}
    arguments = [*(["y2"] if command == "explain" else []), *output.get(command, [])]
    many = command in ("analyze", "pareto")
    arguments += ["--strategy", "list" if many else "auto"]
    plain = run(command, model, *arguments)
    assert "detail:" not in plain.stderr
    verbose = run(command, model, *arguments, "--verbose")
    details = [line for line in verbose.stderr.splitlines() if line.startswith("detail: ")]
    assert "detail: differentiating …" in details
    if many:
        assert any(line.startswith("detail: `list` makes no plan: ") for line in details)
        assert "detail: planning with `list`, 1 of 1 …" in details
    else:
        assert any("the knee between saving and cost" in line for line in details)
        assert any(line.startswith("detail: no schedule needs less than") for line in details)
    assert verbose.stdout == plain.stdout
    assert run(command, model, *arguments, "-q").stderr == ""
    assert not logging.getLogger("ckplan").handlers


def test_what_runs_only_once_is_told_with_the_reason(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Dropout", ["m"], ["d"], "dropout"),
        helper.make_node("Tanh", ["d"], ["y"], "tanh"),
    ]
    tensor = helper.make_tensor_value_info
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph(
        nodes, "g", [tensor("x", TensorProto.FLOAT, [2, 4])], [tensor("y", TensorProto.FLOAT, [2, 4])], [weight]
    )
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    said = run("plan", path, "-o", tmp_path / "p.json", "--training", "-v").stderr
    assert "dropout/RandomUniformLike_0 run only once: RandomUniformLike draws random numbers" in said


COLOUR = re.compile(r"\x1b\[(?:[0-9]+;)*(?:3[0-7]|9[0-7]|38;[0-9;]*)m")


@pytest.mark.parametrize("command", sorted(COMMANDS.keys() - {"demo", "measure", "verify", "compare", "report"}))
def test_no_color_is_heeded(command: str, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """NO_COLOR is about colour: bold and dim may stay, see no-color.org."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.setattr(checkup, "CHECKS", checkup.CHECKS[:1])
    output = {"plan": ["-o", "p.json"], "rewrite": ["-o", "o.onnx"], "grad": ["-o", "g.onnx"]}
    listing = command in ("strategies", "ops", "doctor")
    arguments = [] if listing else [model, *(["y2"] if command == "explain" else []), *output.get(command, [])]
    fast = [] if listing or command == "grad" else ["--strategy", "none"]
    assert not COLOUR.search(run(command, *arguments, *fast).stdout)
    monkeypatch.delenv("NO_COLOR")
    overwrite = ["--force"] if command in output else []
    assert not COLOUR.search(run(command, *arguments, *fast, *overwrite, "--no-color").stdout)
    if command in ("analyze", "doctor"):
        assert COLOUR.search(run(command, *arguments, *fast).stdout)


def test_a_terminal_of_no_width_is_one_that_does_not_tell(monkeypatch: pytest.MonkeyPatch) -> None:
    shown = run("strategies").stdout
    monkeypatch.setenv("COLUMNS", "0")
    assert run("strategies").stdout == shown


def test_a_stage_on_a_terminal_shows_what_the_library_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "60")
    with click.Context(cli, obj=Settings()), stage("planning") as doing:
        logging.getLogger("ckplan.planner.frontier").info("eviction: %d within a budget", 7)
        doing("writing")
    shown = capsys.readouterr().err
    assert "writing …" in shown
    assert not logging.getLogger("ckplan").handlers

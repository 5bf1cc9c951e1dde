"""The README's commands and programs run as they stand."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner

from ckplan.cli import cli
from ckplan.plan.strategies import STRATEGIES

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text(encoding="utf-8")
PROGRAMS = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
COMMANDS = re.findall(r"^\$ (?:pip install \. && )?(ckplan .*)$", README, re.MULTILINE)

SAVING = r"predicted activations .* \((-[0-9.]+) %\)"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory that holds the sample models only."""
    (tmp_path / "sample_models").mkdir()
    for path in (ROOT / "sample_models").glob("*.onnx"):
        shutil.copy(path, tmp_path / "sample_models")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.slow
def test_commands_and_programs_run(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) == 2
    assert len(PROGRAMS) == 2
    for command in COMMANDS:
        result = CliRunner().invoke(cli, shlex.split(command)[1:], prog_name="ckplan")
        assert result.exit_code == 0, result.stderr
    for program in PROGRAMS:
        exec(compile(program, "README.md", "exec"), {})
    printed = capsys.readouterr().out.splitlines()
    losses = [float(line.split()[1]) for line in printed[:3]]
    assert losses[2] < losses[0], "the training loop does not train"
    assert "bytes of activations" in printed[3]
    assert float(printed[4]) < 0.5


def test_the_saving_that_is_shown_is_the_saving_there_is(folder: Path) -> None:
    shown = re.search(SAVING, README)
    command = [part for part in shlex.split(COMMANDS[0])[1:] if part != "--verify"]
    found = re.search(SAVING, CliRunner().invoke(cli, command, prog_name="ckplan").stdout)
    assert shown is not None
    assert found is not None
    # Other versions of onnxruntime optimise a little differently; times differ from machine to machine.
    assert float(found[1]) <= float(shown[1]) + 2


def test_every_strategy_is_in_the_table() -> None:
    rows = re.findall(r"^\| `([a-z_-]+)` \|", README.split("## Strategies")[1].split("## How")[0], re.MULTILINE)
    assert sorted(rows) == sorted(kind.name for kind in STRATEGIES)

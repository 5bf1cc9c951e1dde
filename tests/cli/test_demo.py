"""`ckplan demo`: what the package brings with it, and what is not overwritten. It is run in `test_terminal.py`."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from ckplan.cli.commands.demo import model_file
from ckplan.errors import UsageError
from tests.cli.test_commands import failure, run

ROOT = Path(__file__).parents[2]


def test_the_package_is_built_with_the_model() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = project["tool"]["hatch"]["build"]["targets"]["wheel"]
    ((source, target),) = wheel["force-include"].items()
    assert (ROOT / source).read_bytes() == model_file().read_bytes()
    assert target == "ckplan/demo.onnx"


def test_a_folder_with_files_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    assert "is not empty; name another" in failure(run("demo", tmp_path))
    assert "is not a folder" in failure(run("demo", tmp_path / "mine.txt"))
    assert [file.name for file in tmp_path.iterdir()] == ["mine.txt"]


def test_the_command_that_it_runs_can_be_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_arguments: object, **_options: object) -> None:
        raise UsageError("stopped here")

    monkeypatch.setattr("ckplan.api.open_model", stop)
    folder = tmp_path / "my demo"
    assert f"ckplan rewrite '{folder / 'gpt.onnx'}' -o '{folder / 'step.onnx'}' " in run("demo", folder).stderr

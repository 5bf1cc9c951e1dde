"""Files that do not belong together are refused in one line, and nothing is half written."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

import ckplan
from ckplan.bundle import making
from ckplan.cli import cli
from ckplan.errors import EnvironmentUnavailableError, ModelError, UsageError
from tests.cli.conftest import write_model


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two models and the files of each."""
    folder = tmp_path_factory.mktemp("models")
    for name, width in (("one", 16), ("other", 8)):
        write_model(folder / f"{name}.onnx", layers=2, width=width)
        ckplan.artifacts(folder / f"{name}.onnx", folder / name, dims={"batch": 4})
    return folder


@pytest.fixture
def made(models: Path, tmp_path: Path) -> Path:
    """A copy of the files of one model, to be damaged."""
    return Path(shutil.copytree(models / "one", tmp_path / "one"))


def invoke(*words: str | Path) -> Result:
    return CliRunner().invoke(cli, ["artifacts", *map(str, words)])


def refused(result: Result, code: int, *words: str) -> None:
    assert result.exit_code == code, result.stderr
    (line,) = [line for line in result.stderr.splitlines() if not line.startswith("note:")]
    assert line.startswith("ckplan: error: ")
    assert all(word in line for word in words), line


def test_whole_files_pass(models: Path) -> None:
    found = ckplan.open_artifacts(models / "one", models / "one.onnx")
    assert found.path("training").is_file()
    result = invoke(models / "one.onnx", "--check", models / "one")
    assert result.exit_code == 0, result.stderr
    assert "whole, and made from one.onnx" in result.stdout


def test_a_manifest_of_another_model(models: Path, made: Path) -> None:
    refused(invoke(models / "other.onnx", "--check", made), 3, "another model", "one.onnx", "other.onnx")
    shutil.copy(models / "other" / "manifest.json", made)
    refused(invoke(models / "other.onnx", "--check", made), 3, "is not the file that", "manifest.json")
    with pytest.raises(ModelError, match="is not the file that"):
        ckplan.open_artifacts(made)


@pytest.mark.parametrize("name", ["manifest.json", "training.onnx", "evaluation.onnx", "checkpoint.safetensors"])
def test_a_missing_file(models: Path, made: Path, name: str) -> None:
    (made / name).unlink()
    refused(invoke(models / "one.onnx", "--check", made), 3, name, "cannot be read", "ckplan artifacts")


def test_a_missing_model(made: Path) -> None:
    refused(invoke(made / "none.onnx", "--check", made), 3, "none.onnx", "cannot be read")


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"schema": 1}',
        "nothing",
        '{"schema": 1, "files": {"training": "x"}, "model": {}}',
        "[" * 10_000,
    ],
)
def test_a_damaged_manifest(models: Path, made: Path, text: str) -> None:
    (made / "manifest.json").write_text(text)
    refused(invoke(models / "one.onnx", "--check", made), 3, "manifest.json")


def test_a_manifest_does_not_lead_elsewhere(made: Path) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    manifest["files"]["training"]["name"] = "../one.onnx"
    (made / "manifest.json").write_text(json.dumps(manifest))
    with pytest.raises(ModelError, match="not a manifest"):
        ckplan.open_artifacts(made)


def test_a_manifest_of_a_later_version(made: Path) -> None:
    manifest = json.loads((made / "manifest.json").read_text())
    (made / "manifest.json").write_text(json.dumps({**manifest, "schema": 2}))
    with pytest.raises(ModelError, match="schema 2"):
        ckplan.open_artifacts(made)


def test_an_earlier_run_is_replaced_only_with_force(models: Path, made: Path) -> None:
    size = ("--dim", "batch=8")
    refused(invoke(models / "one.onnx", "-o", made, *size), 2, "--force")
    assert ckplan.open_artifacts(made).manifest["batch"][0]["shape"][0] == 4
    result = invoke(models / "one.onnx", "-o", made, "--force", *size)
    assert result.exit_code == 0, result.stderr
    assert ckplan.open_artifacts(made).manifest["batch"][0]["shape"][0] == 8


def test_a_folder_of_somebody_else_is_left_alone(models: Path, made: Path) -> None:
    (made / "thesis.tex").touch()
    refused(invoke(models / "one.onnx", "-o", made, "--force"), 2, "thesis.tex")
    assert (made / "thesis.tex").exists()
    refused(invoke(models / "one.onnx", "-o", models / "one.onnx"), 2, "not a directory")
    refused(invoke(models / "one.onnx", "-o", models / "none" / "made"), 2, "does not exist")


def test_nothing_is_half_written(models: Path, made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(making, "write_checkpoint", full)
    before = {file.name: file.read_bytes() for file in made.iterdir()}
    for folder in (made, made.parent / "new"):
        with pytest.raises(EnvironmentUnavailableError, match="No space left"):
            ckplan.artifacts(models / "one.onnx", folder, dims={"batch": 8}, force=True)
    assert {file.name: file.read_bytes() for file in made.iterdir()} == before
    assert [file.name for file in made.parent.iterdir()] == ["one"]


def test_one_place_is_named(models: Path, made: Path) -> None:
    refused(invoke(models / "one.onnx"), 2, "-o DIR", "--check DIR")
    refused(invoke(models / "one.onnx", "-o", made, "--check", made), 2, "-o DIR", "--check DIR")


def test_what_a_check_would_ignore_is_refused(models: Path, made: Path) -> None:
    asked = ("--budget", "40%", "--optimizer", "sgd", "--dim", "batch=3", "--force")
    refused(
        invoke(models / "one.onnx", "--check", made, *asked),
        2,
        "`--check` looks at DIR as it is",
        "`--budget`, ",
        "`--optimizer`",
        "`--dim`",
        "`--force`",
        "leave out",
    )


def test_json_is_the_manifest(models: Path, tmp_path: Path) -> None:
    result = invoke(models / "one.onnx", "-o", tmp_path / "made", "--dim", "batch=4", "--json")
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    assert told["manifest"] == json.loads((tmp_path / "made" / "manifest.json").read_text())


def test_what_is_to_be_known_of_a_plan_is_told(models: Path, tmp_path: Path) -> None:
    words = ("-o", tmp_path / "made", "--dim", "batch=4", "--of", "arena", "--budget", "100%", "--json")
    result = invoke(models / "one.onnx", *words)
    assert result.exit_code == 0, result.stderr
    (note,) = [note for note in json.loads(result.stdout)["notes"] if note.startswith("onnxruntime's arena holds")]
    assert f"note: {note}" in result.stderr.splitlines()


def test_options_are_judged_as_elsewhere(models: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no option"):
        ckplan.artifacts(models / "one.onnx", tmp_path / "made", colour="red")

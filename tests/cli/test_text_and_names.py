"""Models in text, and names of files that not every program takes: read, or refused in one line of our own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest
from click.testing import CliRunner

import ckplan
from ckplan.cli import cli
from ckplan.display import file_name
from ckplan.errors import ModelError, UsageError
from tests.cli.conftest import write_model


def ckplan_on(*arguments: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "ckplan", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize(("suffix", "format"), [("json", "json"), ("textproto", "textproto"), ("onnxtxt", "onnxtxt")])
def test_a_model_in_text_is_read_without_a_word_of_others(tmp_path: Path, suffix: str, format: str) -> None:
    written = write_model(tmp_path / "model.onnx", layers=2)
    text = tmp_path / f"model.{suffix}"
    onnx.save(onnx.load(written), text, format=format)
    done = ckplan_on("analyze", text, "--strategy", "none", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    done = ckplan_on("measure", text, "--quiet")
    assert done.returncode == 3
    assert done.stderr.startswith(
        f"ckplan: error: model.{suffix} is a model in text, and onnxruntime runs only those in"
    )


@pytest.mark.parametrize("command", ["grad", "rewrite", "fit", "export-weights"])
def test_no_model_in_binary_gets_a_name_by_which_it_would_be_read_as_text(tmp_path: Path, command: str) -> None:
    """onnx reads it by its name: what was written could not be read again."""
    model, output = str(write_model(tmp_path / "model.onnx")), str(tmp_path / "out.json")
    rest = {"fit": ["--memory", "1GiB"], "export-weights": [model]}.get(command, [])
    done = CliRunner().invoke(cli, [command, model, *rest, "-o", output])
    assert done.exit_code == 2
    assert "out.json would be read as text" in done.stderr
    with pytest.raises(UsageError, match=r"let its name end with \.onnx"):
        ckplan.rewrite(model, output=output)
    assert [path.name for path in tmp_path.iterdir()] == ["model.onnx"]


@pytest.mark.skipif(sys.platform != "linux", reason="names of files are bytes on Linux alone")
def test_a_name_that_is_no_text(tmp_path: Path) -> None:
    """onnxruntime takes names in UTF-8 only, and its binding names the types of all its arguments of others."""
    odd = Path(os.fsdecode(bytes(tmp_path) + b"/odd\xff.onnx"))
    odd.write_bytes(write_model(tmp_path / "model.onnx", layers=2).read_bytes())
    done = ckplan_on("rewrite", odd, "-o", tmp_path / "out.onnx", "--verify", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")
    done = ckplan_on("measure", odd, "--quiet")
    assert done.returncode == 3
    assert done.stderr == (
        "ckplan: error: onnxruntime reads no file whose path is not in UTF-8, as that of 'odd\\udcff.onnx'; rename it\n"
    )
    with pytest.raises(ModelError, match="not in UTF-8"):
        ckplan.verify(odd, odd)


def test_a_name_that_leaves_no_room_for_another_word(tmp_path: Path) -> None:
    long = write_model(tmp_path / f"{'x' * 250}.onnx", layers=2)
    done = ckplan_on("rewrite", long, "-o", tmp_path / "out.onnx", "--verify", "--quiet")
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("called", "name"),
    [
        ("bert-base v1.2", "bert-base v1.2"),
        ("a/b:\0c", "a_b__c"),
        ("größe 批", "größe 批"),
        ("", "model"),
        (" ", "model"),
    ],
)
def test_what_a_model_is_called_begins_the_name_of_a_file(called: str, name: str) -> None:
    assert file_name(called) == name


def test_a_graph_of_any_name_is_run(tmp_path: Path) -> None:
    model = onnx.load(write_model(tmp_path / "model.onnx", layers=2))
    outputs = set()
    for name in ("a" * 300, "a\0b", "\udcff".encode("utf-8", "replace").decode(), "x/y"):
        model.graph.name = name
        found = ckplan.measure(model, dims={"batch": 2}, heap=False, runs=1)
        outputs.add(found.peak_activations)
    assert len(outputs) == 1
    assert np.isfinite(outputs.pop() or np.nan)

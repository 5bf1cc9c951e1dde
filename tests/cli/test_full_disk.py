"""A disk that is full, of temporary files or of results, is an error of the environment and leaves nothing behind."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.cli.conftest import write_model

GPT = Path(__file__).parents[2] / "sample_models" / "gpt_tiny.onnx"
MOUNTED = 'mount -t tmpfs -o size=300k none "$1" && shift && exec "$@"'


def full_disk(folder: Path, *command: str) -> subprocess.CompletedProcess[str]:
    """Run a command where a folder is a file system of 300 KiB; skips where nobody may mount one."""
    unshare = shutil.which("unshare")
    apart = [str(unshare), "--user", "--map-root-user", "--mount", "sh", "-c", MOUNTED, "sh", str(folder)]
    if unshare is None or subprocess.run([*apart, "true"], capture_output=True).returncode:
        pytest.skip("needs a user namespace to mount a small file system in")
    listed = 'TMPDIR="${SMALL:-$TMPDIR}" "$@"; code=$?; ls -A "$PLACE" >&2; exit $code'
    environment = {"PLACE": str(folder), "PATH": "/usr/bin:/bin", "PYTHONPATH": str(Path(__file__).parents[2])}
    if not any(word.startswith(str(folder)) for word in command):
        environment["SMALL"] = str(folder)
    return subprocess.run(
        [*apart, "sh", "-c", listed, "sh", sys.executable, "-m", "ckplan", *command],
        env=environment,
        capture_output=True,
        text=True,
    )


def test_no_room_for_the_result(tmp_path: Path) -> None:
    small, model = tmp_path / "small", write_model(tmp_path / "model.onnx", width=256)  # 1.5 MiB of weights
    small.mkdir()
    done = full_disk(small, "grad", str(model), "-o", str(small / "grad.onnx"))
    assert done.returncode == 5, done.stderr
    # Behind the last line what is left in the folder would be listed.
    assert re.fullmatch(r".*no space left to write .*grad\.onnx; .* or write elsewhere\n", done.stderr, re.DOTALL)


def test_no_room_for_the_files_of_a_loop(tmp_path: Path) -> None:
    """What does not fit is told by the name that it would have, not by that in the hidden folder."""
    small = tmp_path / "small"
    small.mkdir()
    done = full_disk(small, "artifacts", str(GPT), "-o", str(small / "loop"))
    assert done.returncode == 5, done.stderr
    assert re.fullmatch(r".*no space left to write .*/small/loop/training\.onnx; .*\n", done.stderr, re.DOTALL)


def test_no_room_for_the_demo(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    done = full_disk(small, "demo", str(small / "shown"))
    assert done.returncode == 5, done.stderr
    assert re.fullmatch(r".*no space left to write .*/small/shown/gpt\.onnx; .*\n", done.stderr, re.DOTALL)


def test_no_room_for_checkpoints(tmp_path: Path) -> None:
    """The folders that were made for them go again."""
    small, model = tmp_path / "small", write_model(tmp_path / "model.onnx", width=256)
    small.mkdir()
    data = np.ones((4, 256), np.float32)
    np.savez(tmp_path / "data.npz", x=data, target=data)
    words = ("grad", str(model), "-o", str(tmp_path / "step.onnx"), "--optimizer", "sgd", "--dim", "batch=4")
    subprocess.run([sys.executable, "-m", "ckplan", *words], check=True, capture_output=True)
    folder = str(small / "new" / "run")
    done = full_disk(
        small, "train", str(tmp_path / "step.onnx"), "--data", str(tmp_path / "data.npz"), "--checkpoints", folder
    )
    assert done.returncode == 5, done.stderr
    assert re.fullmatch(r".*cannot write .*/new/run/step-00000001\.safetensors: .*whole\n", done.stderr, re.DOTALL)


def test_no_room_for_temporary_files(tmp_path: Path) -> None:
    small, model = tmp_path / "small", write_model(tmp_path / "model.onnx", width=256)
    small.mkdir()
    result = tmp_path / "out.onnx"
    done = full_disk(small, "rewrite", str(model), "-o", str(result), "--verify", "--device", "cpu")
    assert done.returncode == 5, done.stderr
    assert re.fullmatch(r".*no space left to write .*, or set TMPDIR to another folder\n", done.stderr, re.DOTALL)
    onnx.checker.check_model(result)  # was written before it was to be run


@pytest.mark.parametrize("command", ["grad", "rewrite"])
def test_files_that_may_not_be_so_large(command: str, tmp_path: Path) -> None:
    model = write_model(tmp_path / "model.onnx", width=256)
    done = subprocess.run(
        ["sh", "-c", 'ulimit -f 100; exec "$@"', "sh", sys.executable, "-m", "ckplan", command, str(model), "-q",
         "-o", str(tmp_path / "out.onnx")],
        capture_output=True,
        text=True,
    )  # fmt: skip
    assert done.returncode == 5
    assert re.fullmatch(
        r"ckplan: error: .*File too large; let files be larger with `ulimit -f unlimited`\n", done.stderr
    )
    assert [file.name for file in tmp_path.iterdir()] == ["model.onnx"]

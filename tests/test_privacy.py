"""Nothing leaves the machine, and no file is written but what the documentation names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.conftest import write_model


def surroundings(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home and temporary directory, and no word on telemetry."""
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    kept = {
        name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    }
    return {**kept, "HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}


def files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def test_running_a_model_leaves_no_file(tmp_path: Path) -> None:
    environment = surroundings(tmp_path)
    model = write_model(tmp_path / "model.onnx")
    command = [sys.executable, "-m", "ckplan", "measure", str(model), "--device", "cpu", "--runs", "1", "--quiet"]
    subprocess.run(command, env=environment, check=True, capture_output=True)
    # Without the variable there would be a database in the cache and `.ses` in the temporary directory.
    assert files(tmp_path) == [model]


def test_whoever_wants_telemetry_keeps_it() -> None:
    told = "import os, ckplan; print(os.environ['ORT_DISABLE_TELEMETRY'])"
    for given, expected in ((None, "1"), ("0", "0")):
        environment = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
        environment |= {"ORT_DISABLE_TELEMETRY": given} if given else {}
        done = subprocess.run([sys.executable, "-c", told], env=environment, check=True, capture_output=True, text=True)
        assert done.stdout.strip() == expected


WRITING = re.compile(
    r"\b(?:mkdir|mkdirat|creat|link|linkat|symlink|symlinkat|rename|renameat\d?)\(|O_CREAT|O_WRONLY|O_RDWR"
)


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_a_trace_shows_no_look_up_and_no_other_file(tmp_path: Path) -> None:
    environment = surroundings(tmp_path)
    model, output, trace = write_model(tmp_path / "model.onnx"), tmp_path / "out" / "planned.onnx", tmp_path / "trace"
    output.parent.mkdir()
    options = ["--verify", "--device", "cpu", "--strategy", "sqrt", "--cost", "measured", "--quiet"]
    command = [sys.executable, "-B", "-m", "ckplan", "rewrite", str(model), "-o", str(output), *options]
    calls = "trace=%network,open,openat,creat,mkdir,mkdirat,link,linkat,symlink,symlinkat,rename,renameat,renameat2"
    traced = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "4096", "-o", str(trace), "-e", calls, *command]
    subprocess.run(traced, env=environment, check=True, capture_output=True)
    text = trace.read_text(encoding="utf-8", errors="replace")
    assert not re.findall(r"(?:socket|connect|send\w+)\(.*", text)
    homes = [tmp_path / "home" / ".cache", tmp_path / "home" / ".cache" / "ckplan"]
    allowed = (f"{tmp_path}/out/", f"{tmp_path}/temporary/", f"{homes[1]}/", "/dev/")
    written = 0
    for line in text.splitlines():
        if WRITING.search(line) and " = -1 " not in line:
            for name in re.findall(r'"([^"]*)"', line):
                assert name.startswith(allowed) or Path(name) in homes, line
                written += 1
    assert written > 5
    assert {file.parent for file in files(tmp_path / "home")} == {homes[1]}
    assert not files(tmp_path / "temporary")
    assert files(tmp_path / "out") == [output]

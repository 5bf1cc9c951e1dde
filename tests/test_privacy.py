"""Nothing leaves the machine, and no file is written but what the documentation names."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import click
import numpy as np
import pytest

from ckplan.cli import cli
from tests.cli.conftest import write_model


def surroundings(tmp_path: Path) -> dict[str, str]:
    """An environment with an empty home and temporary directory, and no word on telemetry."""
    for name in ("home", "temporary"):
        (tmp_path / name).mkdir()
    kept = {
        name: value for name, value in os.environ.items() if name not in ("ORT_DISABLE_TELEMETRY", "XDG_CACHE_HOME")
    }
    # Where Python keeps its bytecode is not ckplan's doing.
    folders = {"HOME": str(tmp_path / "home"), "TMPDIR": str(tmp_path / "temporary")}
    return {**kept, **folders, "PYTHONDONTWRITEBYTECODE": "1"}


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
CALLS = "trace=%network,open,openat,creat,mkdir,mkdirat,link,linkat,symlink,symlinkat,rename,renameat,renameat2"
NETWORK = re.compile(r"\b(?:socket|connect|bind|send\w*|recv\w+)\(.*")
needs_strace = pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")


def traced(tmp_path: Path, command: Sequence[str], allowed: Sequence[str]) -> int:
    """Run a command under strace with an empty home; return how many files and folders it wrote.

    Args:
        tmp_path: with a folder ``out`` to write into.
        command: what to run.
        allowed: beginnings of the paths that may be written, besides the temporary directory and the cache of costs.
    """
    environment, trace = surroundings(tmp_path), tmp_path / "trace"
    told = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "4096", "-o", str(trace), "-e", CALLS, *command]
    done = subprocess.run(told, env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    text = trace.read_text(encoding="utf-8", errors="replace")
    # What comes in by the pair of sockets that tells of signals is no network.
    found = [line for line in NETWORK.findall(text) if not re.match(r"recvfrom\(\d+, (?:0x|\"|\)| <)", line)]
    assert not found
    homes = [tmp_path / "home" / ".cache", tmp_path / "home" / ".cache" / "ckplan"]
    beginnings = (*allowed, f"{tmp_path}/temporary/", f"{homes[1]}/", "/dev/")
    written = 0
    for line in text.splitlines():
        if WRITING.search(line) and " = -1 " not in line:
            for name in re.findall(r'"([^"]*)"', line):
                path = os.path.normpath(tmp_path / name)
                assert path.startswith(beginnings) or Path(path) in homes, line
                written += 1
    assert not files(tmp_path / "temporary")
    assert {file.parent for file in files(tmp_path / "home")} <= {homes[1]}
    return written


@needs_strace
def test_a_trace_shows_no_look_up_and_no_other_file(tmp_path: Path) -> None:
    model, output = write_model(tmp_path / "model.onnx"), tmp_path / "out" / "planned.onnx"
    output.parent.mkdir()
    options = ["--verify", "--device", "cpu", "--strategy", "sqrt", "--cost", "measured", "--quiet"]
    command = [sys.executable, "-m", "ckplan", "rewrite", str(model), "-o", str(output), *options]
    assert traced(tmp_path, command, [f"{tmp_path}/out/"]) > 5
    assert files(tmp_path / "home")
    assert files(tmp_path / "out") == [output]


EVERY = (
    "analyze model.onnx --html out/analysis.html",
    "grad model.onnx -o out/grad.onnx",
    "plan model.onnx -o out/plan.json --strategy sqrt",
    "rewrite model.onnx -o out/planned.onnx --plan out/plan.json --html out/planned.html",
    "artifacts model.onnx -o out/parts --strategy sqrt",
    "train out/grad.onnx --data data.npz --checkpoints out/trained --optimizer sgd",
    "export-weights out/trained model.onnx -o out/trained.onnx",
    "pareto model.onnx --strategy sqrt -o out/pareto.svg",
    "explain model.onnx y1 --strategy sqrt",
    "report model.onnx -o out/report.html --strategy sqrt --verify --device cpu",
    "measure out/planned.onnx --device cpu --runs 1 --trace out/trace.json --csv out/table.csv",
    "measure out/planned.onnx --device cpu --bisect",
    "verify out/grad.onnx out/planned.onnx --device cpu --report junit=out/verified.xml",
    "compare model.onnx model.onnx --save-baseline out/baseline.json --markdown out/compared.md",
    "fit model.onnx -o out/fit.onnx --memory 12MiB --strategy none",
    "strategies",
    "ops",
    "doctor",
    "demo out/demo",
)
IN_ONE_PROCESS = """
import sys
from ckplan.cli import cli
from ckplan.cli.commands import demo
demo._BATCH = 1  # the same calls, sooner
for line in sys.argv[1:]:
    try:
        cli.main(line.split(), prog_name="ckplan")
    except SystemExit as ended:
        if ended.code:
            sys.exit(f"{line}: {ended.code}")
"""


@needs_strace
def test_no_command_looks_anything_up_or_writes_elsewhere(tmp_path: Path) -> None:
    write_model(tmp_path / "model.onnx", layers=2)
    np.savez(tmp_path / "data.npz", x=np.ones((16, 16), np.float32), target=np.ones((16, 16), np.float32))
    (tmp_path / "out").mkdir()
    assert {line.split()[0] for line in EVERY} == set(cli.list_commands(click.Context(cli)))
    command = [sys.executable, "-c", IN_ONE_PROCESS, *EVERY]
    assert traced(tmp_path, command, [f"{tmp_path}/out/"]) > 30

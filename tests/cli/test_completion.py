"""What the shell completes: commands, names of strategies, and their options, the way bash breaks words."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from ckplan.cli import cli
from ckplan.cli.terminal.completion import Bash
from ckplan.planner.strategies import STRATEGIES


@pytest.mark.parametrize(
    ("typed", "offered"),
    [
        (["rewr"], ["rewrite"]),
        (["rewrite", "m.onnx", "--strategy", "se"], ["segments", "search"]),
        (["rewrite", "m.onnx", "--of", ""], ["activations", "arena", "total"]),
        (["rewrite", "m.onnx", "--strategy", ""], [kind.name for kind in STRATEGIES]),
        (["rewrite", "m.onnx", "--strategy", "="], [kind.name for kind in STRATEGIES]),
        (["rewrite", "m.onnx", "--strategy", "=", "mem"], ["memory"]),
        (["plan", "m.onnx", "--strategy", "segments", ":"], ["checkpoints=", "reserved=", "no_recompute="]),
        (["explain", "m.onnx", "y", "--strategy", "auto", ":", "ste"], ["steps="]),
        (["rewrite", "m.onnx", "--strategy", "auto", ":", "steps", "=", "3,se"], ["3,seconds=", "3,seed="]),
        (["analyze", "m.onnx", "--strategy", "no_such", ":"], []),
        (["rewrite", "m.onnx", "--optimizer", "adamw", ":", "beta"], ["beta1=", "beta2="]),
        (["train", "step.onnx", "--schedule", "cosine", ":"], ["warmup=", "final="]),
    ],
    ids=lambda value: " ".join(value),
)
def test_bash_is_offered(typed: list[str], offered: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COMP_WORDS", " ".join(["ckplan", *typed]))
    monkeypatch.setenv("COMP_CWORD", str(len(typed)))
    lines = Bash(cli, {}, "ckplan", "_CKPLAN_COMPLETE").complete().splitlines()
    assert [line.removeprefix("plain,") for line in lines] == offered


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_script_for_each_shell(shell: str, tmp_path: Path) -> None:
    if shell == "bash" and shutil.which("bash") is None:
        pytest.skip("bash is not installed, and click asks it for its version")
    command = "import sys; from ckplan.cli import main; sys.argv = ['ckplan']; main()"
    done = subprocess.run(
        [sys.executable, "-c", command],
        env={**os.environ, "_CKPLAN_COMPLETE": f"{shell}_source"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert f"_CKPLAN_COMPLETE={shell}_complete" in done.stdout
    if shell == "bash":
        assert "compopt -o nospace" in done.stdout
        script = tmp_path / "script"
        script.write_text(done.stdout)
        subprocess.run(["bash", "-n", script], check=True, timeout=60)

"""The action, the workflows and the examples call ``ckplan compare`` as it is."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import textwrap
from pathlib import Path

import pytest

from ckplan.cli import cli

ROOT = Path(__file__).resolve().parents[2]
ACTION = (ROOT / "action.yml").read_text(encoding="utf-8")
CALLERS = [".ci/run", "examples/ci/github.yml", "examples/ci/gitlab.yml", "action.yml", "ckplan.toml"]


def scripts(text: str) -> list[str]:
    """The blocks of shell in a composite action."""
    return [textwrap.dedent(found) for found in re.findall(r"^ {6}run: \|\n((?: {8}.*\n?)+)", text, re.MULTILINE)]


@pytest.mark.parametrize("name", CALLERS)
def test_options_are_those_of_the_command(name: str) -> None:
    text = (ROOT / name).read_text(encoding="utf-8").replace("\\\n", " ")
    calls = re.findall(r"\bckplan\"? compare\b([^`\n]*)", text)
    assert calls
    flags = {flag for parameter in cli.commands["compare"].params for flag in parameter.opts}
    assert {word for call in calls for word in re.findall(r"--[a-z-]+", call)} <= flags


def test_text_of_a_workflow_does_not_become_a_part_of_the_script() -> None:
    assert len(scripts(ACTION)) == 2
    assert not [script for script in scripts(ACTION) if "${{" in script]


@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
@pytest.mark.parametrize(
    ("inputs", "arguments"),
    [
        ({}, []),
        ({"BASE": "memory.json", "HEAD": "my net.onnx"}, ["memory.json", "my net.onnx"]),
        ({"OPTIONS": "--dim n=2\n--strategy memory\n"}, ["--dim", "n=2", "--strategy", "memory"]),  # a YAML block
        ({"CONFIG": "a b.toml", "BUDGET": "1 GiB"}, ["--config", "a b.toml", "--budget", "1 GiB"]),
        (
            {"BASE": "$(touch owned)", "MAX_REGRESSION": "3%; touch owned", "OPTIONS": "--dim n=2 *  `touch owned`"},
            ["$(touch owned)", "--max-regression", "3%; touch owned", "--dim", "n=2", "*", "`touch", "owned`"],
        ),
    ],
)
def test_the_action_hands_its_inputs_on(inputs: dict[str, str], arguments: list[str], tmp_path: Path) -> None:
    command = tmp_path / "ckplan" / "bin" / "ckplan"
    command.parent.mkdir(parents=True)
    command.write_text('#!/bin/sh\nprintf "%s\\n" "$@" > "$RUNNER_TEMP/called"\nexit 1\n')
    command.chmod(0o755)
    names = ("BASE", "HEAD", "CONFIG", "MAX_REGRESSION", "BUDGET", "OPTIONS")
    output = tmp_path / "output"
    environment = {
        "PATH": os.environ["PATH"],
        "RUNNER_TEMP": str(tmp_path),
        "GITHUB_OUTPUT": str(output),
        **{name: inputs.get(name, "") for name in names},
    }
    shell = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", scripts(ACTION)[1]]
    done = subprocess.run(shell, env=environment, cwd=tmp_path, timeout=60, check=False)
    assert done.returncode == 1, "the job fails as the command does"
    markdown, junit = tmp_path / "ckplan-compare.md", tmp_path / "ckplan-compare.xml"
    called = (tmp_path / "called").read_text().splitlines()
    assert called == ["compare", *arguments, "--markdown", str(markdown), "--junit", str(junit), "--force"]
    assert output.read_text() == f"markdown={markdown}\njunit={junit}\n"
    assert not (tmp_path / "owned").exists()

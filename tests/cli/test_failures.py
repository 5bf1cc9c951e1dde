"""Every failure is one line on stderr and the exit code that the documentation promises."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from ckplan import errors
from ckplan.cli import cli
from ckplan.cli.app import App, exit_code_of
from ckplan.cli.options import talk_options
from ckplan.cli.terminal.streams import Settings
from tests.cli.conftest import write_model


def raising(error: BaseException) -> Callable[[], Any]:
    def run() -> Any:
        raise error

    return run


@pytest.mark.parametrize(
    ("error", "code", "line"),
    [
        (errors.CheckFailedError("outputs differ"), 1, "outputs differ"),
        (errors.UsageError("no such output `z`", "choose one of x, y"), 2, "no such output `z`; choose one of x, y"),
        (errors.ModelError("m.onnx is damaged"), 3, "m.onnx is damaged"),
        (
            errors.UnsupportedOperatorsError([("Foo 'a'", "is not known")]),
            3,
            "no gradient for 1 node(s): Foo 'a' (is not known)",
        ),
        (errors.InfeasibleError("budget too small"), 4, "budget too small"),
        (errors.EnvironmentUnavailableError("no CUDA"), 5, "no CUDA"),
        (MemoryError(), 5, "out of memory"),
        (
            OSError(28, "No space left on device", "out.onnx"),
            5,
            "No space left on device: out.onnx; free some space, or set TMPDIR to another folder",
        ),
        (
            OSError(errno.ENAMETOOLONG, "File name too long", "x.onnx"),
            5,
            "File name too long: x.onnx; give a shorter name",
        ),
        (
            ModuleNotFoundError("No module named 'onnx_ir'", name="onnx_ir"),
            5,
            "Python package onnx_ir is not installed; install ckplan again with what it needs",
        ),
        (click.UsageError("No such option: --nope"), 2, "No such option: --nope"),
        (ValueError("a\nb"), 3, "ValueError: a b; this is a bug; re-run with --debug and report what it shows"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else None,
)
def test_a_failure_is_one_line(error: Exception, code: int, line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(raising(error), Settings()) == code
    said = capsys.readouterr()
    assert said.err == f"ckplan: error: {line}\n"
    assert said.out == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt(), click.Abort()])
def test_an_interrupt_is_quiet(error: BaseException, capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(raising(error), Settings()) == 130
    assert capsys.readouterr().err == ""


def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str]) -> None:
    assert exit_code_of(raising(ValueError("odd")), Settings(debug=True)) == 3
    said = capsys.readouterr().err
    assert "Traceback (most recent call last)" in said
    assert said.endswith("ckplan: error: ValueError: odd\n")


def test_success_has_exit_code_0() -> None:
    assert exit_code_of(lambda: None, Settings()) == 0
    assert exit_code_of(lambda: 7, Settings()) == 7


def test_options_reach_the_handler() -> None:
    @click.group(cls=App)
    def group() -> None: ...

    @group.command()
    @talk_options
    def fails() -> None:
        raise ValueError("odd")

    plain = CliRunner().invoke(group, ["fails"])
    assert plain.exit_code == 3
    assert "Traceback" not in plain.stderr
    assert "Traceback" in CliRunner().invoke(group, ["fails", "--debug"]).stderr


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["nope"], "No such command 'nope'"),
        (["analyze"], "Missing argument 'MODEL'; see `ckplan analyze --help`"),
        (["rewrite", "m.onnx"], "Missing option '-o' / '--output'; see `ckplan rewrite --help`"),
        (["analyze", "m.onnx", "--dim", "batch"], "'batch' is not NAME=N"),
        (["analyze", "m.onnx", "--shape", "x"], "'x' is not INPUT=N,N,...; see `ckplan analyze --help`"),
        (["analyze", "m.onnx", "--device", "cpu"], "No such option"),
    ],
)
def test_wrong_usage_points_to_the_help(arguments: list[str], said: str) -> None:
    result = CliRunner().invoke(cli, arguments, prog_name="ckplan")
    assert result.exit_code == 2
    assert said in result.stderr
    assert len(result.stderr.splitlines()) == 1
    assert result.stdout == ""


def test_no_command_shows_the_help_as_wrong_usage() -> None:
    result = CliRunner().invoke(cli, [], prog_name="ckplan")
    assert result.exit_code == 2
    assert "Commands:" in result.output


@pytest.mark.parametrize(
    ("arguments", "environment"),
    [
        (["ops", "--json"], {}),
        (["--help"], {}),
        (["--version"], {}),
        (["plan", "--help"], {}),
        ([], {"_CKPLAN_COMPLETE": "bash_source"}),
    ],
)
def test_a_reader_that_goes_away_is_no_error(arguments: list[str], environment: dict[str, str]) -> None:
    process = subprocess.Popen(
        [sys.executable, "-c", "from ckplan.cli import cli; cli(prog_name='ckplan')", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == ""
    assert process.wait(60) == 141


@pytest.mark.skipif(sys.platform == "win32", reason="streams are closed by a shell of POSIX")
@pytest.mark.parametrize("closed", [">&-", "2>&-", "<&-", ">&- 2>&- <&-"])
def test_closed_streams_are_led_nowhere(closed: str) -> None:
    command = f'"{sys.executable}" -m ckplan ops {closed}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stderr == ""


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("asked", ["ops", "ops --json", "ops --help", "strategies -h", "--help", "--version", ""])
def test_an_answer_that_finds_no_room_is_one_line(asked: str) -> None:
    completing = {} if asked else {"_CKPLAN_COMPLETE": "zsh_source"}
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-c", "from ckplan.cli import main; main()", *asked.split()]
        environment = os.environ | completing
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, timeout=60, env=environment)
    assert done.stderr == "ckplan: error: cannot write to stdout: No space left on device; send it elsewhere\n"
    assert done.returncode == 5


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("asked", ["analyze missing.onnx --json", ""])
@pytest.mark.parametrize("gone", ["> /dev/full", "2> /dev/full", "> /dev/full 2>&1", "| true"])
def test_a_failure_that_nobody_can_be_told_keeps_its_exit_code(asked: str, gone: str) -> None:
    """What it says with ``--json`` may find no room, or no reader, as well."""
    command = f'{{ "{sys.executable}" -m ckplan {asked}; echo "exit code $?" >&3; }} 3>&2 {gone}'
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60)
    told = done.stderr.splitlines()
    assert told[-1] == f"exit code {3 if asked else 2}"
    assert "Traceback" not in done.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize(("name", "code"), [("model.onnx", 0), ("missing.onnx", 3)])
def test_messages_that_find_no_room_are_missed(tmp_path: Path, name: str, code: int, unbuffered: str) -> None:
    environment = os.environ | {"PYTHONUNBUFFERED": unbuffered}
    write_model(tmp_path / "model.onnx")
    with Path("/dev/full").open("w") as full:
        command = [sys.executable, "-m", "ckplan", "grad", str(tmp_path / name), "-o", str(tmp_path / "grad.onnx")]
        done = subprocess.run(command, stderr=full, stdout=subprocess.PIPE, text=True, timeout=60, env=environment)
    assert done.returncode == code
    assert (tmp_path / "grad.onnx").exists() == (code == 0)


def test_an_ascii_terminal_does_not_crash() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ckplan", "strategies"],
        capture_output=True,
        env={"PYTHONIOENCODING": "ascii", "PATH": ""},
        timeout=60,
        check=True,
    )
    assert done.stdout.isascii()

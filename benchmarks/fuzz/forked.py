"""Runs commands in forks of one process that has imported everything: a case costs what it does, not Python's start.

The same command can be run as a user runs it, too, with processes of its own.
"""

from __future__ import annotations

import contextlib
import os
import resource
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ckplan.isolation import evaluate as evaluation

GIB = 1 << 30


@dataclass(frozen=True)
class Outcome:
    """How a command ended.

    Attributes:
        code: exit code; negative for a signal.
        stdout: what it wrote.
        stderr: the same.
        seconds: how long it took.
        memory: the largest resident memory of it or of a process that it started, in bytes.
    """

    code: int
    stdout: str
    stderr: str
    seconds: float
    memory: int


class _Fork:
    """What `ckplan.isolation.evaluate` and `ckplan.meter.running.process` need of a ``subprocess.Popen``."""

    def __init__(self, module: str, arguments: Sequence[str], stderr: Any) -> None:
        asked, answered = os.pipe(), os.pipe()
        parent = os.getpid()
        self.returncode: int | None = None
        sys.stdout.flush()
        sys.stderr.flush()
        self.pid = os.fork()
        if self.pid == 0:
            code = 1
            try:
                os.dup2(asked[0], 0)
                os.dup2(answered[1], 1)
                target = os.open(os.devnull, os.O_WRONLY) if isinstance(stderr, int) else stderr.fileno()
                os.dup2(target, 2)
                # Pipes to other children would keep those from seeing the end of their input.
                os.closerange(3, 1024)
                sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
                sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
                sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
                code = _MAINS[module](parent, *arguments) or 0
            finally:
                os._exit(code)
        os.close(asked[0])
        os.close(answered[1])
        self.stdin = os.fdopen(asked[1], "w", encoding="utf-8")
        self.stdout = os.fdopen(answered[0], encoding="utf-8")

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode

    def kill(self) -> None:
        # Waiting for it is left to the thread that does so already.
        if self.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)


def _evaluator(parent: int) -> int:
    from ckplan.isolation import evaluator

    evaluator.main(parent)
    return 0


def _child(parent: int, folder: str) -> int:
    from ckplan.meter.running import child

    return child.main(parent, Path(folder))


_MAINS: dict[str, Callable[..., int | None]] = {
    "ckplan.isolation.evaluator": _evaluator,
    "ckplan.meter.running.child": _child,
}


def fork_children() -> None:
    """Let ckplan fork its processes instead of starting Python anew; for processes of this module only."""
    from ckplan.meter.running import process

    def start(module: str, *arguments: str, stderr: Any = -3) -> Any:
        return _Fork(module, arguments, stderr)

    evaluation.start = start
    process.start = start


def import_all() -> None:
    """Import what commands import, once, before the first fork."""
    import importlib
    import pkgutil

    import onnx.reference.op_run
    import onnx.reference.ops._op_list  # noqa: F401
    import onnxruntime  # noqa: F401

    import ckplan

    for module in pkgutil.walk_packages(ckplan.__path__, "ckplan."):
        if module.name != "ckplan.__main__":
            importlib.import_module(module.name)


def run_forked(arguments: Sequence[str], folder: Path, *, seconds: float = 60, memory: int = 4 * GIB) -> Outcome:
    """Run a command in a fork.

    Args:
        arguments: of the command line, the command first.
        folder: the working folder and that of temporary files.
        seconds: when it is killed.
        memory: what the process may allocate; its children have limits of their own.
    """
    started = time.monotonic()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.setsid()
            _limit(memory)
            code = _command(arguments, folder, _said_in(folder))
        finally:
            os._exit(code)
    return _ended(pid, started, folder, seconds)


def run_afresh(arguments: Sequence[str], folder: Path, *, seconds: float = 60, memory: int = 4 * GIB) -> Outcome:
    """Run a command as a user does, by ``python -m ckplan``; see `run_forked`."""
    place = folder / "temporary"
    place.mkdir(exist_ok=True)
    package_root = str(Path(__file__).resolve().parents[2])
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([package_root, *filter(None, [os.environ.get("PYTHONPATH")])]),
        "TMPDIR": str(place),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    started = time.monotonic()
    stdout, stderr = (file.open("wb") for file in _said_in(folder))
    with stdout, stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "ckplan", *arguments],
            cwd=folder,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
            start_new_session=True,
            preexec_fn=lambda: _limit(memory),
        )
    outcome = _ended(process.pid, started, folder, seconds)
    process.returncode = outcome.code  # it has been waited for
    return outcome


def _said_in(folder: Path) -> list[Path]:
    return [folder / "stdout.txt", folder / "stderr.txt"]


def _limit(memory: int) -> None:
    resource.setrlimit(resource.RLIMIT_DATA, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _ended(pid: int, started: float, folder: Path, seconds: float) -> Outcome:
    """Wait for a command that leads a session, and end whatever is left of the session."""
    status, usage = _waited(pid, seconds)
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)
    said = [file.read_text(encoding="utf-8", errors="surrogateescape") for file in _said_in(folder)]
    return Outcome(
        os.waitstatus_to_exitcode(status), said[0], said[1], time.monotonic() - started, usage.ru_maxrss * 1024
    )


def _command(arguments: Sequence[str], folder: Path, files: Sequence[Path]) -> int:
    import tempfile

    from ckplan.cli import cli

    for number, file in enumerate(files, 1):
        descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(descriptor, number)
    sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
    os.chdir(folder)
    place = folder / "temporary"
    place.mkdir(exist_ok=True)
    tempfile.tempdir = str(place)
    os.environ["XDG_CACHE_HOME"] = str(folder / "cache")
    try:
        if arguments[0] == "instance":
            _plan_instance(folder / arguments[1])
        cli.main(list(arguments), prog_name="ckplan")
    except SystemExit as error:
        code = error.code if isinstance(error.code, int) else 1
    finally:
        evaluation._end()
        sys.stdout.flush()
        sys.stderr.flush()
    return code


def _plan_instance(file: Path) -> None:
    """What a program does with a planning instance; there is no command for it."""
    from ckplan.cli.app import exit_code_of
    from ckplan.cli.terminal.streams import Settings
    from ckplan.planner.instances import load_problem
    from ckplan.planner.strategies import parse_strategy

    def plan() -> None:
        parse_strategy("sqrt").solve(load_problem(file))

    raise SystemExit(exit_code_of(plan, Settings()))


def _waited(pid: int, seconds: float) -> tuple[int, resource.struct_rusage]:
    """Wait for a process, which is killed when it takes too long."""
    descriptor = os.pidfd_open(pid)
    try:
        if not select.select([descriptor], [], [], seconds)[0]:
            os.killpg(pid, signal.SIGKILL)
    finally:
        os.close(descriptor)
    _, status, usage = os.wait4(pid, 0)
    return status, usage

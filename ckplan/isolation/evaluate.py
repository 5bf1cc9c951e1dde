"""The caller's side of the process in which onnxruntime opens graphs that come from elsewhere.

Loading a graph runs parts of it: onnxruntime folds constants, and sizes that nothing tells are learnt by a run. A graph
of a few bytes can ask for terabytes or never end. The process has a limit of memory and of time for each request, and
one that it cannot keep to costs a message. It is started when it is first needed, and serves until this process ends.
"""

from __future__ import annotations

import atexit
import json
import os
import subprocess
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from ckplan.errors import EnvironmentUnavailableError
from ckplan.isolation.folders import temporary_place
from ckplan.operators.sessions import custom_ops
from ckplan.units import format_bytes

MEMORY = 3 << 29
"""Bytes that any request may take: 1.5 GiB. What it has to read comes on top."""
SECONDS = 40.0
"""Seconds of processor time that any request may take, on the one thread that it has; large graphs get more."""
_WAITING = 10
"""How many times as long it may take on the clock: where much else runs, a process waits for most of its time."""


class EvaluationError(Exception):
    """What was asked for failed; the message is onnxruntime's, or says which limit was reached."""


class _Evaluator:
    """The process, and the two pipes to it."""

    def __init__(self) -> None:
        self.owner = os.getpid()
        self.popen = start("ckplan.isolation.evaluator")

    def ask(self, request: dict[str, Any], seconds: float) -> Any:
        assert self.popen.stdin is not None
        assert self.popen.stdout is not None
        answered, late = threading.Event(), threading.Event()

        def watch() -> None:
            began, before = time.monotonic(), self._processor_seconds()
            left = seconds
            while not answered.wait(left):
                taken = self._processor_seconds() - before
                waited = time.monotonic() - began
                left = min(seconds - taken, _WAITING * seconds - waited)
                if left <= 0:
                    late.set()
                    self.popen.kill()
                    return

        watcher = threading.Thread(target=watch, daemon=True)  # an interruption in its start must not wait for it
        try:
            watcher.start()
            with suppress(BrokenPipeError):
                self.popen.stdin.write(json.dumps(request) + "\n")
                self.popen.stdin.flush()
            answer = self.popen.stdout.readline()
        finally:
            answered.set()
        if late.is_set():
            raise EvaluationError(f"it takes more than {seconds:.0f} s")
        if not answer:
            raise EvaluationError(
                f"it ends the process that opens it, which may take {format_bytes(request['memory'])}"
            )
        return json.loads(answer)

    def _processor_seconds(self) -> float:
        """Processor time that the process has taken; 0 if it is no more, which whoever waits for it hears."""
        import psutil  # type: ignore[import-untyped,unused-ignore]

        try:
            used = psutil.Process(self.popen.pid).cpu_times()
        except psutil.Error:
            return 0.0
        return float(used.user + used.system)

    def end(self) -> None:
        self.popen.kill()
        self.popen.wait()
        for pipe in (self.popen.stdin, self.popen.stdout):
            if pipe is not None:
                with suppress(OSError):
                    pipe.close()


_lock = threading.Lock()
_running: _Evaluator | None = None


def start(module: str, *arguments: str, stderr: Any = subprocess.DEVNULL) -> subprocess.Popen[str]:
    """Start a module of ckplan in a process of its own, with pipes to its input and output.

    Args:
        module: its name; it gets this process's id as the first argument, for `ckplan.isolation.lifetime.end_with`.
        arguments: further arguments.
        stderr: where its standard error goes.
    """
    package_root = str(Path(__file__).resolve().parents[2])
    path = os.pathsep.join([package_root, *filter(None, [os.environ.get("PYTHONPATH")])])
    # Safe path: the caller's working folder may hold a file named like a library.
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONSAFEPATH": "1", "TMPDIR": str(temporary_place())}
    return subprocess.Popen(
        [sys.executable, "-m", module, str(os.getpid()), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        env=environment,
    )


def evaluate(job: str, *, memory: int = MEMORY, seconds: float = SECONDS, **request: Any) -> Any:
    """Ask the process for something.

    Args:
        job: a name that `ckplan.isolation.evaluator` knows.
        memory: bytes that it may take.
        seconds: how long it may take.
        request: what the job needs, JSON-ready.

    Raises:
        EvaluationError: onnxruntime refused, or a limit was reached.
        EnvironmentUnavailableError: onnxruntime is not installed, or a library of custom operators cannot be used.
    """
    with _lock:
        evaluator = _ready()
        try:
            answer = evaluator.ask({"job": job, "memory": memory, "custom_ops": custom_ops(), **request}, seconds)
        except BaseException:  # what it answers next would be taken for the answer to another question
            _end()
            raise
    if answer.get("missing"):
        raise EnvironmentUnavailableError(
            "this model can only be understood by opening it in onnxruntime, which is not installed",
            "pip install onnxruntime",
        )
    if "hint" in answer:
        raise EnvironmentUnavailableError(answer["error"], answer["hint"])
    if "error" in answer:
        raise EvaluationError(answer["error"])
    return answer["result"]


def _ready() -> _Evaluator:
    global _running
    if _running is not None and (_running.owner != os.getpid() or _running.popen.poll() is not None):
        if _running.owner == os.getpid():
            _end()
        _running = None
    if _running is None:
        _running = _Evaluator()
    return _running


def _end() -> None:
    global _running
    if _running is not None and _running.owner == os.getpid():
        _running.end()
    _running = None


atexit.register(_end)

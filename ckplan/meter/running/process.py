"""The parent's side of the processes that run models."""

from __future__ import annotations

import json
import operator
import re
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ckplan import errors
from ckplan.errors import CkplanError, ModelError
from ckplan.isolation.evaluate import start
from ckplan.isolation.folders import is_temporary, no_room, temporary_folder
from ckplan.meter.running.errors import RunFailedError, RunTooLongError
from ckplan.meter.running.time_limit import allowed, watched
from ckplan.operators.sessions import clean, custom_ops
from ckplan.units import format_bytes

TAIL = 8
"""Lines of a failed process's standard error that are kept."""


def run_job(job: str, request: Mapping[str, Any]) -> Any:
    """Run one job in a fresh process and return its result.

    Args:
        job: name of a module with a function ``job`` (see `ckplan.meter.running.child`).
        request: JSON-ready arguments of the job; ``path`` is the model file.

    Raises:
        ModelError: onnxruntime refused to load or run the file.
        EnvironmentUnavailableError: the device is not there.
        RunFailedError: the process ran out of memory, was killed, or crashed; as `RunTooLongError`, it was ended since
            it took too long (see `ckplan.meter.running.time_limit`).
    """
    with started(job, request) as process:
        process.finish()
        return process.result()


class Process:
    """A running job; made by `started`."""

    def __init__(self, folder: Path, popen: subprocess.Popen[str], path: str) -> None:
        self._folder = folder
        self._popen = popen
        self._path = path
        # Where a file of ours lies is nothing to anybody, and it is gone when the message is read.
        self._called = Path(path).name if is_temporary(Path(path)) else path
        self._late = False

    @property
    def pid(self) -> int:
        """Process id."""
        return self._popen.pid

    def ask(self, message: str) -> Any:
        """Send a line and wait for the answer.

        Raises:
            CkplanError: what the job died of.
        """
        assert self._popen.stdin is not None
        assert self._popen.stdout is not None
        try:
            self._popen.stdin.write(message + "\n")
            self._popen.stdin.flush()
            with watched(self._signs, self._give_up):
                answer = self._popen.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if not answer:
            self._popen.wait()
            self.result()
            raise RunFailedError(f"the process that ran `{self._called}` ended early", stderr=self._stderr())
        return json.loads(answer)

    def finish(self) -> None:
        """Close the job's input and wait for its end."""
        assert self._popen.stdin is not None
        with suppress(BrokenPipeError):
            self._popen.stdin.close()
        with watched(self._signs, self._give_up):
            self._popen.wait()

    def result(self) -> Any:
        """What the finished job returned, or its failure as an exception."""
        if (result := self._folder / "result.json").exists() and self._popen.returncode == 0:
            return json.loads(result.read_text(encoding="utf-8"))
        if (error := self._folder / "error.json").exists():
            raise self._told(json.loads(error.read_text(encoding="utf-8")))
        raise self._crashed()

    def _signs(self) -> int:
        """How much the job has told of its progress."""
        file = self._folder / "progress.jsonl"
        return file.stat().st_size if file.exists() else 0

    def _give_up(self) -> None:
        self._late = True
        self._popen.kill()

    def _stderr(self) -> tuple[str, ...]:
        text = (self._folder / "stderr.txt").read_text(encoding="utf-8", errors="replace")
        plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
        return tuple(line.strip() for line in plain.splitlines() if line.strip())[-TAIL:]

    def _reached(self) -> tuple[str, dict[str, Any]]:
        """The last stage that the job announced, and all that it had learnt by then."""
        file = self._folder / "progress.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
        learnt: dict[str, Any] = {}
        for line in lines:
            learnt |= json.loads(line)["learnt"]
        return (json.loads(lines[-1])["stage"] if lines else "the start"), learnt

    def _told(self, error: Mapping[str, Any]) -> CkplanError:
        """The exception for a failure that the job could describe itself."""
        if error["kind"] == "ckplan":
            kind: type[CkplanError] = getattr(errors, error["type"], CkplanError)
            return kind(error["message"], error["hint"])
        stage, _ = self._reached()
        reason = clean(error["message"])
        if error["kind"] == "memory":
            return self._failed(
                f"out of memory in {stage} of `{self._called}`: {reason}",
                "use a smaller batch (--dim), a smaller budget, or a machine with more memory",
            )
        if error["kind"] == "model":
            import onnx_ir as ir

            from ckplan.model.half import loading_advice  # the jobs import this module, and none of that
            from ckplan.model.validity import CHECK_IT

            running = "give the sizes that it works with (--dim, --shape), or what it reads (--inputs)"
            hint = loading_advice(reason, ir.load(self._path)) or (running if stage.endswith("run") else CHECK_IT)
            return ModelError(f"onnxruntime failed in {stage} of `{self._called}`: {reason}", hint)
        return self._failed(f"{error['type']} in {stage} of `{self._called}`: {reason}")

    def _crashed(self) -> RunFailedError:
        """The exception for a job that ended without a word."""
        stage, learnt = self._reached()
        if self._late:
            return self._failed(
                f"{stage} of `{self._called}` takes more than {allowed():g} s",
                "a model may never end; if this one does, allow it more: --run-limit SECONDS",
                RunTooLongError,
            )
        code = self._popen.returncode
        if code < 0:
            number = -code
            name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
            how = f"was killed by {name}"
        else:
            how = f"ended with exit code {code}"
        resident = f" with {format_bytes(learnt['resident'])} resident before" if learnt.get("resident") else ""
        tail = self._stderr()
        last = f"; it last wrote: {tail[-1]}" if tail else ""
        killed = code == -getattr(signal, "SIGKILL", 9)
        hint = "this is how the system ends a process when memory runs out: use a smaller batch (--dim)"
        return self._failed(
            f"the process that ran `{self._called}` {how} in {stage}{resident}{last}",
            hint if killed else "try another onnxruntime version, or --device cpu",
        )

    def _failed(self, message: str, hint: str = "", kind: type[RunFailedError] = RunFailedError) -> RunFailedError:
        """A failure, with how far the job had come and what it wrote."""
        stage, learnt = self._reached()
        return kind(message, hint, stage=stage, learnt=learnt, stderr=self._stderr())


@contextmanager
def started(job: str, request: Mapping[str, Any]) -> Iterator[Process]:
    """Start a job in a fresh process, and end it with the block, whatever happens."""
    with temporary_folder() as folder:
        try:
            asked = {"job": job, "custom_ops": custom_ops(), **request}
            (folder / "request.json").write_text(json.dumps(asked, default=operator.index), encoding="utf-8")
            with (folder / "stderr.txt").open("wb") as stderr:
                popen = start("ckplan.meter.running.child", str(folder), stderr=stderr)
        except OSError as error:
            raise no_room(error) from error
        try:
            yield Process(folder, popen, str(request.get("path", "")))
        finally:
            popen.kill()
            popen.wait()
            for pipe in (popen.stdin, popen.stdout):
                if pipe is not None:
                    with suppress(BrokenPipeError):
                        pipe.close()

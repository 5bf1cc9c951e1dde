"""Failures of a process that ran a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ckplan.errors import EnvironmentUnavailableError


class RunFailedError(EnvironmentUnavailableError):
    """The process that ran the model ended early: out of memory, killed, or crashed inside onnxruntime.

    Args:
        message: what happened, to which file, and in which stage.
        hint: the next thing to try.
        stage: the last stage that the process announced, such as ``the first run``.
        learnt: figures that it reported before it ended (resident memory, finished runs).
        stderr: the last lines of its standard error.
    """

    def __init__(
        self,
        message: str,
        hint: str = "",
        *,
        stage: str = "",
        learnt: Mapping[str, Any] | None = None,
        stderr: Sequence[str] = (),
    ) -> None:
        super().__init__(message, hint)
        self.stage = stage
        self.learnt = dict(learnt or {})
        self.stderr = tuple(stderr)


class RunTooLongError(RunFailedError):
    """The process that ran the model showed no progress for longer than it may (see `ckplan.meter.run_limit`)."""

"""Processes that run training steps on request, one for each side of a comparison."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TRAINING_PEER = Path(__file__).with_name("training_peer.py")
"""The worker of onnxruntime-training, run by an interpreter of its own as a file (``-P``), not as a module."""


class SideError(Exception):
    """A side cannot run the model."""


class Side:
    """A process that says that it is ready, and then answers each line that it reads with a line.

    Args:
        name: of the side, for messages.
        command: what is run, in the repository's folder.
        errors: the file that its standard error goes to.
        environment: variables beyond those of this process.

    Raises:
        SideError: it ended before it was ready.
    """

    def __init__(
        self, name: str, command: Sequence[str], errors: Path, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self._errors = errors
        with errors.open("w", encoding="utf-8") as stream:
            self._process = subprocess.Popen(
                command,
                cwd=ROOT,
                env={**os.environ, **(environment or {})},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stream,
                text=True,
            )
        self._answer()

    def ask(self, command: str) -> str:
        """Send a line, and return the answer.

        Raises:
            SideError: the process ended.
        """
        assert self._process.stdin is not None
        self._process.stdin.write(command + "\n")
        self._process.stdin.flush()
        return self._answer()

    def close(self) -> None:
        """End the process."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()

    def _answer(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            last = self._errors.read_text(encoding="utf-8").strip().splitlines() or ["it said nothing"]
            raise SideError(f"{self.name} ended: {last[-1]}")
        return line.strip()

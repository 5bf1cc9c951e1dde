"""Typed errors: every failure a user can cause is one line that names the culprit and the remedy.

The exit codes are part of the command line's contract and stand here so that the library and the
command line cannot disagree about them.
"""

from __future__ import annotations

import re
from typing import ClassVar

_OPTION = re.compile(r"`ckplan [^`]*`|(?<![^\s(`])--([a-z][a-z-]*)")
"""Commands that are spelt out, and options that are named alone."""
_IN_PYTHON = {
    "custom-ops": "`ckplan.use_custom_ops`",
    "dim": "`dims` (`dim` of `fit`)",
    "run-limit": "`ckplan.meter.run_limit`",
    "shape": "`shapes`",
    "time-limit": "`seconds`",
}
"""What does the same as an option, where that is no argument of its name."""


class CkplanError(Exception):
    """Base of all errors that ckplan raises on purpose.

    Messages name options as they stand on the command line. What these are in Python is a note on the exception, which
    a traceback shows.

    Args:
        message: what went wrong, naming the node, tensor, file or option, without a trailing period.
        hint: the next thing to try, as an imperative clause; shown after the message.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, hint: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if note := _in_python(str(self)):
            self.add_note(note)

    def __str__(self) -> str:
        return f"{self.message}; {self.hint}" if self.hint else self.message


class CheckFailedError(CkplanError):
    """A comparison or limit that the user asked for did not hold (exit code 1)."""

    exit_code: ClassVar[int] = 1


class UsageError(CkplanError):
    """An option or argument is wrong as given (exit code 2)."""

    exit_code: ClassVar[int] = 2


class ModelError(CkplanError):
    """The model, or another file that is read, is missing, damaged, invalid or unsupported (exit code 3).

    Other files are weights, data, checkpoints, adapters, plans, baselines, configurations and libraries. What a file
    that is in order says, and what it does not fit, is a `UsageError`.
    """

    exit_code: ClassVar[int] = 3


class UnsupportedOperatorsError(ModelError):
    """Nodes on the way from a parameter to the loss have no gradient; all of them are listed at once.

    Args:
        nodes: one ``(description, reason)`` per node, e.g. ``("ArgMax '/head/argmax'", "has no derivative")``.
        hint: see `CkplanError`.
    """

    def __init__(self, nodes: list[tuple[str, str]], hint: str = "") -> None:
        listed = ", ".join(f"{name} ({reason})" for name, reason in nodes)
        super().__init__(f"no gradient for {len(nodes)} node(s): {listed}", hint)
        self.nodes = nodes


class InfeasibleError(CkplanError):
    """No schedule can keep to the budget; the message carries the bound that proves it (exit code 4).

    Args:
        message: see `CkplanError`.
        hint: see `CkplanError`.
        least: bytes of a budget of the same kind that a file was made for, if one is known.
    """

    exit_code: ClassVar[int] = 4

    def __init__(self, message: str, hint: str = "", least: int | None = None) -> None:
        super().__init__(message, hint)
        self.least = least


class EnvironmentUnavailableError(CkplanError):
    """This machine lacks what was asked for: a device, onnxruntime, disk space (exit code 5)."""

    exit_code: ClassVar[int] = 5


def _in_python(message: str) -> str:
    """A sentence on the arguments that the options in a message are; empty where there are none."""
    options = dict.fromkeys(option[1] for option in _OPTION.finditer(message) if option[1])
    arguments = {option: f"`{option.replace('-', '_')}`" for option in options} | _IN_PYTHON
    told = ", ".join(f"--{option} is {arguments[option]}" for option in options)
    return f"in Python, {told}" if told else ""

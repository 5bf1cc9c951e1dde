"""What goes where: data to stdout, notes and progress to stderr; what comes from a model is made printable here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from ckplan.errors import EnvironmentUnavailableError

if TYPE_CHECKING:
    from ckplan.report.document import Document


@dataclass
class Settings:
    """Options that concern how a command talks, not what it does; one object per run."""

    debug: bool = False
    quiet: bool = False
    verbose: bool = False
    no_color: bool = False
    told: bool = False
    """Whether the answer is on stdout already."""
    arguments: tuple[str, ...] = ()
    """The command line as it was given, for reports that say how they were made."""


def settings() -> Settings:
    """The settings of the running command."""
    return click.get_current_context().ensure_object(Settings)


def say(line: str) -> None:
    """Write one line to stderr."""
    from ckplan.report.untrusted import printable

    _to_stderr(printable(line))


def _to_stderr(line: str) -> None:
    """Write a line that may be missed: where there is no room for it, or its reader has gone, the work goes on."""
    with suppress(OSError):
        click.echo(line, err=True)


def answer(line: str) -> None:
    """Write one line to stdout."""
    with to_stdout():
        click.echo(line)


@contextmanager
def to_stdout() -> Iterator[None]:
    """Say of what cannot be written that it is stdout, if its reader has not just gone away."""
    try:
        yield
    except BrokenPipeError:
        raise
    except OSError as error:
        reason = error.strerror or error
        raise EnvironmentUnavailableError(f"cannot write to stdout: {reason}", "send it elsewhere") from error


def annotate(command: str) -> None:
    """Write a workflow command of `ckplan.report.writers.github`, which has made it safe, to stderr."""
    _to_stderr(command)


def notes(lines: Iterable[str]) -> None:
    """Tell the user what was chosen for them, unless they asked for quiet."""
    if not settings().quiet:
        for line in lines:
            say(f"note: {line}")


def details(lines: Iterable[str]) -> None:
    """Give reasons, if the user asked for them."""
    if settings().verbose and not settings().quiet:
        for line in lines:
            say(f"detail: {line}")


def show(document: Document) -> None:
    """Print an answer to stdout; colours follow the terminal, ``--no-color``, NO_COLOR and FORCE_COLOR."""
    from rich.console import Console

    from ckplan.report.writers.terminal import text

    console = Console(highlight=False, no_color=settings().no_color or None)
    with to_stdout():
        click.echo(text(document, console), nl=False, color=True)


def show_json(data: Any) -> None:
    """Print JSON to stdout."""
    from ckplan.report.untrusted import json_text

    settings().told = True
    answer(json_text(data, indent=2))


@contextmanager
def stage(doing: str) -> Iterator[Callable[[str], None]]:
    """Show on stderr what is being done, while it is; the block gets a function to say what is next.

    What the library logs meanwhile is shown as well: behind it, or with ``--verbose`` as a line of its own.
    """
    from ckplan.cli.terminal.waiting import Waiting, listening, shown

    if settings().quiet:
        yield lambda next_doing: None
    elif settings().verbose:
        details([f"{doing} …"])
        with listening(lambda record: details([record.getMessage()])):
            yield lambda next_doing: details([f"{next_doing} …"])
    else:
        waiting = Waiting(doing)
        with shown(waiting, colour=not settings().no_color):
            yield waiting.go_on

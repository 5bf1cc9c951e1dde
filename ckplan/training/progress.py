"""A bar on stderr while a training runs, where that is a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, str], None]
"""Takes the number of steps that are done, and what is to be said beside the bar."""


@contextmanager
def bar(total: int, wanted: bool, colour: bool) -> Iterator[Advance]:
    """Show a bar.

    Args:
        total: number of steps.
        wanted: whether to show anything at all.
        colour: whether it may have colours.
    """
    if not wanted:
        yield lambda done, text: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    console = Console(stderr=True, no_color=None if colour else True)
    if not console.is_terminal:
        yield lambda done, text: None
        return
    columns = (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True) as progress:
        task = progress.add_task("", total=total)
        yield lambda done, text: progress.update(task, completed=done, description=text)

"""Answers as files, in any format that there is a writer for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.cli.output import check_apart, check_output
from ckplan.errors import CkplanError

if TYPE_CHECKING:
    from ckplan.report.document import Document


@contextmanager
def written_first() -> Iterator[Callable[[Callable[[], object]], None]]:
    """Write files before an answer is shown, which a full disk must not cost; the block shows it.

    The block gets a function that runs what writes a file. The first failure is raised when the block is over.
    """
    failures: list[CkplanError | OSError] = []

    def attempt(write: Callable[[], object]) -> None:
        try:
            write()
        except (CkplanError, OSError) as error:
            failures.append(error)

    yield attempt
    if failures:
        raise failures[0]


def check_reports(
    reports: Mapping[str, Path], force: bool, *others: Path | None, beside: Iterable[Path | None] = ()
) -> None:
    """Make sure that reports can be written once there is something to say.

    Args:
        reports: file by name of the format.
        force: whether they may be overwritten.
        others: files that the command reads, if they are given.
        beside: other files that it writes, if they are given.

    Raises:
        UsageError: there is no such format, a file exists or is one that the command reads, or two are one.
    """
    from ckplan.report.writers import writer

    for kind, path in reports.items():
        writer(kind)
        check_output(path, force, *others)
    check_apart(*beside, *reports.values())


def write_reports(document: Document, reports: Mapping[str, Path], force: bool) -> None:
    """Write an answer in each of the formats that were asked for."""
    from ckplan.model.files.saving import write_text
    from ckplan.report.writers import writer

    for kind, path in reports.items():
        write_text(writer(kind)(document), path, force=force)

"""The page that `ckplan report` and ``--html`` write."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckplan.cli.output import check_output
from ckplan.cli.terminal.streams import settings, stage
from ckplan.errors import UsageError

if TYPE_CHECKING:
    from ckplan.answers.analysis import Analysis
    from ckplan.answers.findings import Chosen
    from ckplan.answers.pareto import Pareto
    from ckplan.comparison import Comparison
    from ckplan.meter import Verification
    from ckplan.pipeline import Planned, Step


def check_page(page: Path | None, force: bool, *others: Path) -> None:
    """Make sure that a page can be written once there is something to show.

    Args:
        page: the file to write, if one is asked for.
        force: whether it may be overwritten.
        others: files that the command reads or writes.

    Raises:
        UsageError: the file is no HTML file by its name, exists, or is another file of the command.
        EnvironmentUnavailableError: its directory does not allow it.
    """
    if page is None:
        return
    if page.suffix.lower() not in (".html", ".htm"):
        raise UsageError(f"'{page}' is not the name of an HTML file", "end it in .html, the one kind that is written")
    if os.path.realpath(page) in [os.path.realpath(other) for other in others]:
        raise UsageError(f"{page} is another file of this command", "write the report to another file")
    check_output(page, force, *others)


def write_page(page: Path, force: bool, title: str, **found: Any) -> None:
    """Write the page.

    Args:
        page: the file.
        force: whether it may be overwritten.
        title: what the page is about.
        found: see `ckplan.answers.findings.Findings`.

    Raises:
        UsageError: the file exists and may not be overwritten.
        EnvironmentUnavailableError: no permission, or no space left.
    """
    from ckplan.answers.findings import Findings, environment
    from ckplan.model.files.saving import write_text
    from ckplan.report.html import render

    with stage(f"writing {page.name}"):
        verification: Verification | None = found.get("verification")
        ran = environment() if verification is None else environment(verification.new.device)
        command = shlex.join(("ckplan", *settings().arguments))
        write_text(render(Findings(title=title, command=command, environment=ran, **found)), page, force=force)


def analysis_page(page: Path, force: bool, step: Step, analysis: Analysis) -> None:
    """Write the page of an analysis."""
    found = {"contents": analysis.contents, "before": step.occupancy, "analysis": analysis}
    write_page(page, force, step.name, notes=step.notes, **found)


def plan_page(
    page: Path,
    force: bool,
    made: Planned,
    *,
    plan: Chosen,
    notes: list[str],
    analysis: Analysis | None = None,
    pareto: Pareto | None = None,
    verification: Verification | None = None,
) -> None:
    """Write the page of a plan.

    Args:
        page: the file.
        force: whether it may be overwritten.
        made: the plan and the file.
        plan: what the plan does.
        notes: what was said on the way.
        analysis: bottlenecks and the like, if they were looked for.
        pareto: the frontier, if it was looked for.
        verification: what both files did when they ran, if they did.
    """
    from ckplan.answers.analysis import contents_of

    write_page(
        page,
        force,
        made.step.name,
        notes=tuple(notes),
        contents=contents_of(made.step),
        before=made.step.reference.occupancy,
        after=made.occupancy,
        chosen=plan,
        analysis=analysis,
        pareto=pareto,
        verification=verification,
    )


def files_page(page: Path, force: bool, base: Path, new: Path, verification: Verification) -> None:
    """Write the page of two files that ran."""
    from ckplan.answers.findings import file_occupancy

    with stage("laying out memory"):
        before, why_before = file_occupancy(base)
        after, why_after = file_occupancy(new)
    notes = (*verification.base.notes, *verification.new.notes, *verification.notes, why_before, why_after)
    write_page(
        page,
        force,
        new.name,
        notes=tuple(dict.fromkeys(note for note in notes if note)),
        before=before,
        after=after,
        verification=verification,
    )


def comparison_title(found: Comparison) -> str:
    """What a page about a comparison is called: by the model, or by how many there are."""
    return found.checks[0].name if len(found.checks) == 1 else f"{len(found.checks)} models"

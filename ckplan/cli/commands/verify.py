"""``ckplan verify``: proof by running."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import click

from ckplan.cli.html import check_page, files_page
from ckplan.cli.options import (
    custom_ops_option,
    html_options,
    json_option,
    report_option,
    run_options,
    talk_options,
)
from ckplan.cli.output import refuse_idle
from ckplan.cli.proof import check, run_both
from ckplan.cli.reports import check_reports, write_reports, written_first
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import show, show_json
from ckplan.cli.values import PATH


@click.command("verify", cls=SectionedCommand, short_help="Run two training files; compare memory, time, numbers.")
@click.argument("base", type=PATH)
@click.argument("new", type=PATH)
@run_options
@custom_ops_option
@html_options
@report_option
@json_option
@talk_options
def command(
    base: Path,
    new: Path,
    device: str,
    inputs: Path | None,
    seed: int,
    page: Path | None,
    force: bool,
    reports: dict[str, Path],
    as_json: bool,
) -> None:
    """Run the training files BASE and NEW and compare their memory, time and numbers.

    Both get the same inputs. The exit code is 1 when NEW gives other outputs than BASE, or when onnxruntime undid
    its plan.
    """
    check_page(page, force, base, new)
    refuse_idle(page, *reports.values(), add="--html or --report", force=force)
    check_reports(reports, force, base, new, inputs, beside=[page])
    found = run_both(base, new, device=device, inputs=inputs, seed=seed)
    from ckplan.report import json
    from ckplan.report.documents.verifications import verification

    with written_first() as attempt:
        if page is not None:
            attempt(partial(files_page, page, force, base, new, found))
        attempt(partial(write_reports, verification(found), reports, force))
        if as_json:
            show_json(json.verification(found))
        else:
            show(verification(found))
    check(found)

"""``ckplan measure``: what one file takes when it runs."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import click

from ckplan.cli.options import (
    force_option,
    json_option,
    model_argument,
    report_option,
    run_options,
    set_option,
    shape_options,
    talk_options,
)
from ckplan.cli.output import check_output, refuse_idle
from ckplan.cli.reports import check_reports, write_reports, written_first
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import notes, show, show_json, stage
from ckplan.cli.values import OUTPUT


@click.command("measure", cls=SectionedCommand, short_help="Run any ONNX file; show its memory and time by node.")
@model_argument
@run_options
@shape_options
@set_option
@click.option("--runs", type=click.IntRange(min=1), default=5, show_default=True, help="Number of timed runs.")
@click.option(
    "--threads", type=click.IntRange(min=1), metavar="N", help="Intra-op threads. Default: onnxruntime's own choice."
)
@click.option("--trace", type=OUTPUT, metavar="OUT", help="Write a Chrome trace, for ui.perfetto.dev, to this file.")
@click.option("--csv", type=OUTPUT, metavar="OUT", help="Write a table with a row for each step to this file.")
@click.option(
    "--bisect",
    is_flag=True,
    help="Find the smallest memory limit with which MODEL still runs, by running it some ten times more.",
)
@force_option
@report_option
@json_option
@talk_options
def command(
    model: Path,
    inputs: Path | None,
    trace: Path | None,
    csv: Path | None,
    bisect: bool,
    force: bool,
    reports: dict[str, Path],
    as_json: bool,
    **options: Any,
) -> None:
    """Run MODEL as it is, in onnxruntime with default session options, and show what it takes.

    MODEL may be any ONNX file, for training or not. Its memory is told by three meters and node by node, beside what
    ckplan predicts for it; `docs/measuring.md` says what each meter means.
    """
    refuse_idle(*reports.values(), trace, csv, add="--trace, --csv or --report", force=force)
    check_reports(reports, force, model, inputs, beside=(trace, csv))
    for target in filter(None, (trace, csv)):
        check_output(target, force, model, inputs)
    options["fixed"] = options.pop("set")
    from ckplan.meter import measure, smallest_arena
    from ckplan.model.files.saving import write_text
    from ckplan.report import exports

    with stage(f"running {model.name}") as tell:
        found = measure(model, inputs=inputs, inside=True, progress=tell, **options)
        limits = None
        if bisect:
            repeated = {key: value for key, value in options.items() if key not in ("runs", "device")}
            limits = smallest_arena(model, inputs=inputs, device=found.device, progress=tell, **repeated)
    notes(found.notes)
    from ckplan.report import json
    from ckplan.report.documents.measurements import measurement

    with written_first() as attempt:
        for path, export in ((trace, exports.trace), (csv, exports.table)):
            if path is not None:
                attempt(partial(write_text, export(found), path, force=force))
        attempt(partial(write_reports, measurement(found, limits), reports, force))
        if as_json:
            show_json(json.measurement(found, limits))
        else:
            show(measurement(found, limits))

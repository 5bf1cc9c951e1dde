"""``ckplan compare``: the memory gate for CI."""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
from click.core import ParameterSource

from ckplan.cli.html import check_page, comparison_title, write_page
from ckplan.cli.options import (
    budget_option,
    device_option,
    force_option,
    html_option,
    inference_option,
    json_option,
    report_option,
    set_option,
    shape_options,
    strategy_option,
    talk_options,
    training_options,
)
from ckplan.cli.output import check_output, refuse_idle
from ckplan.cli.proof import check_device, check_run_limit
from ckplan.cli.reports import check_reports, write_reports, written_first
from ckplan.cli.terminal.help import SectionedCommand
from ckplan.cli.terminal.streams import annotate, notes, show, show_json, stage
from ckplan.cli.values import OUTPUT, PATH, read_share
from ckplan.errors import CkplanError, EnvironmentUnavailableError, UsageError

if TYPE_CHECKING:
    from ckplan.comparison import Comparison, Configuration, How
    from ckplan.report.document import Document

_OUTPUTS = ("save_baseline", "markdown", "junit", "page")


@click.command("compare", cls=SectionedCommand, short_help="Fail if a model takes more memory than before.")
@click.argument("base", type=PATH, required=False)
@click.argument("head", type=PATH, required=False)
@click.option(
    "--max-regression",
    metavar="PERCENT",
    default="0%",
    show_default=True,
    callback=read_share,
    help="How much larger than BASE's the peak of HEAD may be, such as 3%.",
)
@budget_option
@click.option("--config", type=PATH, metavar="FILE", help="Models and limits. Default: ckplan.toml or pyproject.toml.")
@click.option(
    "--save-baseline",
    type=OUTPUT,
    metavar="OUT",
    help="Write what HEAD, or each model of the configuration, takes to this file, and accept what has grown.",
)
@click.option("--markdown", type=OUTPUT, metavar="OUT", help="Write the result as Markdown to this file.")
@click.option("--junit", type=OUTPUT, metavar="OUT", help="Write the result as JUnit XML to this file.")
@html_option
@force_option
@click.option(
    "--measure", is_flag=True, help="Run the models as well, and show the measured peak beside the simulated."
)
@click.option("--measured", is_flag=True, help="Run the models, and let the measured peak decide.")
@click.option(
    "--tolerance",
    metavar="PERCENT",
    default="2%",
    show_default=True,
    callback=read_share,
    help="What a measured peak may exceed a limit by.",
)
@device_option
@strategy_option
@inference_option
@shape_options
@set_option
@training_options
@report_option
@json_option
@talk_options
def command(
    base: Path | None,
    head: Path | None,
    config: Path | None,
    force: bool,
    measure: bool,
    measured: bool,
    device: str,
    as_json: bool,
    **options: Any,
) -> None:
    """Compare the peak of activations of HEAD with that of BASE, and fail if it has grown.

    Each may be a model, which is differentiated and planned with the strategy; a file that ckplan wrote, which is taken
    as it is; a baseline that --save-baseline wrote; or what `ckplan analyze`, `measure`, `rewrite` or `compare`
    printed with --json. A single MODEL is held against --budget alone. Without arguments, the models of the
    configuration are compared with their baseline.

    The peaks are simulated, and the same on every machine. On GitHub the result goes to the summary of the job, and
    what failed becomes an annotation.
    """
    outputs = {name: options.pop(name) for name in _OUTPUTS}
    reports = options.pop("reports")
    source = click.get_current_context().get_parameter_source
    given = {name: value for name, value in options.items() if source(name) is ParameterSource.COMMANDLINE}
    with _annotated():
        configuration = _configuration(config, base, given)
        sources = [path for path in (base, head) if path is not None]
        if configuration is not None:
            sources = [configuration.path, *(target.path for target in configuration.targets)]
        refuse_idle(*reports.values(), *outputs.values(), add="--html or --report", force=force)
        check_reports(reports, force, *sources, beside=outputs.values())
        summary = _check_outputs(outputs, sources, base, configuration, force)
        if configuration is None and not (measure or measured) and source("device") is ParameterSource.COMMANDLINE:
            raise UsageError("`--device` is where the models run, and none is run", "add --measure, or leave it out")
        if configuration is None:  # which may say that its models run
            check_run_limit(runs=measure or measured, option="--measure")
        check_device(device, with_proof=measure or measured)
        from ckplan.comparison import How

        with stage("comparing") as tell:
            how = How(device if measure or measured else None, outputs["save_baseline"] is not None, tell)
            if configuration is not None:
                found = _configured(configuration, measured, how)
            else:
                found = _compared(base, head, options, given, measured, how)
    from ckplan.report.documents.comparisons import comparison

    document = comparison(found)
    notes(found.notes)
    with written_first() as attempt:
        attempt(partial(_write, found, document, outputs, reports, base, force))
        if summary is not None:
            attempt(partial(_append, document, summary))
        _tell(found, document, as_json)
    if found.failure is not None:
        raise found.failure


def _on_github() -> bool:
    return os.environ.get("GITHUB_ACTIONS") == "true"


@contextmanager
def _annotated() -> Iterator[None]:
    """Tell GitHub why there is no comparison, if an error is raised."""
    try:
        yield
    except CkplanError as error:
        if _on_github():
            from ckplan.report.writers import github

            annotate(github.failure(str(error)))
        raise


def _configuration(config: Path | None, base: Path | None, given: Mapping[str, Any]) -> Configuration | None:
    """The configuration that is asked for; None if files are compared."""
    if base is not None:
        if config is not None:
            raise UsageError(
                "`--config` names the models to compare, and so do arguments", "leave out one or the other"
            )
        return None
    from ckplan.comparison import find_configuration, read_configuration

    path = config or find_configuration(Path())
    if path is None:
        raise UsageError(
            "there is nothing to compare: no files are named, and there is no ckplan.toml and no [tool.ckplan] here",
            "name BASE and HEAD, or write a configuration",
        )
    told = ", ".join(f"`--{name.replace('_', '-').removesuffix('s')}`" for name in given)
    if told:
        raise UsageError(f"with a configuration, {told} cannot be given on the command line", f"set it in '{path}'")
    return read_configuration(path)


def _configured(configuration: Configuration, measured: bool, how: How) -> Comparison:
    from dataclasses import replace

    from ckplan.comparison import compare_targets, find_configuration

    targets = [replace(target, limits=replace(target.limits, measured=measured)) for target in configuration.targets]
    found = configuration.path == find_configuration(Path())
    named = "" if found else f" --config {shlex.quote(str(configuration.path))}"
    return compare_targets(targets, configuration.baseline, f"ckplan compare{named}", how)


def _compared(
    base: Path | None, head: Path | None, options: Mapping[str, Any], given: Mapping[str, Any], measured: bool, how: How
) -> Comparison:
    from ckplan.comparison import Limits, compare_files

    assert base is not None
    budget = options["budget"]
    if head is None and budget is None and not how.accepting:
        raise UsageError(
            f"there is nothing to compare '{base}' with", "name HEAD, or give --budget, or write a --save-baseline"
        )
    if "tolerance" in given and not measured:
        raise UsageError("`--tolerance` is that of measured peaks, and none decides", "add --measured, or leave it out")
    limits = Limits(
        max_regression=options["max_regression"], budget=budget, measured=measured, tolerance=options["tolerance"]
    )
    asked = {name: value for name, value in given.items() if name not in ("max_regression", "budget", "tolerance")}
    return compare_files(None if head is None else base, head or base, asked, limits, how)


def _check_outputs(
    outputs: Mapping[str, Path | None],
    sources: list[Path],
    base: Path | None,
    configuration: Configuration | None,
    force: bool,
) -> Path | None:
    """See that everything can be written before any work is done; returns where the summary of the job goes."""
    check_page(outputs["page"], force)
    from ckplan.comparison import is_json

    named = {name: path for name, path in outputs.items() if path is not None}
    baseline = configuration.baseline if configuration is not None else base
    baseline = baseline if baseline is not None and is_json(baseline) else None
    for name, path in named.items():
        # A baseline may take the place of the one that it was compared with.
        kept = [
            source for source in (*sources, *filter(None, [baseline])) if name != "save_baseline" or source != baseline
        ]
        check_output(path, force, *kept)
    place = os.environ.get("GITHUB_STEP_SUMMARY")
    if not place:
        return None
    summary = Path(place)
    if not os.access(summary if summary.exists() else summary.parent, os.W_OK) or summary.is_dir():
        raise EnvironmentUnavailableError(f"no permission to write {summary}", "unset GITHUB_STEP_SUMMARY")
    return summary


def _write(
    found: Comparison,
    document: Document,
    outputs: Mapping[str, Path | None],
    reports: Mapping[str, Path],
    base: Path | None,
    force: bool,
) -> None:
    """Write the files that were asked for; a baseline only if every model could be read."""
    from ckplan.comparison import Level, write_baseline

    saved = outputs["save_baseline"]
    if saved is not None and found.level is not Level.ERROR:
        heads = {check.name: check.head for check in found.checks if check.head is not None}
        replaced = base is not None and base.exists() and saved.exists() and saved.samefile(base)
        write_baseline({**(found.others if replaced else {}), **heads}, saved, force=force)
    own = {kind: path for kind in ("markdown", "junit") if (path := outputs[kind]) is not None}
    write_reports(document, {**reports, **own}, force)
    if outputs["page"] is not None:
        write_page(outputs["page"], force, comparison_title(found), notes=found.notes, comparison=found)


def _append(document: Document, summary: Path) -> None:
    from ckplan.report.writers.markdown import markdown

    with summary.open("a", encoding="utf-8") as stream:
        stream.write(markdown(document))


def _tell(found: Comparison, document: Document, as_json: bool) -> None:
    """Show the result, and tell GitHub."""
    from ckplan.report import json
    from ckplan.report.writers import github

    if _on_github():
        # On stderr, which the runner reads as well: stdout is data.
        for line in github.annotated(document):
            annotate(line)
    if as_json:
        show_json(json.comparison(found))
    else:
        show(document)

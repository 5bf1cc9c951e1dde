"""The page: findings in, the text of one HTML file out."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING, Any

from ckplan.report.document import Table
from ckplan.report.documents import plans, verifications
from ckplan.report.documents.comparisons import comparison, summary
from ckplan.report.html import sections
from ckplan.report.html.chart_data import Panel, chart_data
from ckplan.report.svg import drawing
from ckplan.report.untrusted import printable
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from jinja2 import Template

    from ckplan.answers.analysis import Offer
    from ckplan.answers.findings import Findings

_SCRIPTS = ("chart.js", "zoom.js", "page.js")
_TENSORS, _OUTPUTS = 400, 100
"""Tensors, and outputs that differ, that a table lists."""


def render(found: Findings) -> str:
    """The page as text: it loads nothing, and its policy forbids it to.

    Args:
        found: what to show; names in it come from the model and are shown as text, whatever they hold.
    """
    from markupsafe import Markup

    curves = _curves(found)
    style, script = _asset("page.css"), "\n".join(map(_asset, _SCRIPTS))
    content = {
        "title": found.title,
        "command": found.command,
        "environment": found.environment,
        "notes": found.notes,
        "loss": found.contents.loss if found.contents is not None else "",
        "tiles": sections.tiles(found),
        "charts": curves,
        "again": any(step.recomputed for curve in curves for step in curve.timeline.steps),
        "early": any(curve.early for curve in curves),
        "alive": [
            sections.alive_table(curve.title, curve.occupancy, number)
            for number, curve in enumerate(curves)
            if curve.occupancy is not None
        ],
        "groups": found.chosen.blocks if found.chosen is not None else (),
        "layers": [layer for layer in found.chosen.layers if layer.decisions] if found.chosen is not None else (),
        "decisions": sections.decisions,
        **_headline(found),
        **_optional(found),
        # What is no text of a stranger's: all of it is made here, and escaped where it has to be.
        "marks": {"passed": "✓ ", "warned": "! ", "failed": "✗ ", "error": "✗ "},
        "style": Markup(style),
        "script": Markup(script),
        "data": Markup(chart_data(curves)),
        "style_hash": _hash(style),
        "script_hash": _hash(script),
        "frontier_picture": Markup(drawing(found.pareto)) if found.pareto is not None else "",
    }
    return _template().render(content).encode("utf-8", "replace").decode("utf-8")


def _headline(found: Findings) -> dict[str, Any]:
    """The figures of the first line: those of the simulator where there are any, else what was measured."""
    before, after, overhead, source = None, None, None, "predicted"
    if found.before is not None:
        before = found.before.timeline.peak_activations
        after = found.after.timeline.peak_activations if found.after is not None else None
    if found.comparison is not None and len(found.comparison.checks) == 1:
        (check,) = found.comparison.checks
        sides = [None if side is None else side.peak_activations for side in (check.base, check.head)]
        before, after = sides if sides[0] is not None else (sides[1], None)
    if found.verification is not None and (before is None or found.chosen is None):
        before, after = found.verification.base.peak_activations, found.verification.new.peak_activations
        overhead, source = found.verification.overhead, "measured"
    elif found.chosen is not None:
        overhead = found.chosen.plan.overhead
    trained = found.contents is None or found.contents.backward
    saving = after / before - 1 if before and after is not None else None
    return {
        "before": None if before is None else format_bytes(before),
        "after": None if after is None else format_bytes(after),
        "saving": "" if saving is None else f"{_signed(saving)} memory",
        "worse": saving is not None and saving >= 0.005,
        "overhead": "" if overhead is None else f"{_signed(overhead)} {'time' if source == 'measured' else 'compute'}",
        "free": overhead is not None and overhead < 0.005,
        "of": f"peak of activations in one {'training step' if trained else 'run'}, {source}",
    }


def _signed(ratio: float) -> str:
    """``-0.79`` as ``−79 %``, and ``±0 %`` for what is less than half a percent."""
    percent = round(100 * ratio)
    return f"{percent:+d} %".replace("-", "−") if percent else "±0 %"


def _optional(found: Findings) -> dict[str, Any]:
    """Sections that are there only if somebody looked into them."""
    whole = found.before.timeline.peak_activations if found.before is not None else 0
    missing = ("offers", "bottlenecks", "frontier", "measured", "comparison")
    content: dict[str, Any] = {**dict.fromkeys(missing), "problems": ()}
    if found.comparison is not None:
        compared = comparison(found.comparison)
        content["comparison"] = replace(summary(found.comparison), caption=compared.title)
        content["checks"] = compared.sections[1:]
    if found.analysis is not None:
        if found.analysis.offers:
            content["offers"] = _offers(found.analysis.offers, whole)
        if found.analysis.bottlenecks:
            table = plans.tensors_table(found.analysis.bottlenecks, whole)
            caption = "Bottlenecks, through which all paths to the end pass"
            content["bottlenecks"] = sections.cut(replace(table, caption=caption), _TENSORS)
    if found.pareto is not None:
        content["frontier"] = replace(plans.frontier(found.pareto), caption="The frontier")
        content["offers"] = _offers(found.pareto.offers, found.pareto.base.peak_activations)
    if (verification := found.verification) is not None:
        differ = replace(verifications.differences(verification), caption="Outputs that differ")
        content |= {
            "measured": sections.measured_table(verification, sections.predictions(found)),
            "summary": verifications.summary(verification),
            "agreement": sections.agreement(verification, sections.predictions(found)),
            "numerics": verifications.agreement(verification),
            "differences": sections.cut(differ, _OUTPUTS) if differ.rows else None,
            "problems": verification.problems,
        }
    return content


def _offers(found: Sequence[Offer], whole: int) -> Table:
    """What each strategy would give, and why some give nothing."""
    refused = "; ".join(f"{offer.strategy}: {offer.reason}" for offer in found if offer.plan is None)
    return replace(plans.offers(found, whole), caption="What each strategy would give", more=refused)


def _curves(found: Findings) -> list[Panel]:
    """The charts: memory without a plan, and with it; of a comparison those of both sides."""
    if found.comparison is not None:  # of a single model
        checks = found.comparison.checks if len(found.comparison.checks) == 1 else ()
        sides = [(title, side) for one in checks for title, side in (("Base", one.base), ("New", one.head))]
        return [Panel(title, side.timeline, side.occupancy) for title, side in sides if side and side.timeline]
    levels = []
    if found.chosen is not None:
        if found.chosen.budget is not None:
            levels.append(("budget", found.chosen.budget))
        levels.append(("lower bound", found.chosen.plan.lower_bound))
    elif found.analysis is not None:
        levels.append(("lower bound", found.analysis.lower_bound))
    base, new = (found.verification.base, found.verification.new) if found.verification else (None, None)
    alone = found.after is None and new is None
    shown = (
        ("Without a plan", found.before, base, tuple(levels) if alone else ()),
        ("With the plan", found.after, new, tuple(levels)),
    )
    curves = []
    for title, occupancy, ran, lines in shown:
        measured = ran.counters.timeline if ran is not None and ran.counters is not None else None
        if occupancy is not None:
            curves.append(Panel(title, occupancy.timeline, occupancy, measured, lines))
        elif measured is not None:
            curves.append(Panel(title, measured, levels=lines))
    return curves


def _hash(text: str) -> str:
    """A digest as a content security policy spells it."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


@cache
def _asset(file: str) -> str:
    return files("ckplan.report.html").joinpath(file).read_text(encoding="utf-8")


def _printable(value: object) -> object:
    """What the template puts into the page: a string without control characters, unless it was made here."""
    return printable(value) if isinstance(value, str) and not hasattr(value, "__html__") else value


@cache
def _template() -> Template:
    from jinja2 import Environment, StrictUndefined

    environment = Environment(
        autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True, finalize=_printable
    )
    environment.filters |= {"bytes": format_bytes, "seconds": format_seconds}
    return environment.from_string(_asset("page.html"))

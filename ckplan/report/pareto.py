"""The answer of ``ckplan pareto`` for people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ckplan.report.plot import Mark, plot_of
from ckplan.report.scatter import SEVERAL, Scatter
from ckplan.report.text import page, percent, section, table
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.answers.frontier import Pareto


def pareto(path: Path, found: Pareto) -> RenderableType:
    """The picture, the frontier, and every strategy's plan."""
    plot = plot_of(found)
    refused = [Text(f"{made.strategy}: {made.reason}") for made in found.offers if made.plan is None]
    strategies = [section("What each strategy would give", _strategies(found, plot.marks), *refused)]
    base, bound = format_bytes(found.base.peak_activations), format_bytes(found.lower_bound)
    return page(
        section(
            str(path),
            Text(f"{base} of activations without a plan; no plan can go below {bound}"),
        ),
        section(
            "Peak of activations against overhead",
            Scatter(plot),
            Text(f"● frontier, a letter: a strategy, {SEVERAL}: several, ┄ lower bound", style="dim"),
        ),
        section("Frontier", _frontier(found)),
        *(strategies if found.offers else []),
    )


def _frontier(found: Pareto) -> Table:
    headers = ("activations", "saved", "overhead", "repeats")
    rows = table(*headers, "found by", "", numbers=headers)
    for position, plan in enumerate(found.points):
        rows.add_row(
            format_bytes(plan.predicted.peak_activations),
            _saved(plan.predicted.peak_activations, found),
            percent(plan.overhead),
            f"{plan.recomputed:,}",
            Text(plan.strategy),
            "knee" if position == found.knee and len(found.points) > 2 else "",
        )
    return rows


def _strategies(found: Pareto, marks: tuple[Mark, ...]) -> Table:
    headers = ("activations", "saved", "overhead")
    rows = table("", "strategy", *headers, "dearer than the frontier by", numbers=headers)
    for mark in marks:
        rows.add_row(
            mark.letter,
            Text(mark.strategy),
            format_bytes(mark.peak),
            _saved(mark.peak, found),
            percent(mark.overhead),
            _behind(mark, found),
        )
    return rows


def _behind(mark: Mark, found: Pareto) -> str:
    """How much less overhead the frontier has at a strategy's peak."""
    cheapest = min((p.overhead for p in found.points if p.predicted.peak_activations <= mark.peak), default=None)
    if cheapest is None or mark.overhead - cheapest < 5e-4:
        return "-"
    return percent(mark.overhead - cheapest)


def _saved(peak: int, found: Pareto) -> str:
    whole = found.base.peak_activations
    return percent(1 - peak / whole) if whole else ""

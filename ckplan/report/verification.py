"""Two measured files side by side, for people."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from statistics import median
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ckplan.report.text import counted, ending, line, page, saving, section, table
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ckplan.meter import Measurement, Recomputation, Verification

_SHOWN = 10


def verification(found: Verification) -> RenderableType:
    """The whole answer of ``ckplan verify``."""
    base, new = found.base, found.new
    title = f"Measured in onnxruntime {new.onnxruntime} on {new.device}"
    parts: list[RenderableType] = [
        line(summary(found)),
        section(title, _figures(found)),
        section("Outputs", *_outputs(found)),
    ]
    if new.recomputation.in_file:
        parts.append(section("Recomputation", Text(recomputation(new.recomputation))))
    if found.problems:
        parts.append(section("Problems", *(Text(f"- {problem}") for problem in found.problems)))
    said = dict.fromkeys((*base.notes, *new.notes, *found.notes))
    if said:
        parts.append(section("Notes", *(Text(f"- {note}") for note in said)))
    return page(*parts)


def recomputation(found: Recomputation) -> str:
    """What became of the nodes that a file repeats, in one line."""
    told = [f"{found.executed:,} of {counted(found.in_file, 'node')} ran again as planned"]
    if found.fused:
        count = sum(number for _, number in found.fused)
        told.append(f"{count:,} of them as part of {', '.join(op_type for op_type, _ in found.fused)}")
    if found.merged:
        told.append(f"{found.merged:,} merged with the nodes that they repeat")
    return "; ".join(told)


def summary(found: Verification) -> str:
    """The findings in one line."""
    parts = []
    before, after = found.base.peak_activations, found.new.peak_activations
    if before is not None and after is not None:
        parts.append(f"activations {saving(before, after, found.new.prediction.order_peak)}")
    if found.overhead is not None:
        parts.append(f"time {round(100 * found.overhead):+d} %")
    rounding = all(difference.is_rounding for difference in found.numerics.differences)
    differ = "outputs equal up to rounding" if found.numerics.compared and rounding else "outputs differ"
    parts.append("outputs equal to the bit" if found.numerics.bitwise_equal else differ)
    return f"measured: {', '.join(parts)}"


@dataclass(frozen=True, slots=True)
class Figure:
    """A figure of both files.

    Attributes:
        title: what it is; parts of the figure above are indented.
        base: that of the base file, as text.
        new: that of the new one.
        ratio: new over base.
        style: how it stands out.
    """

    title: str
    base: str
    new: str
    ratio: str
    style: str = ""


def figures(found: Verification) -> list[Figure]:
    """What both files took, in the order in which it is told."""
    told: list[Figure] = []

    def add(title: str, figure: Callable[[Measurement], int | None], style: str = "") -> None:
        before, after = figure(found.base), figure(found.new)
        if before is None and after is None:
            return
        base, new = ("-" if value is None else format_bytes(value) for value in (before, after))
        told.append(Figure(title, base, new, _ratio(after, before), style))

    add("activations, peak", lambda m: m.peak_activations, "bold")
    add("  predicted", lambda m: m.prediction.peak_activations)
    add("  in priority order", lambda m: m.priority.peak_activations if m.priority else None)
    add("  heap (second meter)", lambda m: m.heap.activations if m.heap else None)
    add("all live memory, peak", lambda m: m.peak_total, "bold")
    add("steady state, in use", lambda m: m.counters.steady.in_use if m.counters and m.counters.steady else None)
    add("steady state, arena held", lambda m: m.counters.steady.held if m.counters and m.counters.steady else None)
    add("  without memory pattern", lambda m: m.steady_without_pattern.held if m.steady_without_pattern else None)
    add("resident (misleads)", lambda m: m.resident.peak, "dim")
    if found.timing is not None:
        before, after = median(found.timing.base_seconds), median(found.timing.new_seconds)
        times = format_seconds(before), format_seconds(after)
        told.append(Figure("step time", *times, f"{found.timing.ratio:.2f}", "bold"))
    return told


def _figures(found: Verification) -> Table:
    rows = table("", "base", "new", "new / base", numbers=("base", "new", "new / base"))
    for figure in figures(found):
        rows.add_row(figure.title, figure.base, figure.new, figure.ratio, style=figure.style)
    return rows


def _ratio(after: int | None, before: int | None) -> str:
    return f"{after / before:.2f}" if after is not None and before else "-"


def _outputs(found: Verification) -> list[RenderableType]:
    numerics = found.numerics
    same = len(numerics.compared) - len(numerics.differences)
    lines: list[RenderableType] = [Text(f"{same:,} of {counted(len(numerics.compared), 'output')} equal to the bit")]
    if numerics.differences:
        numbers = ("elements", "largest ulp", "to scale", "to gradients")
        rows = table("output", *numbers, numbers=numbers)
        for difference in numerics.differences[:_SHOWN]:
            overall = difference.relative_to_gradients
            figures = (
                f"{difference.elements:,}",
                f"{difference.max_ulp:,}",
                f"{difference.relative_to_scale:.1e}",
                "-" if overall is None else f"{overall:.1e}",
            )
            rows.add_row(
                Text(ending(difference.output)), *((difference.problem, "", "", "") if difference.problem else figures)
            )
        lines.append(rows)
    for which, names in (("base", numerics.only_base), ("new", numerics.only_new)):
        if names:
            lines.append(Text(f"only in {which}: {', '.join(names[:_SHOWN])}{', ...' if len(names) > _SHOWN else ''}"))
    return lines

"""The answer of ``ckplan verify`` as a document: two measured files side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckplan.display import shortened
from ckplan.meter.memory import meters
from ckplan.meter.meter import Figure
from ckplan.report.document import (
    ALL,
    Cell,
    Document,
    Line,
    Row,
    Section,
    Table,
    counted,
    listed,
    name,
    number,
    saving,
    size,
)
from ckplan.units import format_seconds

if TYPE_CHECKING:
    from ckplan.meter import Recomputation, Verification
    from ckplan.meter.numbers.in_place import InPlace


def verification(found: Verification) -> Document:
    """What both files took, whether their outputs are the same, and whether the plan was carried out."""
    base, new = found.base, found.new
    sections = [
        Section(f"Measured in onnxruntime {new.onnxruntime} on {new.device}", (figures(found),)),
        Section("Outputs", outputs(found)),
    ]
    if new.recomputation.in_file:
        sections.append(Section("Recomputation", (Line(recomputation(new.recomputation)),)))
    if found.in_place is not None:
        sections.append(Section("Updates in place", (Line(in_place(found.in_place)),)))
    notes = tuple(dict.fromkeys((*base.notes, *new.notes, *found.notes)))
    level = "failed" if found.problems else "passed"
    return Document(
        summary(found), (*sections, *listed("Problems", found.problems), *listed("Notes", notes)), level=level
    )


_PREDICTED = Figure("  predicted", lambda found: found.prediction.peak_activations)


def recomputation(found: Recomputation) -> str:
    """What became of the nodes that a file repeats, in one line."""
    told = [f"{found.executed:,} of {counted(found.in_file, 'node')} ran again as planned"]
    if found.fused:
        count = sum(number for _, number in found.fused)
        told.append(f"{count:,} of them as part of {', '.join(op_type for op_type, _ in found.fused)}")
    if found.merged:
        told.append(f"{found.merged:,} merged with the nodes that they repeat")
    return "; ".join(told)


def in_place(found: InPlace) -> str:
    """Whether a file computes the same with new values written over the old ones, in one line."""
    same = found.values - len(found.differing)
    return f"{same:,} of {counted(found.values, 'value')} equal to the bit after {counted(found.steps, 'step')}"


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


def figures(found: Verification, predicted: Sequence[int | None] = ()) -> Table:
    """What both files took, in the order in which it is told; parts of the figure above are indented.

    Args:
        found: what was measured.
        predicted: peaks of activations of both files; by default what they promise.
    """
    rows: list[Row] = []
    files = found.base, found.new
    shown = [(figure, [figure.of(file) for file in files]) for figure in meters.figures() if not figure.alone]
    told = list(predicted) or [file.prediction.peak_activations for file in files]
    shown.insert(1, (_PREDICTED, told))  # beside the measured peak, which stands first
    for figure, (before, after) in shown:
        if before is not None or after is not None:
            rows.append(Row((Cell(figure.title), size(before), size(after), _ratio(after, before)), figure.style))
    if found.timing is not None:
        base, new = min(found.timing.base_seconds), min(found.timing.new_seconds)
        times = number(base, format_seconds(base)), number(new, format_seconds(new))
        spread = "" if found.timing.spread is None else f" ± {found.timing.spread:.2f}"
        title = "step time, one thread" if found.timing.clock == "processor" else "step time"
        rows.append(Row((Cell(title), *times, number(found.timing.ratio, f"{found.timing.ratio:.2f}{spread}")), "bold"))
    return Table(("", "base", "new", "new / base"), tuple(rows), top=ALL)


def _ratio(after: int | None, before: int | None) -> Cell:
    return number(after / before, f"{after / before:.2f}") if after is not None and before else Cell("-")


def outputs(found: Verification) -> tuple[Line | Table, ...]:
    """Whether the outputs are the same, and which are not."""
    numerics = found.numerics
    blocks: list[Line | Table] = [Line(agreement(found))]
    if numerics.differences:
        blocks.append(differences(found))
    for which, names in (("base", numerics.only_base), ("new", numerics.only_new)):
        if names:
            blocks.append(Line(f"only in {which}: {shortened(names, 10)}"))
    return tuple(blocks)


def agreement(found: Verification) -> str:
    """How many outputs are the same, in one line."""
    compared, differ = found.numerics.compared, found.numerics.differences
    return f"{len(compared) - len(differ):,} of {counted(len(compared), 'output')} equal to the bit"


def differences(found: Verification) -> Table:
    """The outputs that are not the same to the bit."""
    rows = []
    for one in found.numerics.differences:
        cells = [Cell("-")] * 4
        if not one.problem and not one.is_floating:
            cells[0] = number(one.elements)
        elif not one.problem:
            ratios = (one.relative_to_scale, one.relative_to_gradients)
            cells = [number(one.elements), number(one.max_ulp)]
            cells += [Cell("-") if ratio is None else number(ratio, f"{ratio:.1e}") for ratio in ratios]
        verdict = one.problem or ("rounding" if one.is_rounding else "differs")
        rows.append(Row((name(one.output), *cells, Cell(verdict))))
    return Table(("output", "elements", "largest ulp", "to scale", "to gradients", ""), tuple(rows))

"""Findings as what the page shows: tiles, tables, groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckplan.report.html.chart_data import band_numbers
from ckplan.report.html.values import Cell, Group, Row, Table, Tile, name, number, shape_cell, size
from ckplan.report.text import counted, percent
from ckplan.report.verification import figures, summary
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ckplan.answers.analysis import Offer, TensorFacts
    from ckplan.answers.findings import Block, Decision, Findings
    from ckplan.answers.frontier import Pareto
    from ckplan.meter import Verification
    from ckplan.runtime.occupancy import Occupancy

_ALIVE = 400
"""Rows of the table of what is alive at the peak."""
_DECISIONS = 40
"""Tensors of a block that are listed."""
_BLOCKS = 60
"""Blocks that are listed."""
_OUTPUTS = 100
"""Outputs that differ and are listed."""


def tiles(found: Findings) -> list[Tile]:
    """The figures below the headline."""
    made: list[Tile] = []
    before, after = found.before, found.after
    bound = found.plan.lower_bound if found.plan else found.analysis.lower_bound if found.analysis else None
    if (plan := found.plan) is not None:
        budget = "no budget" if plan.budget is None else f"budget {format_bytes(plan.budget)}"
        made.append(Tile("strategy", plan.strategy, budget))
        made.append(Tile("run again", counted(plan.recomputed, "node"), f"{100 * plan.overhead:+.1f} % of compute"))
    if bound is not None:
        made.append(Tile("lower bound", format_bytes(bound), "no schedule takes less"))
    if before is not None:
        totals = [format_bytes(one.timeline.peak_total) for one in (before, after) if one is not None]
        made.append(Tile("all memory", _change(totals), "with parameters, inputs, outputs"))
    if (contents := found.contents) is not None:
        nodes = f"{contents.forward:,} forward, {contents.backward:,} backward" if contents.backward else ""
        made.append(Tile("graph", counted(contents.forward + contents.backward, "node"), nodes))
        held = f"{format_bytes(contents.inputs)} inputs, {format_bytes(contents.outputs)} outputs"
        made.append(Tile("parameters", format_bytes(contents.parameters), held))
    return made


def _change(sizes: Sequence[str]) -> str:
    """``24.3 → 6.0 MiB``: a unit that both have is said once."""
    units = {text.split()[1] for text in sizes}
    return " → ".join(sizes if len(units) > 1 else [*(text.split()[0] for text in sizes[:-1]), sizes[-1]])


def alive_table(title: str, found: Occupancy, chart: int) -> Table:
    """What is alive at the peak."""
    step, whole = found.timeline.peak_step, found.timeline.peak_activations
    bands, rows = band_numbers(found), []
    alive = found.alive(step)
    for index, buffer in alive[:_ALIVE]:
        span = buffer.at(step)
        rows.append(
            Row(
                (
                    name(span.tensor),
                    size(buffer.bytes),
                    number(buffer.bytes / whole, percent(buffer.bytes / whole)),
                    shape_cell(span.shape),
                    Cell(span.dtype),
                    Cell(span.op_type),
                    Cell(span.role.value),
                    number(buffer.born + 1, f"{buffer.born + 1:,}"),
                    number(buffer.dies + 1, f"{buffer.dies + 1:,}"),
                ),
                band=f"{chart}:{bands[index]}" if index in bands else "",
                mark=span.role.value,
            )
        )
    more = []
    if len(alive) > _ALIVE:
        rest = sum(buffer.bytes for _, buffer in alive[_ALIVE:])
        more.append(f"{counted(len(alive) - _ALIVE, 'more tensor')}: {format_bytes(rest)}")
    if found.workspace[step : step + 1] and found.workspace[step]:
        more.append(f"workspace of the kernel that runs: {format_bytes(found.workspace[step])}")
    columns = ("tensor", "bytes", "share", "shape", "type", "made by", "role", "from step", "to step")
    return Table(title, columns, tuple(rows), "; ".join(more), sorted_by=1)


def groups(blocks: Sequence[Block]) -> tuple[list[Group], str]:
    """The plan, block by block; and what was left out, in words."""
    whole = max((block.kept + block.recomputed for block in blocks), default=0) or 1
    made = [
        Group(
            name=block.name,
            count=block.count,
            kept=format_bytes(block.kept) if block.kept else "–",
            recomputed=format_bytes(block.recomputed) if block.recomputed else "–",
            seconds=format_seconds(block.seconds) if block.seconds else "–",
            bars=(round(100 * block.kept / whole, 2), round(100 * block.recomputed / whole, 2)),
            table=_decisions(block.decisions),
        )
        for block in blocks[:_BLOCKS]
    ]
    left = blocks[_BLOCKS:]
    more = f"{counted(len(left), 'more kind')} of blocks" if left else ""
    return made, more


def _decisions(decisions: Sequence[Decision]) -> Table:
    largest = sorted(decisions, key=lambda decision: -decision.bytes)
    rows = [
        Row(
            (
                name(decision.tensor),
                size(decision.bytes),
                shape_cell(decision.shape),
                Cell(decision.op_type),
                Cell(_treatment(decision.times), decision.times),
                number(decision.seconds, format_seconds(decision.seconds) if decision.seconds else "–"),
            ),
            mark="recomputed" if decision.times else "kept",
        )
        for decision in largest[:_DECISIONS]
    ]
    left = largest[_DECISIONS:]
    more = f"{counted(len(left), 'more tensor')}: {format_bytes(sum(d.bytes for d in left))}" if left else ""
    return Table("", ("tensor", "bytes", "shape", "made by", "plan", "extra time"), tuple(rows), more, sorted_by=1)


def _treatment(times: int) -> str:
    """What a plan does with a tensor, in words."""
    return {0: "kept", 1: "made twice"}.get(times) or f"made {times + 1} times"


def offers_table(offers: Sequence[Offer], whole: int) -> Table:
    """What each strategy would give."""
    rows = []
    for offer in offers:
        if offer.plan is None:
            continue
        peak = offer.plan.predicted.peak_activations
        saved = 1 - peak / whole if whole else 0.0
        rows.append(
            Row(
                (
                    Cell(offer.strategy),
                    size(peak),
                    number(saved, percent(saved)),
                    number(offer.plan.overhead, percent(offer.plan.overhead)),
                    size(offer.plan.predicted.peak_total),
                )
            )
        )
    refused = "; ".join(f"{offer.strategy}: {offer.reason}" for offer in offers if offer.plan is None)
    columns = ("strategy", "activations", "saved", "overhead", "total")
    return Table("What each strategy would give", columns, tuple(rows), refused)


def tensors_table(title: str, tensors: Sequence[TensorFacts]) -> Table:
    """Tensors of an analysis."""
    rows = [
        Row((name(tensor.name), size(tensor.bytes), shape_cell(tensor.shape), Cell(tensor.op_type)))
        for tensor in tensors[:_ALIVE]
    ]
    left = tensors[_ALIVE:]
    more = counted(len(left), "more tensor") if left else ""
    return Table(title, ("tensor", "bytes", "shape", "made by"), tuple(rows), more)


def frontier_table(found: Pareto) -> Table:
    """The plans on the frontier."""
    whole = found.base.peak_activations
    rows = []
    for position, plan in enumerate(found.points):
        peak = plan.predicted.peak_activations
        saved = 1 - peak / whole if whole else 0.0
        rows.append(
            Row(
                (
                    size(peak),
                    number(saved, percent(saved)),
                    number(plan.overhead, percent(plan.overhead)),
                    number(plan.recomputed, f"{plan.recomputed:,}"),
                    Cell(plan.strategy + (" (knee)" if position == found.knee and len(found.points) > 2 else "")),
                )
            )
        )
    columns = ("activations", "saved", "overhead", "nodes run again", "found by")
    return Table("The frontier", columns, tuple(rows))


def predictions(found: Findings) -> tuple[int | None, int | None]:
    """Predicted peaks of activations of both files: what is simulated here, else what the files promise."""
    verification = found.verification
    assert verification is not None
    before, after = (one.timeline.peak_activations if one is not None else None for one in (found.before, found.after))
    base, new = verification.base.prediction, verification.new.prediction
    return before or base.peak_activations, after or new.peak_activations


def measured_table(found: Verification, predicted: Sequence[int | None]) -> Table:
    """Predicted against measured, and both files against each other."""
    rows = []
    for figure in figures(found):
        if figure.title.strip() == "predicted":
            continue
        name_cell = Cell(figure.title.replace("  ", "– ", 1))
        rows.append(Row((name_cell, Cell(figure.base), Cell(figure.new), Cell(figure.ratio)), mark=figure.style))
        if len(rows) == 1 and any(predicted):
            before, after = predicted
            texts = ("-" if peak is None else format_bytes(peak) for peak in predicted)
            ratio = f"{after / before:.2f}" if before and after is not None else "-"
            rows.append(Row((Cell("– predicted"), *map(Cell, texts), Cell(ratio))))
    title = f"Measured in onnxruntime {found.new.onnxruntime} on {found.new.device}"
    return Table(title, ("", "base", "new", "new / base"), tuple(rows))


def agreement(found: Verification, predicted: Sequence[int | None]) -> list[str]:
    """How far prediction and measurement are apart, a sentence for each file of which both are known."""
    said = []
    for which, measured, promised in zip(("base", "new"), (found.base, found.new), predicted, strict=True):
        peak = measured.peak_activations
        if promised and peak:
            said.append(
                f"{which}: {format_bytes(promised)} predicted, {format_bytes(peak)} measured "
                f"({100 * (peak / promised - 1):+.2f} %)"
            )
    return said


def numerics_table(found: Verification) -> tuple[str, Table | None]:
    """Whether the outputs are the same: a sentence, and a table of those that are not."""
    compared, differences = found.numerics.compared, found.numerics.differences
    same = f"{len(compared) - len(differences):,} of {counted(len(compared), 'output')} equal to the bit"
    if not differences:
        return same, None
    rows = [
        Row(
            (
                name(difference.output),
                number(difference.elements, f"{difference.elements:,}"),
                number(difference.max_ulp, f"{difference.max_ulp:,}"),
                number(difference.relative_to_scale, f"{difference.relative_to_scale:.1e}"),
                Cell(difference.problem or ("rounding" if difference.is_rounding else "differs")),
            )
        )
        for difference in differences[:_OUTPUTS]
    ]
    left = differences[_OUTPUTS:]
    more = counted(len(left), "more output") if left else ""
    columns = ("output", "elements", "largest ulp", "to scale", "kind")
    return same, Table("Outputs that differ", columns, tuple(rows), more)


def measured_headline(found: Verification) -> str:
    """The findings in one line."""
    return summary(found)

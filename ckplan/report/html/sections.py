"""Findings as what the page shows: tiles, tables, groups."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from ckplan.planner import Kind
from ckplan.report.document import Cell, Columns, Row, Table, counted, name, number, shape_cell, share, size, table_of
from ckplan.report.documents.verifications import figures
from ckplan.report.html.chart_data import band_numbers
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ckplan.answers.findings import Block, Decision, Findings
    from ckplan.meter import Verification
    from ckplan.runtime.occupancy import Occupancy

_ALIVE = 400
"""Rows of the table of what is alive at the peak."""
_DECISIONS = 40
"""Tensors of a block that are listed."""


@dataclass(frozen=True, slots=True)
class Tile:
    """A figure with its name, and a remark below."""

    label: str
    value: str
    remark: str = ""


def tiles(found: Findings) -> list[Tile]:
    """The figures below the headline."""
    made: list[Tile] = []
    before, after = found.before, found.after
    bound = found.chosen.plan.lower_bound if found.chosen else found.analysis.lower_bound if found.analysis else None
    if found.chosen is not None:
        plan, limit = found.chosen.plan, found.chosen.budget
        budget = "no budget" if limit is None else f"budget {format_bytes(limit)}"
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
        held = {kind: format_bytes(count) for kind, count in contents.bytes.items()}
        fed = f"{held[Kind.INPUT]} inputs, {held[Kind.OUTPUT]} outputs"
        made.append(Tile("parameters", held[Kind.PARAMETER], fed))
    return made


def _change(sizes: Sequence[str]) -> str:
    """``24.3 → 6.0 MiB``: a unit that both have is said once."""
    units = {text.split()[1] for text in sizes}
    return " → ".join(sizes if len(units) > 1 else [*(text.split()[0] for text in sizes[:-1]), sizes[-1]])


def alive_table(title: str, found: Occupancy, chart: int) -> Table:
    """What is alive at the peak."""
    step, whole = found.timeline.peak_step, found.timeline.peak_activations
    bands, alive, rows = band_numbers(found), found.alive(step), []
    for index, buffer in alive[:_ALIVE]:
        span = buffer.at(step)
        about = (name(span.tensor), size(buffer.bytes), share(buffer.bytes, whole), shape_cell(span.shape))
        kinds = (span.dtype, span.op_type, span.role.value)
        steps = (number(buffer.born + 1), number(buffer.dies + 1))
        band = f"{chart}:{bands[index]}" if index in bands else ""
        rows.append(Row((*about, *map(Cell, kinds), *steps), band=band, mark=span.role.value))
    more = []
    if left := alive[_ALIVE:]:
        more.append(f"{counted(len(left), 'more tensor')}: {format_bytes(sum(buffer.bytes for _, buffer in left))}")
    if found.workspace[step : step + 1] and found.workspace[step]:
        more.append(f"workspace of the kernel that runs: {format_bytes(found.workspace[step])}")
    columns = ("tensor", "bytes", "share", "shape", "type", "made by", "role", "from step", "to step")
    return Table(columns, tuple(rows), title, more="; ".join(more), sorted_by=1)


def decisions(block: Block) -> Table:
    """The tensors of a block, and what the plan does with them."""
    columns: Columns[Decision] = {
        "tensor": lambda decision: name(decision.tensor),
        "bytes": lambda decision: size(decision.bytes),
        "shape": lambda decision: shape_cell(decision.shape),
        "made by": lambda decision: Cell(decision.op_type),
        "plan": lambda decision: Cell(_treatment(decision.times), decision.times),
        "extra time": lambda decision: number(
            decision.seconds, format_seconds(decision.seconds) if decision.seconds else "–"
        ),
    }
    largest = sorted(block.decisions, key=lambda decision: -decision.bytes)
    shown, left = largest[:_DECISIONS], largest[_DECISIONS:]
    more = f"{counted(len(left), 'more tensor')}: {format_bytes(sum(d.bytes for d in left))}" if left else ""
    marks = ["recomputed" if decision.times else "kept" for decision in shown]
    return table_of(shown, columns, marks, more=more, sorted_by=1)


def _treatment(times: int) -> str:
    """What a plan does with a tensor, in words."""
    return {0: "kept", 1: "made twice"}.get(times) or f"made {times + 1} times"


def predictions(found: Findings) -> tuple[int | None, int | None]:
    """Predicted peaks of activations of both files: what is simulated here, else what the files promise."""
    verification = found.verification
    assert verification is not None
    before, after = (one.timeline.peak_activations if one is not None else None for one in (found.before, found.after))
    base, new = verification.base.prediction, verification.new.prediction
    return before or base.peak_activations, after or new.peak_activations


def measured_table(found: Verification, predicted: Sequence[int | None]) -> Table:
    """Predicted against measured, and both files against each other."""
    table = figures(found, predicted)
    rows = tuple(
        replace(row, cells=(Cell(row.cells[0].text.replace("  ", "– ", 1)), *row.cells[1:]), mark=row.style)
        for row in table.rows
    )
    return replace(table, rows=rows, caption=f"Measured in onnxruntime {found.new.onnxruntime} on {found.new.device}")


def agreement(found: Verification, predicted: Sequence[int | None]) -> list[str]:
    """How far prediction and measurement are apart, a sentence for each file of which both are known."""
    said, peaks = [], (found.base.peak_activations, found.new.peak_activations)
    for which, promised, peak in zip(("base", "new"), predicted, peaks, strict=True):
        if promised and peak:
            told = f"{format_bytes(promised)} predicted, {format_bytes(peak)} measured"
            said.append(f"{which}: {told} ({100 * (peak / promised - 1):+.2f} %)")
    return said


def cut(table: Table, shown: int) -> Table:
    """A table with its first rows only, and what is said of the others."""
    left = len(table.rows) - shown
    return replace(table, rows=table.rows[:shown], more=counted(left, "more row")) if left > 0 else table

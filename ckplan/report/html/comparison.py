"""A comparison as what the page shows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckplan.comparison import Level
from ckplan.report.comparison import facts, kind, limit_text, remedies, verdict
from ckplan.report.html.values import Cell, Checked, Row, Table, name, number, size
from ckplan.report.text import counted
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.comparison import Check, Comparison, Snapshot

_SHOWN = 200
"""Tensors of a model that are listed."""


def summary(found: Comparison) -> Table:
    """A row for each model."""
    rows = []
    for check in found.checks:
        base, head = check.base, check.head
        rows.append(
            Row(
                (
                    name(check.name),
                    _peak(base),
                    _peak(head),
                    _change(base, head),
                    Cell(limit_text(check)),
                    _level(check),
                )
            )
        )
    return Table(verdict(found), ("model", "base", "new", "change", "limit", ""), tuple(rows))


def checks(found: Comparison) -> list[Checked]:
    """What there is to say of each model."""
    said = []
    for check in found.checks:
        remedy = remedies(found, check)
        told = (*facts(check), *([("next", remedy)] if remedy else []))
        said.append(
            Checked(check.name, told, tuple(table for table in (_growth(check), _dropped(check)) if table.rows))
        )
    return said


def _peak(side: Snapshot | None) -> Cell:
    return Cell("-") if side is None else size(side.peak_activations)


def _change(base: Snapshot | None, head: Snapshot | None) -> Cell:
    if base is None or head is None or not base.peak_activations:
        return Cell("-")
    ratio = head.peak_activations / base.peak_activations - 1
    return number(ratio, f"{100 * ratio:+.1f} %")


def _level(check: Check) -> Cell:
    marks = {Level.PASSED: "✓ ", Level.WARNED: "! ", Level.FAILED: "✗ ", Level.ERROR: "✗ "}
    return Cell(marks[check.level] + check.level.value)


def _growth(check: Check) -> Table:
    rows = [
        Row(
            (
                name(growth.alive.tensor),
                number(growth.change, f"{'+' if growth.change > 0 else ''}{format_bytes(growth.change)}"),
                Cell(kind(growth), growth.before),
                size(growth.after),
                Cell(growth.alive.shape.replace("x", " × ")),
                Cell(growth.alive.op_type),
            ),
            mark=growth.alive.role,
        )
        for growth in check.growth[:_SHOWN]
    ]
    left = check.growth[_SHOWN:]
    more = counted(len(left), "more tensor") if left else ""
    columns = ("tensor", "change", "base", "new", "shape", "made by")
    return Table("What changed at the peak", columns, tuple(rows), more, sorted_by=1)


def _dropped(check: Check) -> Table:
    dropped = list((check.dropped or {}).items())
    rows = [Row((name(tensor), size(count))) for tensor, count in dropped[:_SHOWN]]
    left = dropped[_SHOWN:]
    more = counted(len(left), "more tensor") if left else ""
    return Table("Kept by the base's plan, computed again now", ("tensor", "bytes"), tuple(rows), more)

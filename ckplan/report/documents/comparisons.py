"""The answer of ``ckplan compare`` as a document."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckplan.comparison import Level
from ckplan.comparison.judging import change
from ckplan.comparison.snapshot import WORKSPACE
from ckplan.report.document import (
    ALL,
    TOP,
    Cell,
    Columns,
    Document,
    Fact,
    Facts,
    Row,
    Section,
    Table,
    counted,
    name,
    number,
    size,
    table_of,
)
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.comparison import Check, Comparison, Growth, Snapshot


def comparison(found: Comparison) -> Document:
    """All checks: a row for each, and a section with what there is to say."""
    alone = len(found.checks) == 1
    sections = [_section(found, check, alone) for check in found.checks]
    return Document(verdict(found), (Section("", (summary(found),)), *sections), found.notes, found.level.value)


def verdict(found: Comparison) -> str:
    """The findings in one line."""
    if not found.checks:
        return "nothing was compared"
    if len(found.checks) == 1:
        return f"{found.checks[0].name}: {found.checks[0].level.value}"
    counts = [sum(check.level is level for check in found.checks) for level in Level]
    told = [f"{count} {level.value}" for level, count in zip(Level, counts, strict=True) if count]
    return f"{counted(len(found.checks), 'check')}: {', '.join(told)}"


def summary(found: Comparison) -> Table:
    """A row for each check, and one below for what was measured."""
    rows = []
    for check in found.checks:
        sides = check.base, check.head
        peaks = [size(side.peak_activations if side else None) for side in sides]
        level = Cell(check.level.value, level=check.level.value)
        rows.append(Row((name(check.name), *peaks, _change(*sides), size(check.limit), level)))
        measured = [side and side.measured for side in sides]
        if any(measured):
            sizes = [size(side.peak_activations if side else None) for side in measured]
            rows.append(Row((Cell("  measured"), *sizes, *[Cell("")] * 3)))
    columns = ("activations, peak", "base", "new", "change", "limit", "")
    return Table(columns, tuple(rows), top=ALL)


def _change(base: Snapshot | None, head: Snapshot | None) -> Cell:
    if base is None or head is None or not base.peak_activations:
        return Cell("-")
    ratio = head.peak_activations / base.peak_activations - 1
    return number(ratio, f"{100 * ratio:+.1f} %")


def _section(found: Comparison, check: Check, alone: bool) -> Section:
    facts = list(_facts(check))
    if check.level is Level.FAILED and (remedy := found.remedy(check)):  # how to accept what grew, or what else to do
        facts.append(Fact("next", remedy))
    rows = [Row((size(count), name(tensor))) for tensor, count in (check.dropped or {}).items()]
    dropped = Table(("bytes", "tensor"), tuple(rows), caption="recomputed now, and not by the base's plan:")
    tables = [table for table in (_growth(check), dropped) if table.rows]
    level = check.level.value
    minor = check.level is Level.PASSED and not alone
    return Section(check.name, (Facts(tuple(facts)), *tables), level, check.source, minor)


def _facts(check: Check) -> Iterator[Fact]:
    """What is to be said of a check besides the tensors."""
    if check.error is not None:
        yield Fact("error", str(check.error), Level.ERROR.value)
        return
    assert check.head is not None
    for finding in check.findings:
        yield Fact(finding.level.value, finding.message, finding.level.value)
    if check.base is not None:
        if not check.findings:
            yield Fact("peak", change(check.base.peak_activations, check.head.peak_activations))
        yield Fact("base peak", _peak_node(check.base))
    yield Fact("new peak", _peak_node(check.head))
    old, new = (side and side.settings for side in (check.base, check.head))
    if new is not None:
        yield Fact("settings", str(new) if old is None or old == new else f"{new} (base: {old})")
    marks = [side.fingerprint.digest if side and side.fingerprint else "" for side in (check.base, check.head)]
    if all(marks):
        yield Fact("graph", "the same nodes" if marks[0] == marks[1] else "its nodes have changed")
    overheads = [side.overhead for side in (check.base, check.head) if side and side.overhead is not None]
    if check.head.overhead is not None:
        yield Fact("compute", " -> ".join(f"{100 * overhead:+.1f} %" for overhead in overheads))


def _peak_node(side: Snapshot) -> str:
    """The node at a side's peak."""
    if not side.peak_node:
        return f"{format_bytes(side.peak_activations)}, at a node that is not told"
    return f"{format_bytes(side.peak_activations)} at {f'{side.peak_op} ' if side.peak_op else ''}'{side.peak_node}'"


def _growth(check: Check) -> Table:
    """The buffers whose part in the peak grew."""
    shrunk = sum(growth.change for growth in check.growth if growth.change < 0)
    grown = check.grown
    columns: Columns[Growth] = {
        "more": lambda growth: number(growth.change, f"+{format_bytes(growth.change)}"),
        "before": lambda growth: Cell(format_bytes(growth.before) if growth.before else "new", growth.before),
        "after": lambda growth: size(growth.after),
        "made by": lambda growth: Cell(f"{'in ' * (growth.alive.shape == WORKSPACE)}{growth.alive.op_type}"),
        "node": lambda growth: name(growth.alive.node),
        "grew or appeared at the peak": lambda growth: name(growth.alive.tensor),
    }
    rest = f"and {len(grown) - TOP} more with {format_bytes(sum(growth.change for growth in grown[TOP:]))}"
    more = f"others shrank or left the peak, with {format_bytes(-shrunk)}" if shrunk else ""
    marks = [growth.alive.role for growth in grown]
    return table_of(grown, columns, marks, rest=rest, more=more, sorted_by=0, wide=frozenset({4}))

"""A comparison for people, on 80 columns."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from ckplan.comparison import Level
from ckplan.comparison.judging import change
from ckplan.report.text import counted, ending, line, page, section, table
from ckplan.report.untrusted import printable
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.comparison import Check, Comparison, Growth, Snapshot

SHOWN = 10
"""How many tensors are named."""

_STYLES = {Level.PASSED: "green", Level.WARNED: "yellow", Level.FAILED: "red", Level.ERROR: "red"}


def comparison(found: Comparison) -> RenderableType:
    """The whole answer of ``ckplan compare``."""
    parts: list[RenderableType] = [Group(line(verdict(found)), "", _table(found))]
    parts += [_details(found, check) for check in found.checks if check.level is not Level.PASSED or _is_alone(found)]
    return page(*parts)


def _is_alone(found: Comparison) -> bool:
    return len(found.checks) == 1


def verdict(found: Comparison) -> str:
    """The findings in one line."""
    if not found.checks:
        return "nothing was compared"
    if _is_alone(found):
        check = found.checks[0]
        return f"{printable(check.name)}: {check.level.value}"
    counts = [sum(check.level is level for check in found.checks) for level in Level]
    told = [f"{count} {level.value}" for level, count in zip(Level, counts, strict=True) if count]
    return f"{counted(len(found.checks), 'check')}: {', '.join(told)}"


def _table(found: Comparison) -> Table:
    numbers = ("base", "new", "change", "limit")
    rows = table("activations, peak", *numbers, "", numbers=numbers)
    for check in found.checks:
        rows.add_row(
            Text(ending(printable(check.name), 22), no_wrap=True),
            format_bytes(check.base.peak_activations) if check.base else "-",
            format_bytes(check.head.peak_activations) if check.head else "-",
            _ratio(check.base, check.head),
            "-" if check.limit is None else format_bytes(check.limit),
            Text(check.level.value, style=_STYLES[check.level]),
        )
        measured = [side.measured if side else None for side in (check.base, check.head)]
        if any(measured):
            sizes = [format_bytes(side.peak_activations) if side else "-" for side in measured]
            rows.add_row("  measured", *sizes)
    return rows


def _ratio(base: Snapshot | None, head: Snapshot | None) -> str:
    if base is None or head is None or not base.peak_activations:
        return "-"
    return f"{100 * (head.peak_activations / base.peak_activations - 1):+.1f} %"


def limit_text(check: Check) -> str:
    """What the check must keep to, as short as it goes."""
    allowed, budget = check.limits.max_regression, check.limits.budget
    parts = [] if allowed is None or check.base is None else [f"{100 * allowed:+g} %"]
    if budget is not None:
        parts.append(format_bytes(budget) if isinstance(budget, int) else f"{100 * budget:g} %")
    return ", ".join(parts) or "-"


def facts(check: Check) -> Iterator[tuple[str, str]]:
    """What is to be said of a check besides the tensors, as pairs of a title and a text with untrusted names in it."""
    if check.error is not None:
        yield "error", str(check.error)
        return
    assert check.head is not None
    for finding in check.findings:
        yield finding.level.value, finding.message
    if check.base is not None:
        if not check.findings:
            yield "peak", change(check.base.peak_activations, check.head.peak_activations)
        yield "base peak", peak_node(check.base)
    yield "new peak", peak_node(check.head)
    old, new = (side.settings if side is not None else None for side in (check.base, check.head))
    if new is not None:
        yield "settings", str(new) if old is None or old == new else f"{new} (base: {old})"
    marks = [side.fingerprint.digest if side and side.fingerprint else "" for side in (check.base, check.head)]
    if all(marks):
        yield "graph", "the same nodes" if marks[0] == marks[1] else "its nodes have changed"
    overheads = [side.overhead if side else None for side in (check.base, check.head)]
    if overheads[1] is not None:
        told = [f"{100 * overhead:+.1f} %" for overhead in overheads if overhead is not None]
        yield "compute", " -> ".join(told)


def peak_node(side: Snapshot) -> str:
    """The node at a side's peak."""
    if not side.peak_node:
        return f"{format_bytes(side.peak_activations)}, at a node that is not told"
    return f"{format_bytes(side.peak_activations)} at {f'{side.peak_op} ' if side.peak_op else ''}'{side.peak_node}'"


def kind(growth: Growth) -> str:
    """What the base's peak had of a buffer."""
    if not growth.after:
        return "gone"
    return format_bytes(growth.before) if growth.before else "new"


def remedies(found: Comparison, check: Check) -> str:
    """How to accept what grew, or what to do else; empty where nothing failed."""
    return found.remedy(check) if check.level is Level.FAILED else ""


def _details(found: Comparison, check: Check) -> RenderableType:
    grid = Table.grid(padding=(0, 2))
    for title, text in facts(check):
        grid.add_row(title, Text(printable(text)))
    remedy = remedies(found, check)
    if remedy:
        grid.add_row("next", Text(printable(remedy)))
    parts: list[RenderableType] = [grid]
    if check.grown:
        shrunk = sum(growth.change for growth in check.growth if growth.change < 0)
        parts += ["", _growth(check)]
        if len(check.grown) > SHOWN:
            rest = sum(growth.change for growth in check.grown[SHOWN:])
            parts.append(f"and {len(check.grown) - SHOWN} more with {format_bytes(rest)}")
        if shrunk:
            parts.append(f"others shrank or left the peak, with {format_bytes(-shrunk)}")
    if check.dropped:
        parts += ["", *_dropped(check)]
    return section(printable(check.name), *parts)


def _growth(check: Check) -> Table:
    rows = table(
        "more", "before", "after", "made by", "grew or appeared at the peak", numbers=("more", "before", "after")
    )
    for growth in check.grown[:SHOWN]:
        alive = growth.alive
        after = format_bytes(growth.after)
        name = Text(ending(printable(alive.tensor)), no_wrap=True)
        rows.add_row(f"+{format_bytes(growth.change)}", kind(growth), after, maker(growth), name)
    return rows


def maker(growth: Growth) -> str:
    """The operator that made a buffer, short."""
    alive = growth.alive
    text = f"in {alive.op_type}" if alive.shape == "workspace" else alive.op_type
    return ending(printable(text), 12)


def _dropped(check: Check) -> Iterator[Text]:
    dropped = check.dropped or {}
    yield Text("kept by the base's plan, computed again now:")
    for name, size in list(dropped.items())[:SHOWN]:
        yield Text(f"  {format_bytes(size)}  {ending(printable(name), 60)}", no_wrap=True)
    if len(dropped) > SHOWN:
        yield Text(f"  and {len(dropped) - SHOWN} more")

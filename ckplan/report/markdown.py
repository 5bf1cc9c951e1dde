"""A comparison as Markdown, for the summary of a CI job or a comment. Names in it are untrusted."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from ckplan.comparison import Level
from ckplan.report.comparison import SHOWN, facts, kind, limit_text, remedies, verdict
from ckplan.report.untrusted import code, markdown
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.comparison import Check, Comparison, Snapshot

_MARKS = {Level.PASSED: "✅", Level.WARNED: "⚠️", Level.FAILED: "❌", Level.ERROR: "❌"}


def comparison(found: Comparison) -> str:
    """The whole answer of ``ckplan compare``; ends in a newline."""
    return "\n".join(_lines(found)) + "\n"


def _lines(found: Comparison) -> Iterator[str]:
    yield f"### {_MARKS[found.level]} Memory: {markdown(verdict(found))}"
    yield ""
    measured = any(side and side.measured for check in found.checks for side in (check.base, check.head))
    heads = ["model", "base", "new", "change", "limit", *(["measured"] * measured), "result"]
    yield _row(heads)
    yield _row([":--", *["--:"] * (len(heads) - 2), ":--"])
    for check in found.checks:
        yield _row(_cells(check, measured))
    for check in found.checks:
        if check.level is not Level.PASSED:
            yield ""
            yield from _details(found, check)
    if found.notes:
        yield ""
        yield "<details><summary>Notes</summary>"
        yield ""
        yield from (f"- {markdown(note)}" for note in found.notes)
        yield ""
        yield "</details>"


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _cells(check: Check, measured: bool) -> list[str]:
    def size(side: Snapshot | None) -> str:
        return format_bytes(side.peak_activations) if side else "-"

    def ran(side: Snapshot | None) -> str:
        return format_bytes(side.measured.peak_activations) if side and side.measured else "-"

    change = "-"
    if check.base and check.head and check.base.peak_activations:
        change = f"{100 * (check.head.peak_activations / check.base.peak_activations - 1):+.1f} %"
    cells = [code(check.name), size(check.base), size(check.head), change, limit_text(check)]
    cells += [f"{ran(check.base)} → {ran(check.head)}"] if measured else []
    return [*cells, f"{_MARKS[check.level]} {check.level.value}"]


def _details(found: Comparison, check: Check) -> Iterator[str]:
    yield f"#### {markdown(check.name)}"
    yield ""
    for title, text in facts(check):
        yield f"- {title}: {markdown(text)}"
    remedy = remedies(found, check)
    if remedy:
        yield f"- next: {markdown(remedy)}"
    if check.grown:
        yield ""
        yield _row(["more", "before", "after", "made by", "grew or appeared at the peak"])
        yield _row(["--:", "--:", "--:", ":--", ":--"])
        for growth in check.grown[:SHOWN]:
            alive = growth.alive
            sizes = [f"+{format_bytes(growth.change)}", kind(growth), format_bytes(growth.after)]
            yield _row([*sizes, f"{markdown(alive.op_type)} {code(alive.node)}", code(alive.tensor)])
        if len(check.grown) > SHOWN:
            yield ""
            yield f"and {len(check.grown) - SHOWN} more"
    if check.dropped:
        yield ""
        named = ", ".join(f"{code(name)} ({format_bytes(size)})" for name, size in list(check.dropped.items())[:SHOWN])
        more = f" and {len(check.dropped) - SHOWN} more" if len(check.dropped) > SHOWN else ""
        yield f"Kept by the base's plan, computed again now: {named}{more}"

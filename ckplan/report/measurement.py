"""One measured file, for people."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ckplan.report.bisection import bisection
from ckplan.report.chart import LINE, Chart
from ckplan.report.text import counted, ending, line, page, percent, section, table
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ckplan.meter import Alive, Bisection, Counters, Inside, Measurement

_TOP = 10
_LEAST = 1e-3
"""Share of the peak below which a buffer is of no account."""


def measurement(found: Measurement, limits: Bisection | None = None) -> RenderableType:
    """The whole answer of ``ckplan measure``."""
    threads = "onnxruntime's choice of threads" if found.threads is None else counted(found.threads, "thread")
    parts: list[RenderableType] = [
        line(summary(found)),
        section(f"Measured in onnxruntime {found.onnxruntime} on {found.device}, {threads}", _figures(found)),
    ]
    if limits is not None:
        title, contents = bisection(limits)
        parts.append(section(title, *contents))
    counters, inside = found.counters, found.inside
    if counters is not None:
        expected = inside.expected if inside is not None else None
        parts.append(section("Activations over the run", Chart(counters.timeline, expected=expected), *_gap(found)))
        if inside is not None:
            where = counters.timeline.steps[counters.timeline.peak_step].op
            shown = _worth_showing(inside, counters)
            of = (
                f"the largest {len(shown)} of {len(inside.alive)}"
                if len(inside.alive) > len(shown)
                else f"{len(shown)}"
            )
            title = f"Alive at the peak, in '{ending(where, 28)}' ({of})"
            parts.append(section(title, _alive(shown, counters), Text(_explained(inside, counters))))
        parts.append(section(*_slowest(counters)))
    if found.problems:
        parts.append(section("Problems", *(Text(f"- {problem}") for problem in found.problems)))
    return page(*parts)


def summary(found: Measurement) -> str:
    """The findings in one line."""
    parts = []
    if found.peak_activations is not None:
        parts.append(f"activations {format_bytes(found.peak_activations)}")
    if found.peak_total is not None:
        parts.append(f"total {format_bytes(found.peak_total)}")
    parts.append(f"{format_seconds(found.seconds)} a run")
    return f"{Path(found.path).name}: {', '.join(parts)}"


def _figures(found: Measurement) -> Table:
    expected = found.inside.expected if found.inside is not None else None
    promised = found.prediction
    promises = promised.peak_activations is not None or promised.peak_total is not None
    headers = ["measured", *["expected"] * (expected is not None), *["promised by the file"] * promises]
    rows = table("", *headers, numbers=headers)

    def add(title: str, measured: int | None, *others: int | None, style: str = "") -> None:
        if measured is None:
            return
        cells = [*others, None, None][: len(headers) - 1]
        rows.add_row(title, format_bytes(measured), *map(_bytes, cells), style=style)

    told: list[tuple[int | None, int | None]] = []
    if expected is not None:
        told.append((expected.peak_activations, expected.peak_total))
    if promises:
        told.append((promised.peak_activations, promised.peak_total))
    add("activations, peak", found.peak_activations, *(peak for peak, _ in told), style="bold")
    add("  in priority order", found.priority.peak_activations if found.priority else None)
    add("  heap (second meter)", found.heap.activations if found.heap and found.counters else None)
    add("all live memory, peak", found.peak_total, *(peak for _, peak in told), style="bold")
    add("  parameters", found.counters.parameters if found.counters else found.parameter_bytes)
    add("  inputs", found.input_bytes)
    add("  outputs", found.output_bytes)
    steady = found.counters.steady if found.counters is not None else None
    arena = found.inside.arena if found.inside is not None else None
    for title, told_held, expected_held in (
        ("steady state, in use", steady.in_use if steady else None, arena.steady.in_use if arena else None),
        ("steady state, arena held", steady.held if steady else None, arena.steady.held if arena else None),
        (
            "  without memory pattern",
            found.steady_without_pattern.held if found.steady_without_pattern else None,
            arena.without_pattern.held if arena else None,
        ),
    ):
        add(title, told_held, *[expected_held] * (expected is not None))
    if found.gpu is not None:
        add("GPU, by its driver" if found.gpu.of_process else "GPU, all processes", found.gpu.peak)
    add("resident (misleads)", found.resident.peak, style="dim")
    rows.add_row("time of a run", format_seconds(found.seconds), *[""] * (len(headers) - 1), style="bold")
    return rows


def _bytes(count: int | None) -> str:
    return "" if count is None else format_bytes(count)


def _gap(found: Measurement) -> list[Text]:
    """What is to be said of the two timelines laid over each other."""
    if found.counters is None or found.inside is None:
        return []
    gap = found.widest_gap
    if gap is None:
        return [Text("as expected at every step", style="dim")]
    node = ending(found.counters.timeline.steps[gap.step].op, 24)
    more = "more" if gap.bytes > 0 else "less"
    text = f"widest gap: {format_bytes(abs(gap.bytes))} {more} than expected ({LINE}), at step {gap.step + 1}, '{node}'"
    return [Text(text, style="dim")]


def _worth_showing(inside: Inside, counters: Counters) -> Sequence[Alive]:
    """The largest buffers, without those of no account."""
    return [alive for alive in inside.alive[:_TOP] if alive.bytes >= _LEAST * counters.peak_activations]


def _alive(shown: Sequence[Alive], counters: Counters) -> Table:
    rows = table("bytes", "share", "made by", "", "tensor", numbers=("bytes", "share"))
    whole = counters.peak_activations
    for alive in shown:
        share = percent(alive.bytes / whole) if whole else ""
        name, op_type = Text(ending(alive.name, 24)), ending(alive.op_type, 14)
        rows.add_row(format_bytes(alive.bytes), share, op_type, _kind(alive), name)
    return rows


def _kind(alive: Alive) -> str:
    if alive.held:
        return "unused, held"
    return "recomputed" if alive.recomputed else "backward" if alive.backward else "forward"


def _explained(inside: Inside, counters: Counters) -> str:
    """How much of the measured peak the tensors and the workspace make up."""
    tensors = sum(alive.bytes for alive in inside.alive)
    taken = inside.workspaces[counters.timeline.peak_step]
    workspace = f" and {format_bytes(taken)} of workspace" if taken else ""
    return f"{format_bytes(tensors)} of tensors{workspace}; {format_bytes(counters.peak_activations)} were measured"


def _slowest(counters: Counters) -> tuple[str, Table]:
    taken: dict[tuple[str, str], float] = {}
    for step, op_type, seconds in zip(counters.timeline.steps, counters.op_types, counters.seconds, strict=True):
        taken[op_type, step.op] = taken.get((op_type, step.op), 0.0) + seconds
    whole = sum(taken.values())
    slowest = sorted(taken.items(), key=lambda entry: -entry[1])[:_TOP]
    rows = table("time", "share", "operator", "node", numbers=("time", "share"))
    for (op_type, name), seconds in slowest:
        rows.add_row(
            format_seconds(seconds), percent(seconds / whole) if whole else "", op_type, Text(ending(name, 40))
        )
    shown = f"{len(slowest)} of {len(taken):,}" if len(taken) > len(slowest) else f"{len(taken)}"
    return f"Slowest nodes ({shown}, {format_seconds(whole)} for all)", rows

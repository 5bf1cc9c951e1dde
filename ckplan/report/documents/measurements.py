"""The answer of ``ckplan measure`` as a document: one measured file."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.meter.memory.meters import figures
from ckplan.report.chart import LINE
from ckplan.report.document import (
    ALL,
    TOP,
    Block,
    Cell,
    Columns,
    Document,
    Line,
    MemoryChart,
    Row,
    Section,
    Table,
    counted,
    listed,
    name,
    number,
    percent,
    share,
    size,
    table_of,
)
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ckplan.meter import Bisection, Counters, Inside, LiveTensor, Measurement

_LEAST = 1e-3
"""Share of the peak below which a buffer is of no account."""


def measurement(found: Measurement, limits: Bisection | None = None) -> Document:
    """What a file takes: its figures, its memory over the run, what is alive at the peak, the slowest nodes."""
    title = f"Measured in onnxruntime {found.onnxruntime} on {found.device}, {_threads(found)}"
    sections = [Section(title, (_figures(found),))]
    if limits is not None:
        sections.append(_bisection(limits))
    counters, inside = found.counters, found.inside
    if counters is not None:
        chart = MemoryChart(counters.timeline, inside.expected if inside is not None else None)
        sections.append(Section("Activations over the run", (chart, *_gap(found))))
        if inside is not None:
            sections.append(_at_peak(inside, counters))
        sections.append(_slowest(counters))
    level = "failed" if found.problems else "passed"
    return Document(summary(found), (*sections, *listed("Problems", found.problems)), found.notes, level)


def _threads(found: Measurement) -> str:
    """On how many threads kernels ran, and for how many workspaces are expected where that is not known."""
    if found.threads is not None:
        return counted(found.threads, "thread")
    expected = None if found.inside is None else found.inside.threads
    what = "" if expected is None else f" (expected: the workspaces of {counted(expected, 'thread')})"
    return f"onnxruntime's choice of threads{what}"


def summary(found: Measurement) -> str:
    """The findings in one line."""
    peaks = (("activations", found.peak_activations), ("total", found.peak_total))
    parts = [f"{what} {format_bytes(peak)}" for what, peak in peaks if peak is not None]
    parts.append(f"{format_seconds(found.seconds)} a run")
    return f"{Path(found.path).name}: {', '.join(parts)}"


def _figures(found: Measurement) -> Table:
    expects = found.inside is not None
    promises = found.prediction.peak_activations is not None or found.prediction.peak_total is not None
    columns = ("", "measured", *["expected"] * expects, *["promised by the file"] * promises)
    rows: list[Row] = []
    for figure in figures():
        measured = figure.of(found)
        if measured is not None:
            others = [figure.expected] * expects + [figure.promised] * promises
            cells = (size(of and of(found), "") for of in others)
            rows.append(Row((Cell(figure.title), size(measured), *cells), figure.style))
    seconds = number(found.seconds, format_seconds(found.seconds))
    rows.append(Row((Cell("time of a run"), seconds, *[Cell("")] * (len(columns) - 2)), "bold"))
    return Table(columns, tuple(rows), top=ALL)


def _gap(found: Measurement) -> list[Line]:
    """What is to be said of the two timelines laid over each other."""
    if found.counters is None or found.inside is None:
        return []
    gap = found.widest_gap
    if gap is None:
        return [Line("as expected at every step", "dim")]
    node = found.counters.timeline.steps[gap.step].op
    more = "more" if gap.bytes > 0 else "less"
    text = f"widest gap: {format_bytes(abs(gap.bytes))} {more} than expected ({LINE}), at step {gap.step + 1}, '{node}'"
    return [Line(text, "dim")]


def _at_peak(inside: Inside, counters: Counters) -> Section:
    where = counters.timeline.steps[counters.timeline.peak_step].op
    whole = counters.peak_activations
    shown = [alive for alive in inside.alive[:TOP] if alive.bytes >= _LEAST * whole]
    of = f"the largest {len(shown)} of {len(inside.alive)}" if len(inside.alive) > len(shown) else f"{len(shown)}"
    columns: Columns[LiveTensor] = {
        "bytes": lambda alive: size(alive.bytes),
        "share": lambda alive: share(alive.bytes, whole),
        "made by": lambda alive: Cell(alive.op_type),
        "": lambda alive: Cell(_kind(alive)),
        "tensor": lambda alive: name(alive.name),
    }
    blocks = (table_of(shown, columns), Line(_explained(inside, counters)))
    return Section(f"Alive at the peak, in '{where}' ({of})", blocks)


def _kind(alive: LiveTensor) -> str:
    if alive.held:
        return "unused, held"
    return "recomputed" if alive.recomputed else "backward" if alive.backward else "forward"


def _explained(inside: Inside, counters: Counters) -> str:
    """How much of the measured peak the tensors and the workspace make up."""
    tensors = sum(alive.bytes for alive in inside.alive)
    taken = inside.workspaces[counters.timeline.peak_step]
    workspace = f" and {format_bytes(taken)} of workspace" if taken else ""
    return f"{format_bytes(tensors)} of tensors{workspace}; {format_bytes(counters.peak_activations)} were measured"


def _slowest(counters: Counters) -> Section:
    taken: dict[tuple[str, str], float] = {}
    for step, op_type, seconds in zip(counters.timeline.steps, counters.op_types, counters.seconds, strict=True):
        taken[op_type, step.op] = taken.get((op_type, step.op), 0.0) + seconds
    whole = sum(taken.values())
    slowest = sorted(taken.items(), key=lambda entry: -entry[1])[:TOP]
    rows = [
        Row((number(seconds, format_seconds(seconds)), share(seconds, whole), Cell(op_type), name(node)))
        for (op_type, node), seconds in slowest
    ]
    shown = f"{len(slowest)} of {len(taken):,}" if len(taken) > len(slowest) else f"{len(taken)}"
    table = Table(("time", "share", "operator", "node"), tuple(rows))
    return Section(f"Slowest nodes ({shown}, {format_seconds(whole)} for all)", (table,))


def _bisection(found: Bisection) -> Section:
    """The smallest arena in which a file runs."""
    rows = [
        Row((Cell(title), size(one.limit), size(one.expected, ""), size(one.in_use), share(one.fragmentation)))
        for title, one in (("default options", found.default), ("memory patterns off", found.plain))
    ]
    tries = len(found.default.tries) + len(found.plain.tries)
    said = [f"{counted(tries, 'limit')} tried; a limit smaller by {percent(found.precision)} is too small"]
    if found.without_block and found.plain.limit < found.default.limit:
        said.append(
            f"within {format_bytes(found.plain.limit)} it runs with default options, too: onnxruntime does without the "
            "block of its memory pattern where that does not fit; limits between the two may fail"
        )
    options = ", ".join(f"{key}={value}" for key, value in found.options.items())
    said.append(f"set by {'OrtArenaCfg' if found.device == 'cpu' else 'provider options'}: {options}")
    what = "Smallest arena" if found.device == "cpu" else "Smallest gpu_mem_limit"
    blocks: Sequence[Block] = [
        Table(("", "smallest", "expected", "in use", "fragmentation"), tuple(rows)),
        *(Line(text, "dim") for text in said),
    ]
    return Section(f"{what} in which it runs", tuple(blocks))

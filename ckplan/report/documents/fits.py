"""The answer of ``ckplan fit`` as a document: the largest size that fits, and what each one costs."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ckplan.report.document import ALL, Cell, Document, Line, Row, Section, Table, percent, share, size
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.answers.fit import Fit, Size


def fit(model: Path, output: Path | None, found: Fit) -> Document:
    """The largest size in one line, and a row for each that was tried."""
    largest = found.largest
    assert largest.footprint is not None
    title = (
        f"{output or model}: {found.dimension}={largest.size} fits into {format_bytes(found.memory)}, with "
        f"{format_bytes(largest.footprint.total)} and {percent(largest.overhead)} of extra compute"
    )
    rows = tuple(Row(_cells(one), "bold" if one is largest else "") for one in found.sizes)
    columns = (found.dimension, "without a plan", "with it", "activations", "overhead", "")
    beyond = next((one for one in found.sizes if one.size > largest.size), None)
    why = [Line(f"{found.dimension}={beyond.size} does not fit: {beyond.reason}")] if beyond is not None else []
    return Document(title, (Section("What a process holds, by size", (Table(columns, rows, top=ALL), *why)),))


def _cells(one: Size) -> tuple[Cell, ...]:
    number = Cell(f"{one.size:,}", one.size)
    if one.footprint is None:
        return number, size(one.plain or None), Cell("-"), Cell("-"), Cell("-"), Cell("does not fit")
    held = one.footprint
    return number, size(one.plain), size(held.total), size(held.activations), share(one.overhead), Cell("fits")

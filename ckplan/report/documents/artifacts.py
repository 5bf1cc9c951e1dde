"""The answers of ``ckplan artifacts`` as documents."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ckplan.report.document import ALL, Cell, Document, Row, Section, Table, counted, size
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.bundle.manifest import Artifacts

_PURPOSES = {
    "training": "loss and gradients",
    "evaluation": "loss and outputs",
    "update": "gradients to new parameters",
    "checkpoint": "initial parameters",
}


def written(made: Artifacts) -> Document:
    """What was written, a row for each file."""
    peaks = made.manifest["peak_activations"]
    before, after = (format_bytes(peaks[name]) for name in ("without_a_plan", "predicted"))
    took = f"activations {before} -> {after}" if before != after else f"activations {after}"
    title = f"{made.folder}: {counted(len(made.gradients), 'gradient')}, {made.manifest['optimizer']}, {took}"
    files = made.manifest["files"]
    rows = [
        Row((Cell(files[kind]["name"]), Cell(purpose), size(files[kind]["bytes"])))
        for kind, purpose in _PURPOSES.items()
    ]
    return Document(title, (Section("", (Table(("file", "what it is for", "size"), tuple(rows), top=ALL),)),))


def checked(found: Artifacts) -> Document:
    """One line: the files are whole and of the model."""
    files = counted(len(found.manifest["files"]), "file")
    return Document(f"{found.folder}: {files}, whole, and made from {found.manifest['model']['name']}", ())

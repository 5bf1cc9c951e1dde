"""The answer of ``ckplan doctor`` as a document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from ckplan.report.document import ALL, Cell, Document, Row, Section, Table

if TYPE_CHECKING:
    from ckplan.meter.checkup import Finding


def checkup(found: Sequence[Finding]) -> Document:
    """A row for each thing that was looked at."""
    rows = []
    for finding in found:
        told = f"{finding.found}; {finding.remedy}" if finding.remedy else finding.found
        rows.append(Row((Cell(finding.name), Cell(finding.state, level=finding.state), Cell(told))))
    return Document("", (Section("", (Table(("", "", "found"), tuple(rows), top=ALL),)),))

"""The answer of ``ckplan doctor``."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.text import Text

from ckplan.report.json import SCHEMA
from ckplan.report.text import table

if TYPE_CHECKING:
    from ckplan.meter.checkup import Finding

_STYLES = {"ok": "green", "missing": "yellow", "broken": "bold red"}


def checkup(found: Sequence[Finding]) -> RenderableType:
    """A row for each thing that was looked at."""
    rows = table("", "", "found")
    rows.columns[0].no_wrap = rows.columns[1].no_wrap = True
    for finding in found:
        told = Text(finding.found, overflow="fold")
        if finding.remedy:
            told.append(f"; {finding.remedy}", style="italic")
        rows.add_row(Text(finding.name), Text(finding.state, style=_STYLES[finding.state]), told)
    return rows


def checkup_json(found: Sequence[Finding]) -> dict[str, Any]:
    """The same for programs."""
    return {"schema": SCHEMA, "command": "doctor", "checks": [dataclasses.asdict(finding) for finding in found]}

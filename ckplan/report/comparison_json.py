"""A comparison for programs."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from ckplan.report.json import SCHEMA, Json

if TYPE_CHECKING:
    from ckplan.comparison import Check, Comparison


def comparison(found: Comparison) -> Json:
    """What ``ckplan compare`` found; `ckplan compare` reads it again as a side."""
    return {
        "schema": SCHEMA,
        "command": "compare",
        "level": found.level.value,
        "notes": list(found.notes),
        "accept": found.accept,
        "checks": [_check(check) for check in found.checks],
    }


def _check(check: Check) -> Json:
    sides = {"base": check.base, "head": check.head}
    return {
        "name": check.name,
        "source": check.source,
        "level": check.level.value,
        "error": None if check.error is None else str(check.error),
        "findings": [{**dataclasses.asdict(finding), "level": finding.level.value} for finding in check.findings],
        "limit": check.limit,
        "limits": dataclasses.asdict(check.limits),
        "growth": [
            {
                **dataclasses.asdict(growth.alive),
                "bytes": growth.after,
                "before": growth.before,
                "change": growth.change,
            }
            for growth in check.growth
        ],
        "dropped": dict(check.dropped or {}),
        **{name: None if side is None else side.to_json() for name, side in sides.items()},
    }

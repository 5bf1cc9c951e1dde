"""Draw the README's picture from what its first command measures: ``python -m docs.picture``."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

from ckplan.planner import Timeline
from ckplan.report.curves import Curve, curves
from docs.examples import ROOT, bash, blocks, commands, prepare

PICTURE = ROOT / "docs" / "saving.svg"
TITLE = "Activations over one training step of a small GPT, batch 16, measured in onnxruntime"


def first_command() -> str:
    """The first command that the README shows the output of."""
    page = (ROOT / "README.md").read_text(encoding="utf-8")
    return next(commands(block)[0].line for block in blocks(page) if block.language == "console")


def picture(verification: dict[str, Any]) -> str:
    """The timelines of a verification, as ``ckplan rewrite --verify --json`` prints it."""
    base, new = (Timeline.from_json(verification[side]["counters"]["timeline"]) for side in ("base", "new"))
    return curves([Curve("without a plan", base), Curve("planned by ckplan", new)], TITLE)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        code, printed = bash(f"{first_command()} --json --quiet", folder, prepare(folder))
    if code:
        raise SystemExit(printed)
    PICTURE.write_text(picture(json.loads(printed)["verification"]), encoding="utf-8")

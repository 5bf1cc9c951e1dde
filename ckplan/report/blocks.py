"""What a plan keeps and recomputes, by the repeated blocks of the network."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from ckplan.report.text import page, section, table
from ckplan.units import format_bytes, format_seconds

if TYPE_CHECKING:
    from ckplan.answers.findings import Block, Chosen

_TOP = 8


def blocks(found: Chosen) -> RenderableType:
    """A table of the layers, if there are any, and one of the groups of nodes."""
    parts = [
        section(f"{what}: kept for the backward pass and recomputed by `{found.strategy}`", _table(rows, header))
        for what, header, rows in (("Repeated layers", "layer", found.layers), ("Groups", "nodes", found.blocks))
        if any(block.decisions for block in rows)
    ]
    return page(*parts)


def _table(found: Sequence[Block], what: str) -> Table:
    headers = ("", "kept", "recomputed", "extra time")
    rows = table(what, *headers, numbers=headers)
    for block in found[:_TOP]:
        rows.add_row(Text(block.name), f"x {block.count:,}", *_figures([block]))
    if found[_TOP:]:
        others = sum(block.count for block in found[_TOP:])
        rows.add_row(Text("others", style="dim"), f"x {others:,}", *_figures(found[_TOP:]))
    return rows


def _figures(found: Sequence[Block]) -> tuple[str, str, str]:
    kept, recomputed = sum(block.kept for block in found), sum(block.recomputed for block in found)
    seconds = sum(block.seconds for block in found)
    return (
        format_bytes(kept) if kept else "-",
        format_bytes(recomputed) if recomputed else "-",
        format_seconds(seconds) if seconds else "-",
    )


def blocks_json(found: Chosen) -> dict[str, Any]:
    """The same for programs, with the names of the tensors."""
    return {
        "strategy": found.strategy,
        "layers": [_block(block) for block in found.layers],
        "groups": [_block(block) for block in found.blocks],
    }


def _block(found: Block) -> dict[str, Any]:
    return {
        "name": found.name,
        "count": found.count,
        "kept": found.kept,
        "recomputed": found.recomputed,
        "extra_seconds": found.seconds,
        "tensors": {
            "kept": [decision.tensor for decision in found.decisions if not decision.times],
            "recomputed": [decision.tensor for decision in found.decisions if decision.times],
        },
    }

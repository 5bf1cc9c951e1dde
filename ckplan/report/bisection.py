"""The smallest arena in which a file runs, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.text import Text

from ckplan.report.text import counted, percent, table
from ckplan.units import format_bytes

if TYPE_CHECKING:
    from ckplan.meter import Bisection


def bisection(found: Bisection) -> tuple[str, list[RenderableType]]:
    """Title and contents of a section on the smallest limit of memory."""
    columns = ("smallest", "expected", "in use", "fragmentation")
    rows = table("", *columns, numbers=columns)
    for title, smallest in (("default options", found.default), ("memory patterns off", found.plain)):
        expected = "" if smallest.expected is None else format_bytes(smallest.expected)
        figures = (format_bytes(smallest.limit), expected, format_bytes(smallest.in_use))
        rows.add_row(title, *figures, percent(smallest.fragmentation))
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
    return f"{what} in which it runs", [rows, *(Text(text, style="dim") for text in said)]

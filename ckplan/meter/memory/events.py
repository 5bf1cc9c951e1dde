"""The events of a profile that onnxruntime wrote.

A loop has an event for each node of its body in each of its steps, and onnxruntime keeps no more than a million of them
in a session. Of a loop of many steps only those are read of which a peak may be.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ckplan.errors import EnvironmentUnavailableError

if TYPE_CHECKING:
    import onnx_ir as ir

MOST_EVENTS = 900_000
"""Events that a session may be asked for: onnxruntime keeps a million and drops those that follow."""

_OFTEN = 100
"""Events of a node in one run from which they are read no more, unless one is a new high."""

_NAME = re.compile(r'"name"\s*:\s*"((?:[^"\\]|\\.)*)"')
_REQUESTED = re.compile(r'"mem_bytes_requested_in_use"\s*:\s*"?(\d+)')
_RUN = '"model_run"'


def read_events(profile: Path) -> Iterator[dict[str, Any]]:
    """The events of a profile, in the order of the file.

    Of a node that has many in one run those are left out for which no more memory is in use than for one before.

    Args:
        profile: a list in JSON, an event to a line, as onnxruntime writes it.

    Raises:
        EnvironmentUnavailableError: it is cut off. onnxruntime says nothing where there is no room for all of it.
    """
    seen: dict[str, int] = {}
    highest: dict[str, int] = {}
    line = ""
    with profile.open(encoding="utf-8") as lines:
        for line in lines:
            text = line.strip().strip("[],")
            if not text:
                continue
            if _RUN in text:
                seen, highest = {}, {}
            elif (name := _NAME.search(text)) is not None:
                key, requested = name[1], _REQUESTED.search(text)
                in_use = int(requested[1]) if requested is not None else 0
                seen[key] = seen.get(key, 0) + 1
                if seen[key] > _OFTEN and in_use <= highest[key]:
                    continue
                highest[key] = max(highest.get(key, 0), in_use)
            try:
                yield json.loads(text)
            except ValueError:
                raise _cut_off() from None
    if not line.rstrip().endswith("]"):
        raise _cut_off()


def _cut_off() -> EnvironmentUnavailableError:
    return EnvironmentUnavailableError(
        "the profile that onnxruntime wrote is cut off", "free some space for it, or set TMPDIR to another folder"
    )


def events_of(graph: ir.Graph) -> int:
    """About how many events a run of a graph makes; a loop whose number of steps is not known counts as one step."""
    count = 0
    for node in graph:
        steps = _steps(node)
        bodies = (a.as_graph() for a in node.attributes.values() if a.type.name == "GRAPH")
        count += 1 + sum(steps * (1 + events_of(body)) for body in bodies)
    return count


def _steps(node: ir.Node) -> int:
    """How often the body of a node runs, as far as shapes tell."""
    if node.op_type != "Scan" or not node.inputs or node.inputs[-1] is None:
        return 1
    shape = node.inputs[-1].shape
    axes = node.attributes.get("scan_input_axes")
    axis = axes.as_ints()[-1] if axes is not None else 0
    steps = shape[axis] if shape is not None and len(shape) > axis else 1
    return steps if isinstance(steps, int) else 1

"""Snapshots in files: stored baselines, and the results that other commands print as JSON."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from ckplan.comparison.snapshot import PeakBuffer, Snapshot
from ckplan.errors import ModelError
from ckplan.model.files.saving import write_text
from ckplan.planner import Timeline
from ckplan.version import __version__

SCHEMA = 1
"""Version of the form of baselines; raised when a reader of the old form would misunderstand the new one."""

KIND = "ckplan baseline"
"""What tells a baseline from other JSON."""

_WIDTH = 300
"""Characters that a line of a baseline may have: a buffer takes that many at most."""

Sides = dict[str, Snapshot]


def is_json(path: Path) -> bool:
    """Whether a file is to be read as JSON: by its name, or else by how it begins."""
    if path.suffix.lower() == ".json":
        return True
    try:
        with path.open("rb") as stream:
            return stream.read(64).lstrip()[:1] == b"{"
    except OSError:
        return False


def write_baseline(snapshots: Mapping[str, Snapshot], path: Path, *, force: bool = False) -> None:
    """Write a baseline whole or not at all, a buffer a line, so that differences can be read.

    Raises:
        UsageError: the file exists and `force` is not given.
        EnvironmentUnavailableError: no permission, or no space left.
    """
    models = {name: snapshot.to_json() for name, snapshot in snapshots.items()}
    write_text(_spread({"schema": SCHEMA, "kind": KIND, "models": models}) + "\n", path, force=force)


def _spread(value: Any, depth: int = 0) -> str:
    """JSON with one line for each thing that fits into it, and for each member of a list of things with fields."""
    text = json.dumps(value)
    if not isinstance(value, dict | list):
        return text
    listed = isinstance(value, list) and any(isinstance(item, dict) for item in value)
    if len(text) <= _WIDTH and depth > 1 and not listed:
        return text
    items = value.items() if isinstance(value, dict) else ((None, item) for item in value)
    lines = [("" if key is None else f"{json.dumps(key)}: ") + _spread(item, depth + 1) for key, item in items]
    indent = " " * (depth + 1)
    return f"{text[0]}\n{indent}" + f",\n{indent}".join(lines) + f"\n{' ' * depth}{text[-1]}"


def read_snapshots(path: Path) -> Sides:
    """Read a baseline, or the JSON that `ckplan compare`, `analyze`, `rewrite` or `measure` printed.

    Returns:
        Snapshots by name of the model. What the file does not tell is empty in them.

    Raises:
        ModelError: the file cannot be read, is neither, or is of another version.
    """
    advice = f"make a baseline with `ckplan compare MODEL --save-baseline {shlex.quote(str(path))}`"
    try:
        data = json.loads(path.read_text(encoding="utf-8-sig"))
    except FileNotFoundError:
        raise ModelError(f"there is no file '{path}'", advice) from None
    except OSError as error:
        raise ModelError(f"cannot read '{path}': {error.strerror or error}", "check the path") from None
    except (ValueError, RecursionError) as error:
        raise ModelError(f"'{path}' is not JSON: {error}", "save the baseline again") from None
    if not isinstance(data, dict):
        raise ModelError(f"'{path}' is neither a baseline nor a result of ckplan", "save the baseline again")
    reader = _baseline if data.get("kind") == KIND else _COMMANDS.get(str(data.get("command")))
    if reader is None:
        raise ModelError(f"'{path}' is neither a baseline nor a result of `ckplan {'`, `'.join(_COMMANDS)}`", advice)
    if data.get("schema") != SCHEMA:
        raise ModelError(
            f"'{path}' has schema {data.get('schema')!r}, ckplan {__version__} reads {SCHEMA}",
            "save it again with this version",
        )
    try:
        found = reader(path, data)
    except KeyError as error:
        raise ModelError(f"'{path}' is damaged: it has no {error}", "save it again") from None
    except (TypeError, ValueError, OverflowError, AttributeError, IndexError) as error:
        raise ModelError(f"'{path}' is damaged: {error}", "save it again") from None
    if not found:
        raise ModelError(f"'{path}' holds no model", "save it again")
    return found


def _baseline(path: Path, data: Mapping[str, Any]) -> Sides:
    return {str(name): Snapshot.from_json(entry) for name, entry in data["models"].items()}


def _compared(path: Path, data: Mapping[str, Any]) -> Sides:
    """The newer sides of a comparison."""
    return {str(entry["name"]): Snapshot.from_json(entry["head"]) for entry in data["checks"] if entry["head"]}


def _analyzed(path: Path, data: Mapping[str, Any]) -> Sides:
    """The step without a plan."""
    timeline = Timeline.from_json(data["base"]["timeline"])
    alive = []
    for entry in data["at_peak"]:
        texts = (str(entry["producer"]), str(entry["op_type"]), "x".join(map(str, entry["shape"])))
        role = "backward" if entry["backward"] else "forward"
        alive.append(PeakBuffer(str(entry["name"]), int(entry["bytes"]), *texts, role))
    return _result(path, data["base"], str(data["model"]), timeline, tuple(alive))


def _rewritten(path: Path, data: Mapping[str, Any]) -> Sides:
    """The file with a plan; which tensors are alive at its peak is not told."""
    return _result(path, data["planned"], str(data["output"]))


def _measured(path: Path, data: Mapping[str, Any]) -> Sides:
    """What onnxruntime took; there is no simulated figure, so the measured one stands in its place."""
    found = data.get("measurement", data)
    timeline = Timeline.from_json(found["counters"]["timeline"]) if found["counters"] else None
    return _result(path, found, str(found["path"]), timeline)


def _result(
    path: Path,
    peaks: Mapping[str, Any],
    model: str,
    timeline: Timeline | None = None,
    alive: tuple[PeakBuffer, ...] = (),
) -> Sides:
    peak = timeline.steps[timeline.peak_step].op if timeline is not None and timeline.steps else ""
    snapshot = Snapshot(
        source=path.name,
        fingerprint=None,
        settings=None,
        ckplan="",
        onnxruntime="",
        peak_activations=int(peaks["peak_activations"]),
        peak_total=int(peaks["peak_total"]),
        peak_node=peak,
        at_peak=alive,
        timeline=timeline,
    )
    return {Path(model).stem: snapshot}


_COMMANDS: Mapping[str, Callable[[Path, Mapping[str, Any]], Sides]] = {
    "compare": _compared,
    "analyze": _analyzed,
    "rewrite": _rewritten,
    "measure": _measured,
}
"""Who reads the result of which command."""

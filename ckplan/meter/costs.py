"""What the nodes of a graph cost on this machine: one profiled run, kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import math
import os
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import median
from typing import Any

import onnx_ir as ir

from ckplan.errors import CkplanError
from ckplan.isolation.arrays import save_arrays
from ckplan.meter.inputs import make_inputs
from ckplan.meter.process import run_job
from ckplan.model import save
from ckplan.model.costs import node_cost, seconds
from ckplan.model.external import external_tensors
from ckplan.model.saving import write_text
from ckplan.model.weights import scratch_folder

_SCHEMA = 1
"""Part of the cache's keys; raised when what is kept there changes its meaning."""


def measured_costs(model: ir.Model, device: str = "auto", threads: int | None = None) -> dict[str, float]:
    """Seconds that each node takes, by name, from a profiled run in onnxruntime.

    Nodes that onnxruntime fused with others or replaced take what the analytic model says, times the median ratio of
    measured to analytic seconds of the other nodes of the same operator, or of all nodes.

    The run is kept in the user's cache directory (``$XDG_CACHE_HOME/ckplan``, safe to delete), by the model's bytes,
    the version of onnxruntime, the device, and the numbers of threads and of cores.

    Args:
        model: a graph in normal form.
        device: one of ``auto``, ``cpu``, ``cuda``.
        threads: intra-op threads; None leaves onnxruntime's default.

    Raises:
        ModelError: onnxruntime cannot run the model.
        EnvironmentUnavailableError: the device is not there.
        RunFailedError: the process that ran the model died.
    """
    with scratch_folder(model) as folder:
        path = folder / "model.onnx"
        save(model, path)
        kept = cache_folder() / f"costs-{_key(model, path, device, threads)}.json"
        found = _read(kept)
        if found is None:
            found = _profiled(model, path, device, threads)
            _write(kept, found)
    return mapped(model, found)


def mapped(model: ir.Model, measured: Mapping[str, float]) -> dict[str, float]:
    """Seconds for every node of a graph, given those that were measured for some names.

    Args:
        model: the graph.
        measured: seconds by node name and operator, as ``"Conv conv1"``; a name that stands for a fused node has
            another operator than in the graph, and is not taken for it.
    """
    analytic = {str(node.name): seconds(node_cost(node)) for node in model.graph}
    known = {str(n.name): measured[key] for n in model.graph if (key := f"{n.op_type} {n.name}") in measured}
    ratios: dict[str, list[float]] = {}
    for node in model.graph:
        name = str(node.name)
        if name in known and analytic[name] > 0:
            ratios.setdefault(node.op_type, []).append(known[name] / analytic[name])
    overall = median([ratio for found in ratios.values() for ratio in found] or [1.0])
    scale = {op_type: median(found) for op_type, found in ratios.items()}
    return {
        name: known.get(name, analytic[name] * scale.get(node.op_type, overall))
        for node in model.graph
        for name in [str(node.name)]
    }


def _profiled(model: ir.Model, path: Path, device: str, threads: int | None) -> dict[str, float]:
    """Median seconds of what ran, by operator and name, over the runs after the first."""
    inputs = path.with_name("inputs")
    save_arrays(inputs, make_inputs(model).arrays.items())
    request: dict[str, Any] = {
        "path": str(path),
        "inputs": str(inputs),
        "device": device,
        "threads": threads,
        "variants": [{"order": "default", "pattern": True}],
        "producers": {},
    }
    runs: Sequence[Mapping[str, Sequence[Any]]] = run_job("counters", request)[0]["runs"]
    taken: dict[str, list[float]] = {}
    for run in runs[1:] or runs:
        for op_type, name, duration in zip(run["op"], run["name"], run["seconds"], strict=True):
            taken.setdefault(f"{op_type} {name}", []).append(duration)
    return {key: median(durations) for key, durations in taken.items()}


def _key(model: ir.Model, path: Path, device: str, threads: int | None) -> str:
    """A digest of a saved model and of all that its times depend on; data files count by name, size and time."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while block := stream.read(1 << 20):
            digest.update(block)
    data = {tensor.path: Path(tensor.path).stat() for tensor in external_tensors(model)}
    known = sorted((file, stat.st_size, stat.st_mtime_ns) for file, stat in data.items())
    digest.update(json.dumps([_SCHEMA, _onnxruntime(), device, threads, os.cpu_count(), known]).encode())
    return digest.hexdigest()[:32]


def _onnxruntime() -> str:
    import onnxruntime

    return str(onnxruntime.__version__)


def cache_folder() -> Path:
    """Where measured costs are kept."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "ckplan"


def _read(kept: Path) -> dict[str, float] | None:
    """What the cache holds, None where it holds nothing that can be read."""
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) and all(map(_is_duration, found.values())) else None


def _is_duration(found: object) -> bool:
    return isinstance(found, float) and 0 <= found < math.inf


def _write(kept: Path, found: Mapping[str, float]) -> None:
    """Keep it whole or not at all; a cache that cannot be written is no failure."""
    with suppress(OSError, CkplanError):
        kept.parent.mkdir(parents=True, exist_ok=True)
        write_text(json.dumps(found), kept, force=True)

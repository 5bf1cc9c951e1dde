"""What the nodes of a graph cost on this machine: one profiled run, kept in the user's cache."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

import onnx_ir as ir

from ckplan.isolation.arrays import save_arrays
from ckplan.meter.inputs import make_inputs
from ckplan.meter.running.process import run_job
from ckplan.meter.seconds.cache import cache_folder, is_duration, read_kept, write_kept
from ckplan.model import save
from ckplan.model.costs import node_cost, seconds
from ckplan.model.files.external import external_tensors
from ckplan.model.files.weights import scratch_folder

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
        found = read_kept(kept)
        if found is None or not all(map(is_duration, found.values())):
            found = _profiled(model, path, device, threads)
            write_kept(kept, found)
    return mapped(model, found)


def mapped(model: ir.Model, measured: Mapping[str, float]) -> dict[str, float]:
    """Seconds for every node of a graph, given those that were measured for some names.

    Args:
        model: the graph.
        measured: seconds by node name and operator, as ``"Conv conv1"``; a name that stands for a fused node has
            another operator than in the graph, and is not taken for it.
    """
    known = {n: measured[key] for n in model.graph if (key := f"{n.op_type} {n.name}") in measured}
    return {str(node.name): taken for node, taken in filled(list(model.graph), known).items()}


def filled(nodes: Sequence[ir.Node], known: Mapping[ir.Node, float]) -> dict[ir.Node, float]:
    """Seconds for every node, given those of some of them.

    The others take what the analytic model says, times the median ratio of known to analytic seconds of the nodes of
    the same operator, or of all nodes.
    """
    analytic = {node: seconds(node_cost(node)) for node in nodes}
    ratios: dict[str, list[float]] = {}
    for node in nodes:
        if node in known and analytic[node] > 0:
            ratios.setdefault(node.op_type, []).append(known[node] / analytic[node])
    overall = median([ratio for found in ratios.values() for ratio in found] or [1.0])
    scale = {op_type: median(found) for op_type, found in ratios.items()}
    return {node: known.get(node, analytic[node] * scale.get(node.op_type, overall)) for node in nodes}


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
    runs: Sequence[Mapping[str, Sequence[Any]]] = run_job("ckplan.meter.memory.counters", request)[0]["runs"]
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
    digest.update(json.dumps([_SCHEMA, onnxruntime_version(), device, threads, os.cpu_count(), known]).encode())
    return digest.hexdigest()[:32]


def onnxruntime_version() -> str:
    """The version of onnxruntime that runs here."""
    import onnxruntime

    return str(onnxruntime.__version__)

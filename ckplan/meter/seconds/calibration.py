"""Seconds of the nodes of a graph from kernels that were timed one by one, once on a machine.

A kernel is an operator with its attributes and the shapes that it reads. Networks repeat themselves: a step has far
fewer kernels than nodes, and what was timed for one graph need not be timed for another. Each is timed on one thread,
by processor time, in some milliseconds (see `ckplan.meter.seconds.kernels`), and kept in the user's cache, in a file
for each kind of processor and version of onnxruntime.
"""

from __future__ import annotations

import base64
import hashlib
import json
import platform
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path

import onnx_ir as ir

from ckplan.meter.running.errors import RunFailedError
from ckplan.meter.running.process import Process, started
from ckplan.meter.seconds.cache import cache_folder, is_duration, read_kept, write_kept
from ckplan.meter.seconds.costs import filled, onnxruntime_version
from ckplan.meter.seconds.kernel_models import Kernel, kernel_of, signature
from ckplan.model.bodies import bodies_of
from ckplan.model.costs import seconds_of_bodies
from ckplan.model.nested_graphs import all_nodes

_SCHEMA = 1
"""Part of the file's name; raised when what is kept there changes its meaning."""

_SETS = {"": 21, "com.microsoft": 1}
"""Versions of the operator sets of kernels that nobody named."""


def calibrated_costs(model: ir.Model) -> dict[str, float]:
    """Seconds that each node takes on one thread of this machine, by name.

    A node that holds graphs takes what these take, as often as they run. What cannot be timed by itself takes what the
    analytic model says, times the median ratio of timed to analytic seconds of its operator, or of all nodes. Each node
    takes a `Size` more: about one node of a control edge comes with one that runs again.

    Args:
        model: a graph of static shapes.

    Raises:
        EnvironmentUnavailableError: there is no room for temporary files.
    """
    leaves = [node for node in all_nodes(model.graph) if not bodies_of(node)]
    size = _size()
    keys = {node: key for node in (*leaves, size) if (key := signature(node)) is not None}
    found = _kept({key: node for node, key in keys.items()}, {**_SETS, **model.graph.opset_imports})
    known = {node: taken for node, key in keys.items() if (taken := found.get(key)) is not None}
    prices = filled(leaves, known)
    edge = known.get(size, 0.0)

    def price(node: ir.Node) -> float:
        return prices[node] if node in prices else seconds_of_bodies(node, price)

    return {str(node.name): price(node) + edge for node in model.graph}


def calibration_file() -> Path:
    """Where the times of this machine's kernels are kept."""
    machine = json.dumps([_SCHEMA, onnxruntime_version(), platform.machine(), _processor()])
    return cache_folder() / f"kernels-{hashlib.sha256(machine.encode()).hexdigest()[:32]}.json"


def _kept(wanted: Mapping[str, ir.Node], opsets: Mapping[str, int]) -> dict[str, float | None]:
    """Seconds of kernels: those that are kept, and the others timed and kept as well; None for what cannot be timed."""
    file = calibration_file()
    kept = _read(file)
    missing = {key: node for key, node in wanted.items() if key not in kept}
    if missing:
        timed = dict(zip(missing, _timed([kernel_of(node, opsets) for node in missing.values()], opsets), strict=True))
        kept = {**_read(file), **timed}  # others may have written meanwhile
        write_kept(file, kept)
    return kept


def _read(file: Path) -> dict[str, float | None]:
    found = read_kept(file)
    return found if found is not None and all(t is None or is_duration(t) for t in found.values()) else {}


def _timed(kernels: Iterable[Kernel], opsets: Mapping[str, int]) -> list[float | None]:
    """Seconds of each kernel; one that ends the process that runs it counts as one that cannot be timed."""
    waiting, taken = list(kernels), list[float | None]()
    while waiting:
        try:
            with started("ckplan.meter.seconds.kernels", {}) as process:
                _ask(process, Kernel(_nothing(opsets), 1, {}))
                while waiting:
                    taken.append(_ask(process, waiting[0]))
                    waiting.pop(0)
                process.finish()
        except RunFailedError:
            if waiting:
                taken.append(None)
                waiting.pop(0)
    return taken


def _ask(process: Process, kernel: Kernel) -> float | None:
    model = base64.b64encode(ir.to_proto(kernel.model).SerializeToString()).decode()
    answer = process.ask(json.dumps({"model": model, "copies": kernel.copies, "below": dict(kernel.below)}))
    return None if answer is None else float(answer)


def _nothing(opsets: Mapping[str, int]) -> ir.Model:
    """A model with the one node that every kernel's model has: what a run takes without a kernel."""
    node = _size()
    graph = ir.Graph(
        [value for value in node.inputs if value is not None],
        node.outputs,
        nodes=[node],
        opset_imports=dict(opsets),
        name="nothing",
    )
    return ir.Model(graph, ir_version=10)


def _size() -> ir.Node:
    value = ir.Value(name="value", shape=ir.Shape((16,)), type=ir.TensorType(ir.DataType.FLOAT))
    node = ir.node("Size", [value], name="size")
    node.outputs[0].name = "end"
    node.outputs[0].shape, node.outputs[0].type = ir.Shape(()), ir.TensorType(ir.DataType.INT64)
    return node


@cache
def _processor() -> str:
    """What the processor is called."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return platform.processor()
    told = ("model name", "cpu family", "model", "stepping", "CPU part")
    return " ".join(dict.fromkeys(line for line in lines if line.split("\t")[0].strip() in told))

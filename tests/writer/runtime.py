"""Runs small models in onnxruntime and reads its profile: what the model of onnxruntime is tested against."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort


def profile(
    model: onnx.ModelProto,
    feeds: dict[str, np.ndarray],
    *,
    priority: bool = False,
    optimise: bool = True,
    threads: int | None = None,
) -> list[dict[str, Any]]:
    """The node events of one run, in execution order, names without the profiler's suffix."""
    with tempfile.TemporaryDirectory() as folder:
        options = ort.SessionOptions()
        options.log_severity_level = 4
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder) / "profile")
        if priority:
            options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        if threads is not None:
            options.intra_op_num_threads = threads
        if not optimise:
            options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
        session.run(None, feeds)
        events = json.loads(Path(session.end_profiling()).read_text())
    suffix = "_kernel_time"
    return [
        {**event["args"], "name": event["name"].removesuffix(suffix)}
        for event in events
        if event.get("cat") == "Node" and event["name"].endswith(suffix)
    ]


def live_bytes(events: list[dict[str, Any]], outputs: dict[str, int]) -> list[int]:
    """Activation bytes by event, from the allocator's counter.

    Args:
        events: what `profile` returned.
        outputs: bytes of the file's outputs that each node makes.
    """
    first = events[0]
    resident = int(first["mem_bytes_requested_in_use"]) - int(first["mem_requested_in_use_delta"])
    made = 0
    live = []
    for event in events:
        made += outputs.get(event["name"], 0)
        live.append(int(event["mem_bytes_requested_in_use"]) - resident - made)
    return live


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The outputs of one run under default options, by name."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))

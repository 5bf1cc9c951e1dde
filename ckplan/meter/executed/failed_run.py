"""How much memory a failed run was expected to take: the file is loaded once more, not run, and simulated."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import onnx_ir as ir

from ckplan.errors import CkplanError
from ckplan.isolation.arrays import Array
from ckplan.meter.executed.graph import executed_graph, infer_shapes
from ckplan.meter.running.errors import RunFailedError
from ckplan.meter.running.process import run_job
from ckplan.planner.timeline import Timeline
from ckplan.runtime.executing.executed import executed_timeline
from ckplan.runtime.sizes import DIMENSIONS, dimensions_of
from ckplan.units import format_bytes


def with_expected_memory(
    error: RunFailedError, model: ir.Model, fed: Mapping[str, Array], request: Mapping[str, Any], file: Path
) -> RunFailedError:
    """The error, with what the run was expected to take if that can be found out.

    Args:
        error: how the run failed.
        model: the file, read.
        fed: the inputs.
        request: ``path``, ``device``, ``threads`` of the run.
        file: where onnxruntime may write its optimised graph.
    """
    try:
        run_job("ckplan.meter.executed.graph", {**request, "optimized": str(file)})
        timeline, complete = _simulated(executed_graph(file, model), model, fed)
    except (CkplanError, ValueError):
        return error  # loading it is what fails, or its graph is of a kind that is not simulated
    peak = timeline.steps[timeline.peak_step] if timeline.steps else None
    if peak is None or not peak.activations:
        return error
    least = "" if complete else "at least "
    return type(error)(
        f"{error.message}; it was expected to take {least}{format_bytes(timeline.peak_total)}, of that "
        f"{format_bytes(peak.activations)} of activations at '{peak.op}'",
        error.hint,
        stage=error.stage,
        learnt={
            **error.learnt,
            "expected_peak_activations": timeline.peak_activations,
            "expected_peak_total": timeline.peak_total,
        },
        stderr=error.stderr,
    )


def _simulated(executed: ir.Model, model: ir.Model, fed: Mapping[str, Array]) -> tuple[Timeline, bool]:
    """The simulated timeline, and whether all sizes are known."""
    known = model.clone()
    for value in known.graph.inputs:
        if value.name is not None and value.name in fed:
            value.shape = ir.Shape(fed[value.name].shape)
    infer_shapes(known)
    made = [*known.graph.inputs, *(value for node in known.graph for value in node.outputs if value.name)]
    sizes = {str(value.name): dimensions_of(value) for value in made}
    complete = True
    for value in (*executed.graph.inputs, *(value for node in executed.graph for value in node.outputs if value.name)):
        if (dims := sizes.get(str(value.name))) is not None:
            value.meta[DIMENSIONS] = dims
        complete &= dimensions_of(value) is not None
    return executed_timeline(executed), complete

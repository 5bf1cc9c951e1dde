"""Take a snapshot of a model: plan it, simulate what onnxruntime executes, and run it if asked."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path

import onnx_ir as ir

from ckplan.comparison.graphs import Progress, graph_of
from ckplan.comparison.settings import Settings
from ckplan.comparison.snapshot import WORKSPACE, Alive, Measured, Snapshot
from ckplan.comparison.versions import ckplan_version, onnxruntime_version
from ckplan.errors import EnvironmentUnavailableError
from ckplan.keys import PLAN, RECOMPUTE_OF
from ckplan.meter import measure
from ckplan.model import save
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.executed import executed_model, executed_timeline
from ckplan.runtime.occupancy import Occupancy, executed_occupancy
from ckplan.runtime.problem_of import problem_of
from ckplan.runtime.sizes import bytes_of
from ckplan.writer.emit import emit

_LAYOUTS = ("NchwcTransformer", "NhwcTransformer")
"""Optimisers of onnxruntime that go by the processor it runs on: they are left out, so that a snapshot does not."""


def take(
    path: Path, settings: Settings, *, device: str | None = None, progress: Progress = lambda doing: None
) -> tuple[Snapshot, tuple[str, ...]]:
    """Take a snapshot of a model.

    A forward model is differentiated and planned; a file that ckplan made, and a model for inference, is taken as it
    is. The simulated figures are the same on every machine with the same versions of ckplan and onnxruntime.

    Args:
        path: the file.
        settings: how to load, differentiate and plan it.
        device: where to run it too (``auto``, ``cpu``, ``cuda``); None does not run it.
        progress: called with what is being done, in words.

    Returns:
        The snapshot, and notes of what was chosen.

    Raises:
        ModelError: the file cannot be read, shaped, differentiated or run.
        UsageError: a setting does not fit the model or another setting.
        InfeasibleError: the strategy has no plan.
        EnvironmentUnavailableError: it cannot be run on this machine.
    """
    strategy = parse_strategy(settings.strategy)
    graph = graph_of(path, settings, progress)
    model, unplanned, overhead = graph.model, None, None
    if graph.planned:
        progress(f"planning {path.name}")
        unplanned = executed_timeline(executed_model(model, _LAYOUTS)).peak_activations
        plan = strategy.solve(problem_of(model))
        model, overhead = emit(model, plan), plan.overhead
    elif PLAN in model.metadata_props:
        overhead = json.loads(model.metadata_props[PLAN]).get("overhead")
    lying = executed_occupancy(model, _LAYOUTS)
    timeline, at = lying.timeline, lying.timeline.peak_step
    measured = None
    if device is not None:
        progress(f"running {path.name}")
        measured = _measured(path, model, graph.planned, settings, device)
    snapshot = Snapshot(
        source=path.name,
        fingerprint=graph.fingerprint,
        settings=None if graph.ready_made else settings,
        ckplan=ckplan_version(),
        onnxruntime=onnxruntime_version(),
        peak_activations=timeline.peak_activations,
        peak_total=timeline.peak_total,
        peak_node=timeline.steps[at].op if timeline.steps else "",
        peak_op=lying.op_types[at] if timeline.steps else "",
        at_peak=_at_peak(lying),
        recomputed=_recomputed(model),
        unplanned=unplanned,
        overhead=overhead,
        measured=measured,
        timeline=timeline,
        occupancy=lying,
    )
    return snapshot, graph.notes


def _at_peak(lying: Occupancy) -> tuple[Alive, ...]:
    """The buffers alive at the peak with what lies in them, the workspace of the node there included."""
    step, steps = lying.timeline.peak_step, lying.timeline.steps
    found = []
    for _, buffer in lying.alive(step) if steps else []:
        span = buffer.at(step)
        shape = "x".join(map(str, span.shape or ()))
        found.append(Alive(span.tensor, buffer.bytes, steps[span.step].op, span.op_type, shape, span.role.value))
    if steps and lying.workspace[step]:
        op = steps[step].op
        found.append(Alive(op, lying.workspace[step], op, lying.op_types[step], WORKSPACE, WORKSPACE))
    return tuple(sorted((alive for alive in found if alive.bytes), key=lambda alive: (-alive.bytes, alive.tensor)))


def _recomputed(model: ir.Model) -> dict[str, int]:
    """Bytes of each tensor that nodes make again, by its first name."""
    originals = {node.name: node for node in model.graph}
    again: dict[str, int] = {}
    for node in model.graph:
        original = originals.get(node.metadata_props.get(RECOMPUTE_OF))
        if original is not None:
            outputs: Sequence[ir.Value] = original.outputs
            again.update((str(value.name), bytes_of(value)) for value in outputs if value.name)
    return dict(sorted(again.items()))


def _measured(path: Path, model: ir.Model, planned: bool, settings: Settings, device: str) -> Measured:
    """Run what was simulated; on one thread, since more of them take more memory."""
    with tempfile.TemporaryDirectory(prefix="ckplan-") as folder:
        file, sizes = path, {"dims": settings.dims, "shapes": settings.shapes}
        if planned:
            file, sizes = Path(folder) / f"{path.stem}.planned.onnx", {}
            save(model, file)
        found = measure(file, device=device, runs=1, threads=1, heap=False, **sizes)  # type: ignore[arg-type]
    if found.peak_activations is None or found.peak_total is None:
        raise EnvironmentUnavailableError(
            f"onnxruntime {found.onnxruntime} reports no memory counters", "compare without --measured"
        )
    return Measured(found.peak_activations, found.peak_total, found.device)

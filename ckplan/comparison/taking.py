"""Take a snapshot of a model: plan it, simulate what onnxruntime executes, and run it if asked."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import onnx_ir as ir

from ckplan.comparison.settings import Settings
from ckplan.comparison.snapshot import WORKSPACE, Fingerprint, Measured, PeakBuffer, Snapshot
from ckplan.display import file_name
from ckplan.errors import EnvironmentUnavailableError, InfeasibleError, UsageError
from ckplan.keys import GRADIENTS, PLAN, RECOMPUTE_OF
from ckplan.meter import measure
from ckplan.model import save
from ckplan.model.files.metadata import finite, told
from ckplan.model.files.read import read
from ckplan.model.files.weights import scratch_folder
from ckplan.pipeline import Goal, Planned, Step, open_step, rewrite
from ckplan.pipeline.goal import ANY
from ckplan.pipeline.step import Progress
from ckplan.planner.strategies import Strategy, parse_strategy
from ckplan.planner.strategies.exact import Exact
from ckplan.runtime.cpu import CPU
from ckplan.runtime.occupancy import Occupancy
from ckplan.runtime.sizes import bytes_of
from ckplan.version import __version__

_TOLD = frozenset({ir.AttributeType.INT, ir.AttributeType.INTS, ir.AttributeType.STRING})
"""Kinds of attributes that are part of a fingerprint."""

_BY_THE_CLOCK = (
    "strategy `{}` searches until its time is over: on a slower or busier machine its plan, and so the peak, may be "
    "another; in a gate, limit `auto` or `search` by `steps`"
)
"""What is to be said of a strategy whose search may be ended by the clock."""


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
    progress(f"reading {path.name}")
    read_as = read(path)
    fingerprint = fingerprint_of(read_as)
    ready_made = not {GRADIENTS, PLAN}.isdisjoint(read_as.metadata_props)  # ckplan wrote it
    if ready_made:
        _refuse_settings(path, settings)
        step = Step(path.name, read_as, notes=(f"{path.name} was made by ckplan and is taken as it is",))
    else:
        step = open_step(path, settings.step, progress)
    notes, planned = step.notes, None
    occupancy, model = step.occupancy, step.ordered
    overhead = finite(told(model.metadata_props, PLAN).get("overhead"))  # a planned file tells it itself
    if not ready_made and not settings.step.inference:
        progress(f"planning {path.name}")
        planned = _planned(step, strategy, settings.goal)
        if isinstance(strategy, Exact) or getattr(strategy, "seconds", False):
            notes += (_BY_THE_CLOCK.format(strategy.name),)
        occupancy, model, overhead = planned.occupancy, planned.model, planned.plan.overhead
    timeline, at = occupancy.timeline, occupancy.timeline.peak_step
    measured = None
    if device is not None:
        progress(f"running {path.name}")
        measured = _measured(path, model, not ready_made, device)
    ckplan, onnxruntime = versions()
    snapshot = Snapshot(
        source=path.name,
        fingerprint=fingerprint,
        settings=None if ready_made else settings,
        ckplan=ckplan,
        onnxruntime=onnxruntime,
        peak_activations=timeline.peak_activations,
        peak_total=timeline.peak_total,
        peak_node=timeline.steps[at].op if timeline.steps else "",
        peak_op=occupancy.op_types[at] if timeline.steps else "",
        at_peak=_at_peak(occupancy),
        recomputed=_recomputed(model),
        unplanned=None if planned is None else step.baseline.peak_activations,
        overhead=overhead,
        measured=measured,
        timeline=timeline,
        occupancy=occupancy,
    )
    return snapshot, notes


def fingerprint_of(model: ir.Model) -> Fingerprint:
    """Which model a file holds, and a hash of its nodes.

    Sizes are in the hash alone: a model of another batch is the same model.
    """
    graph = model.graph
    fed = [value for value in graph.inputs if not value.is_initializer()]
    content = hashlib.sha256()
    for value in fed:
        content.update(f"{value.name}{value.shape}".encode())
    for node in ir.traversal.RecursiveGraphIterator(graph):
        ends = [value.name if value is not None else "" for value in (*node.inputs, *node.outputs)]
        attributes = [str(attribute) for attribute in node.attributes.values() if attribute.type in _TOLD]
        content.update(repr((node.domain, node.op_type, node.name, ends, attributes)).encode())
    return Fingerprint(
        name=graph.name or "",
        inputs=tuple(f"{value.name}: {value.dtype.name if value.dtype is not None else '?'}" for value in fed),
        outputs=tuple(str(value.name) for value in graph.outputs),
        digest=content.hexdigest()[:16],
    )


def _refuse_settings(path: Path, settings: Settings) -> None:
    """Raises UsageError for settings that would change a file that is taken as it is."""
    given = [name for name in settings.options() if name != "budget"]
    if given:
        listed = ", ".join("`" + name.replace("_", "-") + "`" for name in given)
        raise UsageError(
            f"{path.name} was made by ckplan and is taken as it is, which does not go with {listed}",
            "give the model that it was made from, or leave out the settings",
        )


def versions() -> tuple[str, str]:
    """Versions of ckplan and of the onnxruntime that is installed."""
    import onnxruntime

    return __version__, str(onnxruntime.__version__)


def _planned(step: Step, strategy: Strategy, goal: Goal) -> Planned:
    """The step, planned as `ckplan rewrite` plans it.

    Where no plan keeps to the budget, the one whose file takes least is taken: by how much it fails is what is to be
    told.
    """
    try:
        return rewrite(step, strategy, goal)
    except InfeasibleError as refusal:
        least = ANY if refusal.least is None else replace(goal, budget=refusal.least, share=None)
        return rewrite(step, strategy, least)


def _at_peak(occupancy: Occupancy) -> tuple[PeakBuffer, ...]:
    """The buffers alive at the peak with what lies in them, the workspace of the node there included."""
    step, steps = occupancy.timeline.peak_step, occupancy.timeline.steps
    found = []
    for _, buffer in occupancy.alive(step) if steps else []:
        span = buffer.at(step)
        shape = "x".join(map(str, span.shape or ()))
        found.append(PeakBuffer(span.tensor, buffer.bytes, steps[span.step].op, span.op_type, shape, span.role.value))
    if steps and occupancy.workspace[step]:
        op = steps[step].op
        found.append(PeakBuffer(op, occupancy.workspace[step], op, occupancy.op_types[step], WORKSPACE, WORKSPACE))
    return tuple(sorted((alive for alive in found if alive.bytes), key=lambda alive: (-alive.bytes, alive.tensor)))


def _recomputed(model: ir.Model) -> dict[str, int]:
    """Bytes of each tensor that nodes recompute, by its first name."""
    originals = {node.name: node for node in model.graph}
    again: dict[str, int] = {}
    for node in model.graph:
        original = originals.get(node.metadata_props.get(RECOMPUTE_OF))
        if original is not None:
            outputs: Sequence[ir.Value] = original.outputs
            again.update((str(value.name), bytes_of(value)) for value in outputs if value.name)
    return dict(sorted(again.items()))


def _measured(path: Path, model: ir.Model, made: bool, device: str) -> Measured:
    """Run what was simulated, on as many threads: more of them take more memory."""
    with scratch_folder(model) as folder:
        file = path
        if made:
            file = folder / f"{file_name(path.stem)}.onnx"
            save(model, file)
        found = measure(file, device=device, runs=1, threads=CPU.threads, heap=False)
    if found.peak_activations is None or found.peak_total is None:
        raise EnvironmentUnavailableError(
            f"onnxruntime {found.onnxruntime} tells nothing of the memory that {path.name} takes",
            "`ckplan measure` says why; compare without --measured",
        )
    return Measured(found.peak_activations, found.peak_total, found.device)

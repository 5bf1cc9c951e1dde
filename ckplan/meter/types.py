"""What measuring finds: plain frozen records, all sizes in bytes and all times in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from statistics import median
from typing import Any

from ckplan.meter.executed.alive import Gap, Inside
from ckplan.meter.memory.nvml import Gpu
from ckplan.planner.timeline import Timeline
from ckplan.units import format_bytes, format_seconds


def jsonable(value: Any) -> Any:
    """A record, and all records in it, as JSON-ready dicts and lists."""
    if isinstance(value, Timeline):
        return value.to_json()
    if is_dataclass(value) and not isinstance(value, type):
        return {entry.name: jsonable(getattr(value, entry.name)) for entry in fields(value)}
    if isinstance(value, tuple | list):
        return [jsonable(item) for item in value]
    if isinstance(value, dict):
        return {str(key): jsonable(item) for key, item in value.items()}
    return value


@dataclass(frozen=True, slots=True)
class Workspace:
    """Memory that a kernel took and freed again, seen because it set a new high-water."""

    step: int
    op: str
    op_type: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Steady:
    """The arena once the model has run a few times.

    Attributes:
        in_use: largest number of bytes handed out, the block of the memory pattern included.
        held: bytes that the arena took from the system and keeps.
    """

    in_use: int
    held: int


@dataclass(frozen=True, slots=True)
class Counters:
    """Meter 1: onnxruntime's allocator counters.

    Attributes:
        order: ``default`` or ``priority`` (``ExecutionOrder.PRIORITY_BASED``).
        timeline: the first run; workspaces that were seen are in it.
        op_types: operator of each step.
        seconds: time of each step's kernel, the median of the later runs, with the profiler on.
        parameters: bytes of the initializers, as onnxruntime holds them.
        workspaces: kernels that took more than their outputs, as far as they set a new high-water.
        steady: the arena in the last run.
    """

    order: str
    timeline: Timeline
    op_types: tuple[str, ...]
    seconds: tuple[float, ...]
    parameters: int
    workspaces: tuple[Workspace, ...]
    steady: Steady | None

    @property
    def peak_activations(self) -> int:
        """Peak of live bytes that are neither parameters, inputs nor outputs of the file."""
        return self.timeline.peak_activations

    @property
    def peak_total(self) -> int:
        """Peak of all live bytes."""
        return self.timeline.peak_total


@dataclass(frozen=True, slots=True)
class Heap:
    """Meter 2: the high-water of the process's heap, told by memray, with arena and memory patterns off.

    Attributes:
        session: what the session holds before its first run (parameters, graph, kernels).
        run: high-water of one run above that, outputs included; fed inputs are not in it.
        activations: high-water of values and workspaces in that run, without what outlives it, outputs above all.
        objects: high-water of what onnxruntime keeps for itself in that run: it goes by the number of nodes.
    """

    session: int
    run: int
    activations: int
    objects: int | None = None


@dataclass(frozen=True, slots=True)
class Resident:
    """Meter 3: resident memory of the process. It misleads: the C library and the arena keep freed memory.

    Attributes:
        before: before the session was made.
        loaded: with the session made.
        first_run: after the first run.
        peak: the largest value seen, sampled every few milliseconds.
    """

    before: int
    loaded: int
    first_run: int
    peak: int


@dataclass(frozen=True, slots=True)
class NonFinite:
    """An output that holds NaN or infinity."""

    output: str
    nan: int
    inf: int


@dataclass(frozen=True, slots=True)
class Origin:
    """Where a NaN or an infinity first appears, in execution order.

    Attributes:
        kind: ``nan`` or ``inf``.
        node: name of the node, or empty if ``value`` is an input or initializer of the file.
        op_type: its operator.
        value: name of the tensor.
        count: how many such elements it has.
        element: index of the first of them.
        backward: whether the node belongs to the backward pass.
        cause: of a NaN that a node makes of infinities: where those first appear.
    """

    kind: str
    node: str
    op_type: str
    value: str
    count: int
    element: tuple[int, ...]
    backward: bool = False
    cause: Origin | None = None


@dataclass(frozen=True, slots=True)
class Prediction:
    """Peaks that the file itself promises in its metadata; None where it says nothing.

    Attributes:
        peak_activations: bytes of activations.
        peak_total: bytes of everything.
        order_peak: bytes of activations that the best order without recomputation would have had.
    """

    peak_activations: int | None
    peak_total: int | None
    order_peak: int | None = None


@dataclass(frozen=True, slots=True)
class Recomputation:
    """Recomputed nodes that the file holds, and what onnxruntime made of them.

    Attributes:
        in_file: how many there are.
        executed: how many ran, by themselves or as parts of fused nodes.
        merged: how many an optimiser merged with the nodes that they repeat.
        fused: how many ran as parts of other nodes, by the operator of these.
    """

    in_file: int
    executed: int
    merged: int = 0
    fused: tuple[tuple[str, int], ...] = ()

    @property
    def undone(self) -> bool:
        """Whether an optimiser merged all of them with the nodes that they repeat."""
        return self.in_file > 0 and self.executed == 0


@dataclass(frozen=True)
class Measurement:
    """One file, run in onnxruntime.

    Attributes:
        path: the file.
        device: ``cpu`` or ``cuda``: the one that ran.
        providers: execution providers of the session.
        onnxruntime: its version.
        threads: intra-op threads asked for; None for onnxruntime's default.
        input_bytes: bytes of the inputs that were fed.
        output_bytes: bytes of the outputs of the file.
        parameter_bytes: bytes of the initializers in the file.
        counters: meter 1 in default order; None if this onnxruntime has no counters.
        priority: meter 1 under ``ExecutionOrder.PRIORITY_BASED``.
        steady_without_pattern: the arena in the steady state with memory patterns off.
        resident: meter 3.
        step_seconds: time of each timed step, profiler off, after warm-up.
        wobble: outputs of which a later step gave other bits than the first, with the largest difference in size.
        nonfinite: outputs with NaN or infinity.
        prediction: what the file promises.
        recomputation: recomputed nodes in the file and in the run.
        notes: what was chosen for the user, and what could not be measured, a sentence each.
        inside: the executed graph, simulated; None if it was not asked for or cannot be had (see ``notes``).
        gpu: memory of the GPU as its driver tells it; None on the CPU, or without NVML (see ``notes``).
        readings: what meters with a process of their own told, by their names; see `ckplan.meter.meter`.
    """

    path: str
    device: str
    providers: tuple[str, ...]
    onnxruntime: str
    threads: int | None
    input_bytes: int
    output_bytes: int
    parameter_bytes: int
    counters: Counters | None
    priority: Counters | None
    steady_without_pattern: Steady | None
    resident: Resident
    step_seconds: tuple[float, ...]
    wobble: Mapping[str, float]
    nonfinite: tuple[NonFinite, ...]
    prediction: Prediction
    recomputation: Recomputation
    notes: tuple[str, ...]
    inside: Inside | None = None
    gpu: Gpu | None = None
    readings: Mapping[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        peak = "" if self.peak_activations is None else f"{format_bytes(self.peak_activations)} of activations, "
        return f"<Measurement of {Path(self.path).name}: {peak}{format_seconds(self.seconds)} a run>"

    @property
    def repeatable(self) -> bool:
        """Whether a later step gave bitwise the outputs of the first."""
        return not self.wobble

    @property
    def heap(self) -> Heap | None:
        """Meter 2; None if memray is not there or the device is not the CPU."""
        return self.readings.get("heap")

    @property
    def peak_activations(self) -> int | None:
        """Peak activations in default order by the best meter there is, in bytes."""
        if self.counters is not None:
            return self.counters.peak_activations
        return self.heap.activations if self.heap is not None else None

    @property
    def peak_total(self) -> int | None:
        """Peak of all live bytes in default order by the best meter there is, in bytes."""
        if self.counters is not None:
            return self.counters.peak_total
        return self.heap.run + self.parameter_bytes + self.input_bytes if self.heap is not None else None

    @property
    def seconds(self) -> float:
        """Median time of a step."""
        return median(self.step_seconds)

    @property
    def widest_gap(self) -> Gap | None:
        """Where measured and expected activations differ most; None where they are nowhere apart or not known."""
        from ckplan.meter.executed.gap import widest_gap

        return None if self.counters is None or self.inside is None else widest_gap(self.counters.timeline, self.inside)

    @property
    def problems(self) -> tuple[str, ...]:
        """What a user must know before trusting the file, a sentence each; empty if all is well."""
        from ckplan.meter.problems import measured_problems

        return measured_problems(self)

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form; peaks and the median time stand beside the fields they come from."""
        data: dict[str, Any] = jsonable(self)
        data |= {"heap": None, **data.pop("readings")}
        for key, counters in (("counters", self.counters), ("priority", self.priority)):
            if counters is not None:
                data[key] |= {
                    "peak_activations": counters.peak_activations,
                    "peak_total": counters.peak_total,
                }
        data["recomputation"]["undone"] = self.recomputation.undone
        return data | {
            "peak_activations": self.peak_activations,
            "peak_total": self.peak_total,
            "seconds": self.seconds,
            "repeatable": self.repeatable,
            "widest_gap": jsonable(self.widest_gap),
            "problems": list(self.problems),
        }

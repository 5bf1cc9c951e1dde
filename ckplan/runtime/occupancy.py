"""Which tensor takes the memory when: the buffers behind a timeline, each with what lies in it over the steps."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import Enum

import onnx_ir as ir

from ckplan.keys import PHASE, RECOMPUTE_OF, ROLE
from ckplan.model.node_reads import made_by_name
from ckplan.planner import Problem, Timeline, simulate
from ckplan.planner.simulate import lifetimes, workspace_by_step
from ckplan.runtime import problem_of
from ckplan.runtime.executing.executed import executed_model
from ckplan.runtime.sizes import dimensions_of, shape_classes


class Role(Enum):
    """What a tensor in a buffer is there for."""

    KEPT = "kept"
    """Made by the forward pass and read by the backward pass or by a recomputation: a stashed activation."""
    RECOMPUTED = "recomputed"
    """Made by an op that runs again."""
    FORWARD = "forward"
    """Made and read by the forward pass only."""
    BACKWARD = "backward"
    """Made by the backward pass."""
    HELD = "held"
    """Nothing that is read any more: onnxruntime holds the buffer for a later tensor of the same shape."""


@dataclass(frozen=True, slots=True)
class Span:
    """What lies in a buffer from a step on, until the next span or the end of the buffer.

    Attributes:
        step: the step that makes it.
        tensor: its name.
        shape: its sizes, None where they are not known.
        dtype: its type, such as ``float32``; empty where it is not known.
        op_type: operator of the node that makes it.
        role: what it is there for.
    """

    step: int
    tensor: str
    shape: tuple[int, ...] | None
    dtype: str
    op_type: str
    role: Role


@dataclass(frozen=True, slots=True)
class Buffer:
    """A piece of memory, from the step that allocates it to the step after which it is freed.

    Attributes:
        bytes: its size.
        born: the step that allocates it.
        dies: the last step at which it is there.
        spans: what lies in it, in order; the first span begins at ``born``.
    """

    bytes: int
    born: int
    dies: int
    spans: tuple[Span, ...]

    def at(self, step: int) -> Span:
        """What lies in the buffer at a step of its life."""
        return next(span for span in reversed(self.spans) if span.step <= step)


@dataclass(frozen=True, slots=True)
class Occupancy:
    """A timeline with the buffers behind it, in order of birth.

    Attributes:
        timeline: the steps; the phase of each is that of the file's node.
        op_types: operator of each step.
        workspace: bytes that each step's kernel takes beyond its outputs; with the bytes of the buffers that are alive,
            they make up ``activations`` of the step.
        buffers: all memory that holds activations.
    """

    timeline: Timeline
    op_types: tuple[str, ...]
    workspace: tuple[int, ...]
    buffers: tuple[Buffer, ...]

    def __repr__(self) -> str:
        return f"<Occupancy: {len(self.buffers)} buffers over {len(self.timeline.steps)} steps>"

    def alive(self, step: int) -> list[tuple[int, Buffer]]:
        """The buffers alive at a step with their positions, largest first."""
        found = [(index, buffer) for index, buffer in enumerate(self.buffers) if buffer.born <= step <= buffer.dies]
        return sorted(found, key=lambda entry: -entry[1].bytes)


@dataclass(frozen=True, slots=True)
class _Phase:
    backward: bool
    recomputed: bool
    control: bool = False


def executed_occupancy(model: ir.Model) -> Occupancy:
    """What lies in memory when onnxruntime runs a file under default session options, as simulated.

    Args:
        model: the file.

    Raises:
        ModelError: onnxruntime does not load the model.
    """
    return occupancy_of_executed(executed_model(model), model)


def occupancy_of_executed(executed: ir.Model, model: ir.Model, problem: Problem | None = None) -> Occupancy:
    """What lies in memory when onnxruntime runs a graph that it has optimised.

    Args:
        executed: what onnxruntime made of the file, nodes in execution order.
        model: the file, which knows the phase of each node.
        problem: the numbers of what is executed, if they are known.
    """
    problem = problem or problem_of(executed)
    shapes = shape_classes(executed.graph, problem)
    phases = _phases(list(executed.graph), model)
    return occupancy(problem, range(len(problem.ops)), executed, shapes, phases)


def occupancy(
    problem: Problem,
    schedule: Sequence[int],
    model: ir.Model,
    shapes: Sequence[Hashable | None] | None = None,
    phases: Sequence[_Phase] | None = None,
) -> Occupancy:
    """What lies in memory over the steps of a schedule.

    Args:
        problem: the numbers of a graph.
        schedule: op ids in execution order; an op that stands again is recomputed.
        model: the graph itself, whose node positions are the op ids.
        shapes: see `ckplan.planner.simulate.lifetimes`.
        phases: what is known of each op; by default what the problem says.

    Raises:
        ValueError: the schedule is not valid.
    """
    nodes = list(model.graph)
    values = made_by_name(model.graph)
    known = phases or [_Phase(op.backward, False) for op in problem.ops]
    lives = lifetimes(problem, schedule, shapes)
    steps = _phased(simulate(problem, schedule, shapes, lives), schedule, known)
    spans: list[list[Span]] = [[] for _ in lives.size]
    read_last = [-1] * len(lives.size)
    current = [-1] * len(problem.tensors)
    for step, index in enumerate(schedule):
        op, moment = problem.ops[index], steps.steps[step]
        role = Role.RECOMPUTED if moment.recomputed else Role.BACKWARD if moment.backward else Role.FORWARD
        late = role is not Role.FORWARD
        for tensor in op.inputs:
            buffer = current[tensor]
            if buffer >= 0:
                read_last[buffer] = step
                if late and spans[buffer][-1].role is Role.FORWARD:
                    spans[buffer][-1] = replace(spans[buffer][-1], role=Role.KEPT)
        for tensor, buffer in zip(op.outputs, lives.buffer[step], strict=True):
            current[tensor] = buffer
            if buffer < 0 or (spans[buffer] and tensor in op.views):
                continue
            there = spans[buffer]
            if there and read_last[buffer] < step - 1:
                there.append(replace(there[-1], step=max(read_last[buffer], there[-1].step) + 1, role=Role.HELD))
            value = values.get(problem.tensors[tensor].name)
            there.append(
                Span(
                    step=step,
                    tensor=problem.tensors[tensor].name,
                    shape=None if value is None else dimensions_of(value),
                    dtype="" if value is None or value.dtype is None else _dtype(value.dtype),
                    op_type=nodes[index].op_type,
                    role=role,
                )
            )
            read_last[buffer] = step
    for there, read, dies in zip(spans, read_last, lives.dies, strict=True):
        if there and read < dies:
            there.append(replace(there[-1], step=read + 1, role=Role.HELD))
    rows = zip(lives.size, lives.born, lives.dies, spans, lives.returned, strict=True)
    buffers = [
        Buffer(size, born, dies, tuple(there)) for size, born, dies, there, returned in rows if not returned and size
    ]
    return Occupancy(
        timeline=steps,
        op_types=tuple(nodes[index].op_type for index in schedule),
        workspace=tuple(workspace_by_step(problem, schedule, lives)),
        buffers=tuple(sorted(buffers, key=lambda buffer: buffer.born)),
    )


def _phased(simulated: Timeline, schedule: Sequence[int], phases: Sequence[_Phase]) -> Timeline:
    """The timeline, each step with the phase that the file gives it; a control node has that of the op it gates."""
    steps = []
    following = _Phase(False, False)
    for step, index in zip(reversed(simulated.steps), reversed(schedule), strict=True):
        phase = following if phases[index].control else phases[index]
        following = phase
        steps.append(replace(step, backward=phase.backward, recomputed=step.recomputed or phase.recomputed))
    return Timeline(tuple(reversed(steps)))


def _phases(nodes: Sequence[ir.Node], model: ir.Model) -> list[_Phase]:
    """The phase of each executed node, told by the file's node that makes the same value.

    What optimisers put in has the phase of what it reads.
    """
    makers: Mapping[str, ir.Node] = {str(v.name): node for node in model.graph for v in node.outputs if v.name}
    found: dict[ir.Node, _Phase] = {}
    for node in nodes:
        origin = next((makers[str(v.name)] for v in node.outputs if v.name in makers), None)
        if origin is not None:
            facts = origin.metadata_props
            recomputed = RECOMPUTE_OF in facts
            found[node] = _Phase(
                backward=facts.get(PHASE) == "backward", recomputed=recomputed, control=facts.get(ROLE) == "control"
            )
            continue
        read = [found[producer] for v in node.inputs if v is not None and (producer := v.producer()) in found]
        found[node] = _Phase(any(phase.backward for phase in read), any(phase.recomputed for phase in read))
    return [found[node] for node in nodes]


def _dtype(dtype: ir.DataType) -> str:
    """The type as people call it."""
    return {"FLOAT": "float32", "DOUBLE": "float64"}.get(dtype.name, dtype.name.lower())

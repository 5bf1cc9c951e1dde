"""The executed graph, simulated: what is alive at the measured peak, and what the peak was expected to be.

onnxruntime's counters tell how many bytes are in use, not whose. The graph that it executes tells whose: it is
simulated in the order in which the nodes ran, with the shapes that they made.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import onnx_ir as ir

from ckplan.meter.executed.alive import Inside, LiveTensor
from ckplan.meter.facts import FileFacts
from ckplan.meter.memory.counter_timeline import in_use_before
from ckplan.meter.types import Counters
from ckplan.planner.arena.allocations import allocations, expected_arena
from ckplan.planner.problem import Problem
from ckplan.planner.simulate import Lifetimes, lifetimes, simulate
from ckplan.planner.timeline import Moment, Timeline
from ckplan.runtime.devices import RUNTIMES
from ckplan.runtime.executing.feeds import has_memory_pattern
from ckplan.runtime.problem_of import problem_of
from ckplan.runtime.sizes import DIMENSIONS, SMALL, shape_classes

if TYPE_CHECKING:
    from ckplan.isolation.arrays import Array

_TYPES = {
    "bool": ir.DataType.BOOL,
    "double": ir.DataType.DOUBLE,
    "float": ir.DataType.FLOAT,
    "float16": ir.DataType.FLOAT16,
    "bfloat16": ir.DataType.BFLOAT16,
    "string": ir.DataType.STRING,
    **{f"{sign}int{bits}": ir.DataType[f"{sign}int{bits}".upper()] for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
"""Element types as a profile calls them."""


def look_inside(
    executed: ir.Model,
    run: Mapping[str, Sequence[Any]],
    counters: Counters,
    fed: Mapping[str, Array],
    facts: FileFacts,
    device: str = "cpu",
    threads: int | None = None,
) -> Inside:
    """Simulate what ran, and find what was alive at the measured peak.

    Args:
        executed: the graph that onnxruntime executed, prepared by
            `ckplan.runtime.executing.executed.mark_executed`; is changed.
        run: the events of one run, as `ckplan.meter.memory.counters.split_runs` has them.
        counters: what was measured in that run.
        fed: the inputs.
        facts: what the file itself says.
        device: where it ran.
        threads: on which kernels ran, if that was said; else as many as plans are made for.

    Raises:
        ValueError: the graph is not the one that ran, or cannot be simulated.
    """
    nodes = list(executed.graph)
    problem, order, shapes, places = replayed(executed, run, fed, device, threads)
    lives = lifetimes(problem, order, shapes)
    simulated = simulate(problem, order, shapes, lives).steps
    # A node inside of a body ends before the node that holds the body, and counts as that one.
    ran = list(accumulate((place is not None for place in places), initial=0))
    at = [min(before, len(order) - 1) for before in ran[:-1]]
    steps = []
    for index, measured in enumerate(counters.timeline.steps):
        step = simulated[at[index]]
        steps.append(Moment(measured.op, step.live, step.activations, measured.backward, measured.recomputed))
    peak = at[counters.timeline.peak_step]
    alive = [
        LiveTensor(
            name=problem.tensors[tensor].name,
            bytes=size,
            node=str(nodes[maker].name),
            op_type=nodes[maker].op_type,
            backward=facts.is_backward(str(nodes[maker].name)),
            recomputed=facts.is_recomputed(str(nodes[maker].name)),
            held=held,
        )
        for tensor, size, maker, held in _alive_at(problem, order, lives, peak)
        if size
    ]
    return Inside(
        expected=Timeline(tuple(steps)),
        alive=tuple(sorted(alive, key=lambda entry: -entry.bytes)),
        workspaces=tuple(problem.workspaces[order[position]] for position in at),
        arena=expected_arena(
            allocations(problem, order, shapes, in_use_before(run), pattern=has_memory_pattern(executed.graph))
        ),
        threads=threads or RUNTIMES[device].threads,
    )


def replayed(
    executed: ir.Model,
    run: Mapping[str, Sequence[Any]],
    fed: Mapping[str, Array],
    device: str = "cpu",
    threads: int | None = None,
) -> tuple[Problem, list[int], list[Hashable | None], list[int | None]]:
    """What ran, as numbers: the problem, the schedule, what dead buffers are handed on by, and the op of each event.

    Args:
        executed: the graph that onnxruntime executed, prepared by
            `ckplan.runtime.executing.executed.mark_executed`; is changed.
        run: the events of one run, as `ckplan.meter.memory.counters.split_runs` has them.
        fed: the inputs.
        device: where it ran.
        threads: see `look_inside`.

    Raises:
        ValueError: the graph is not the one that ran.
    """
    places = aligned(list(executed.graph), run["name"], run["op"])
    _learn(executed, list(executed.graph), places, run["made"], fed)
    runtime = RUNTIMES[device]
    problem = problem_of(executed, replace(runtime, threads=threads or runtime.threads))
    shapes = shape_classes(executed.graph, problem)
    order = [place for place in places if place is not None]
    return _in_place_where_known(problem, shapes), order, shapes, places


def aligned(nodes: Sequence[ir.Node], names: Sequence[str], op_types: Sequence[str]) -> list[int | None]:
    """For each event of a run the node of the main graph that it is of; None for nodes inside of bodies.

    Args:
        nodes: the executed nodes, in execution order.
        names: name of each event; onnxruntime makes one up for a node that has none.
        op_types: and its operator.

    Raises:
        ValueError: a node has no event.
    """
    if [node.op_type for node in nodes] == list(op_types):
        return list(range(len(nodes)))
    named: dict[tuple[str, str], list[int]] = {}
    nameless: dict[str, list[int]] = {}
    for position, node in reversed(list(enumerate(nodes))):
        if node.name:
            named.setdefault((node.name, node.op_type), []).append(position)
        else:
            nameless.setdefault(node.op_type, []).append(position)
    places: list[int | None] = []
    for name, op_type in zip(names, op_types, strict=True):
        waiting = named.get((name, op_type)) or (nameless.get(op_type) if name.startswith(f"{op_type}_") else None)
        places.append(waiting.pop() if waiting else None)
    left = [*(key for key, found in named.items() if found), *(key for key, found in nameless.items() if found)]
    if left or not nodes:
        raise ValueError(f"{len(left)} of its {len(nodes)} nodes are not among those that ran")
    return places


def _learn(
    executed: ir.Model,
    nodes: Sequence[ir.Node],
    places: Sequence[int | None],
    made: Sequence[Sequence[tuple[str, Sequence[int]]]],
    fed: Mapping[str, Array],
) -> None:
    """Give values the shapes and types that they had when they were made or fed."""
    for value in executed.graph.inputs:
        if value.name is not None and value.name in fed:
            value.meta[DIMENSIONS] = fed[value.name].shape
    for place, outputs in zip(places, made, strict=True):
        if place is None:
            continue
        values = [value for value in nodes[place].outputs if value.name]
        if len(values) != len(outputs):  # outputs that are no tensors are not told
            continue
        for value, (element, dims) in zip(values, outputs, strict=True):
            value.meta[DIMENSIONS] = tuple(dims)
            if value.type is None and element in _TYPES:
                value.type = ir.TensorType(_TYPES[element])
    for node in nodes:
        # onnxruntime infers shapes of its own operators as well, where those of their inputs are static. Those of
        # standard ones the executed graph has already, but for what a control edge hides.
        if node.domain in ("", "ai.onnx"):
            continue
        read = [value for value in node.inputs if value is not None]
        if all(value.shape is not None and value.shape.is_static() for value in read):
            for value in node.outputs:
                if value.shape is None and DIMENSIONS in value.meta:
                    value.shape = ir.Shape(value.meta[DIMENSIONS])


def _in_place_where_known(problem: Problem, shapes: Sequence[Hashable | None]) -> Problem:
    """The problem without in-place kernels whose input and output onnxruntime does not know to be of one shape.

    In files of ckplan it always knows; in others, shapes may be left open (``FindReusableInput``, ``SameSize``).
    """
    ops = []
    for op in problem.ops:
        inplace = {
            tensor: same
            for tensor, sources in op.inplace.items()
            if (same := tuple(source for source in sources if _same(tensor, source, problem, shapes)))
        }
        ops.append(replace(op, inplace=inplace))
    return replace(problem, ops=tuple(ops))


def _same(tensor: int, source: int, problem: Problem, shapes: Sequence[Hashable | None]) -> bool:
    if problem.tensors[tensor].bytes <= SMALL:
        return True  # scalars have no class, and are of no consequence
    return shapes[tensor] is not None and shapes[tensor] == shapes[source]


def _alive_at(problem: Problem, order: Sequence[int], lives: Lifetimes, peak: int) -> list[tuple[int, int, int, bool]]:
    """The buffers in use at a step of a schedule without repeats: tensor, bytes, its maker, whether it is dead."""
    content: dict[int, tuple[int, int]] = {}  # by buffer: the tensor last made in it, and the op that made it
    made_in: dict[int, int] = {}
    for step, index in enumerate(order[: peak + 1]):
        op = problem.ops[index]
        for tensor, buffer in zip(op.outputs, lives.buffer[step], strict=True):
            if tensor not in op.views or buffer not in content:
                content[buffer] = tensor, index
            made_in[tensor] = buffer
    needed = {
        made_in[tensor] for index in order[peak:] for tensor in problem.ops[index].inputs if tensor in made_in
    } | set(lives.buffer[peak])
    return [
        (content[buffer][0], lives.size[buffer], content[buffer][1], buffer not in needed)
        for buffer in content
        if buffer >= 0 and lives.born[buffer] <= peak <= lives.dies[buffer] and not lives.returned[buffer]
    ]

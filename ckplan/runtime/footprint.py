"""What a process with a file holds from its first steps on: parameters, state, and onnxruntime's arena.

What a loop feeds is counted once, as long as it is fed: parameters, optimizer states, the batch. A file whose updates
may be made in place (`keys.IN_PLACE`) gets its new values in the same memory; any other returns them in memory of its
own, as it returns gradients. Values that lie in the file itself are held by the session too, also where they are fed;
those in a data file are mapped, and only read where they are not fed. onnxruntime packs no weight a second time that is
an input, and those of heavy operators are.

The arena takes regions that are larger than what is ever written to them. What counts is what is written: that is in
the resident set, for which containers and machines have limits. Where the system limits what it grants, the arena takes
smaller regions; see `ckplan.planner.arena`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import onnx_ir as ir

from ckplan import keys
from ckplan.model.metadata import listed_names, told
from ckplan.model.weights import lies_outside
from ckplan.planner.allocations import (
    Allocations,
    Demand,
    allocations,
    expected_arena,
    goes_through,
    least_room,
    pattern_block,
)
from ckplan.planner.arena import DEFAULT, UNIT
from ckplan.planner.problem import Problem
from ckplan.runtime.problem_of import problem_of
from ckplan.runtime.sizes import bytes_of, shape_classes

_LARGEST_RESERVATIONS = 3
"""How many sizes are tried of a tensor that lets the arena take a large region at once, the largest ones."""


@dataclass(frozen=True, slots=True)
class Footprint:
    """What a process with a file holds, in bytes; what it takes without any model is not in it.

    Attributes:
        parameters: all weights and constants, as fed or as the session holds them.
        copies: values in the file of what is fed besides.
        state: an optimizer's states.
        inputs: the batch, and whatever else is fed.
        returned: what the caller gets in memory of its own: the loss, gradients, new values that are not made in place.
        activations: their peak, workspaces and gradients that die in their updates included.
        arena: what onnxruntime's arena takes beyond those two, once it has run a few times with default options.
        spare: bytes of its regions to which nothing is ever written: addresses, but no memory.
    """

    parameters: int
    copies: int
    state: int
    inputs: int
    returned: int
    activations: int
    arena: int
    spare: int = 0

    @property
    def resident(self) -> int:
        """What is there whatever the plan is."""
        return self.parameters + self.copies + self.state + self.inputs

    @property
    def touched(self) -> int:
        """What is written to in the arena, outputs included."""
        return self.returned + self.activations + self.arena

    @property
    def held(self) -> int:
        """The arena's regions, outputs included."""
        return self.touched + self.spare

    @property
    def total(self) -> int:
        """Everything that takes memory."""
        return self.resident + self.touched

    def to_json(self) -> dict[str, int]:
        """The fields and the total."""
        names = ("parameters", "copies", "state", "inputs", "returned", "activations", "arena", "spare")
        return {**{name: getattr(self, name) for name in names}, "total": self.total}


def footprint_of(executed: ir.Model, model: ir.Model, *, in_place: bool | None = None) -> Footprint:
    """What a process with a file holds, as simulated.

    Args:
        executed: what onnxruntime executes of the file, nodes in execution order.
        model: the file, which has the values of its parameters.
        in_place: whether new values are written over the old ones; by default as the file says.
    """
    given = model.metadata_props.get(keys.IN_PLACE) == "true" if in_place is None else in_place
    problem, asked = _asked(executed, model, given)
    peak = _peak(problem, asked)
    returned = sum(asked.size[buffer] for step in asked.steps for buffer in step.outputs)
    steady = expected_arena(asked).steady
    touched = max(steady.touched + _outside(problem), peak + returned)
    initializers = model.graph.initializers.values()
    states = set(listed_names(model.metadata_props, keys.STATES))
    fed = set(listed_names(model.metadata_props, keys.PARAMETERS)) | told(model.metadata_props, keys.UPDATES).keys()
    inputs = [value for value in model.graph.inputs if not value.is_initializer()]
    outside = lies_outside(model)
    return Footprint(
        parameters=sum(bytes_of(value) for value in initializers),
        copies=sum(bytes_of(value) for value in initializers if value.name in fed and not outside(value)),
        state=sum(bytes_of(value) for value in inputs if value.name in states),
        inputs=sum(bytes_of(value) for value in inputs if value.name not in states),
        returned=returned,
        activations=peak,
        arena=touched - peak - returned,
        spare=max(0, steady.held - touched),
    )


def best_reservation(executed: ir.Model, model: ir.Model) -> tuple[int, int]:
    """Bytes of a tensor that, made first and dead at once, lets the arena hold least, and what that is.

    It is larger than half of the region that it is to get, and no larger than the block of later runs, which the arena
    holds anyway; see `ckplan.writer.reservation`. It has 0 bytes where none makes a difference.

    Args:
        executed: what onnxruntime executes of a file, nodes in execution order.
        model: the file.
    """
    asked = allocations_of(executed, model)
    plain = expected_arena(asked)
    held = {size: expected_arena(_reserving(asked, size)).steady.held for size in _sizes(plain.block)}
    return _least({0: plain.steady.held, **held})


def best_reservation_within(executed: ir.Model, model: ir.Model, room: int) -> tuple[int, int]:
    """Bytes of a tensor that, made first and dead at once, lets runs go through with little, and what that is.

    One of the size of the block of later runs keeps the first run and the others in one region; see `best_reservation`.

    Args:
        executed: what onnxruntime executes of a file, nodes in execution order.
        model: the file.
        room: bytes for the arena; the smallest tensor with which they are enough is taken, if there is any.
    """
    problem, asked = _asked_in_place(executed, model)
    block = pattern_block(asked)
    found: dict[int, int] = {}
    for size in [0, *_sizes(block), block]:
        found[size] = least_room(_reserving(asked, size) if size else asked) + _outside(problem)
        if found[size] <= room:
            return size, found[size]
    return _least(found)


def runs_within(executed: ir.Model, model: ir.Model, room: int) -> bool:
    """Whether runs of a file go through with so many bytes for the arena, whatever limits it; see `least_room`.

    What kernels take outside the arena has to find room there, too: the C library keeps what it gets back.
    """
    problem, asked = _asked_in_place(executed, model)
    left = room - _outside(problem)
    return expected_arena(asked).steady.touched <= left and goes_through(asked, left)


def room_needed(executed: ir.Model, model: ir.Model) -> int:
    """Bytes with which the arena of a file gets by; see `ckplan.planner.allocations.least_room`."""
    problem, asked = _asked_in_place(executed, model)
    return least_room(asked) + _outside(problem)


def _sizes(block: int) -> list[int]:
    """Sizes of a tensor that gets a region of twice its size, the largest ones up to those of the block."""
    half, sizes = DEFAULT.first_region // 2, []
    while half + UNIT <= block:
        sizes.append(half + UNIT)
        half *= 2
    return sizes[-_LARGEST_RESERVATIONS:]


def _reserving(asked: Allocations, size: int) -> Allocations:
    """The same with a tensor made first of all."""
    new = len(asked.size)
    # What the tensor waits for comes before it, and takes a small region: the loss lies there in later runs.
    first = Demand((new, new + 1), (), 0, (new, new + 1))
    return replace(asked, size=(*asked.size, 1, size), steps=(first, *asked.steps))


def _least(found: Mapping[int, int]) -> tuple[int, int]:
    size = min(found, key=lambda size: (found[size], size))
    return size, found[size]


def needed_in_one_region(executed: ir.Model, model: ir.Model) -> int:
    """Bytes of a region in which a later run of a file lies with its block, gaps included; see `best_reservation`."""
    return expected_arena(allocations_of(executed, model)).needed


def allocations_of(executed: ir.Model, model: ir.Model) -> Allocations:
    """What a file asks of the allocator, new values in place if it says so."""
    return _asked_in_place(executed, model)[1]


def _asked_in_place(executed: ir.Model, model: ir.Model) -> tuple[Problem, Allocations]:
    return _asked(executed, model, model.metadata_props.get(keys.IN_PLACE) == "true")


def _outside(problem: Problem) -> int:
    """Most bytes that a kernel takes outside the arena."""
    return max((op.outside for op in problem.ops), default=0)


def _asked(executed: ir.Model, model: ir.Model, in_place: bool) -> tuple[Problem, Allocations]:
    """The problem of a file and what it asks of the allocator, which has no part in new values that are in place."""
    problem = problem_of(executed)
    asked = allocations(problem, range(len(problem.ops)), shape_classes(executed.graph, problem))
    bound = frozenset(map(str, told(model.metadata_props, keys.UPDATES).values())) if in_place else frozenset[str]()
    steps = []
    for step, op in zip(asked.steps, problem.ops, strict=True):
        names = {problem.tensors[tensor].name: problem.tensors[tensor].bytes for tensor in op.outputs}
        kept = list(step.outputs)
        for size in (size for name, size in names.items() if name in bound):
            buffer = next((buffer for buffer in kept if asked.size[buffer] == size), None)
            if buffer is not None:
                kept.remove(buffer)
        steps.append(replace(step, outputs=tuple(kept)))
    return problem, replace(asked, steps=tuple(steps))


def _peak(problem: Problem, asked: Allocations) -> int:
    """Peak of activations, with what kernels take outside the allocator; steps are the ops of the problem in order."""
    live = highest = 0
    for step, op in zip(asked.steps, problem.ops, strict=True):
        live += sum(asked.size[buffer] for buffer in step.tensors)
        highest = max(highest, live + step.workspace + op.outside)
        live -= sum(asked.size[buffer] for buffer in step.freed)
    return highest

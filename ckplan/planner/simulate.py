"""The simulator: what a schedule costs in memory, step by step.

A buffer is the unit of memory. An op's output is a new buffer, unless it is a view of an input, or
the kernel may overwrite an input that nothing reads any more. A buffer is freed after the step of its
last reader. This is how onnxruntime's sequential executor works (``core/framework/allocation_planner.cc``,
``FindReusableInput``). It also hands a dead buffer to a later tensor of the same shape and holds it in between
(``FindReusableTensor``), and never frees what nobody reads (``GenerateDeallocationPlan``); both are simulated when the
shapes are given as classes.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from ckplan.planner.copies import Copies
from ckplan.planner.peak import live_bytes
from ckplan.planner.problem import Kind, Problem
from ckplan.planner.timeline import Moment, Timeline


@dataclass(frozen=True, slots=True)
class Lifetimes:
    """Which buffer each produced tensor copy occupies, and when buffers live.

    Attributes:
        buffer: for each step, the buffer of each output of its op, in order (-1: resident memory).
        size: bytes of each buffer.
        born: step that allocates each buffer.
        dies: step after which each buffer is freed (the last step for outputs of the file).
        tensor: the tensor for which each buffer was allocated.
        returned: whether the buffer is an output of the file.
    """

    buffer: tuple[tuple[int, ...], ...]
    size: tuple[int, ...]
    born: tuple[int, ...]
    dies: tuple[int, ...]
    tensor: tuple[int, ...]
    returned: tuple[bool, ...]


def lifetimes(problem: Problem, schedule: Sequence[int], shapes: Sequence[Hashable | None] | None = None) -> Lifetimes:
    """Assign buffers to the tensor copies that a schedule makes.

    Each occurrence of an op makes new copies of its outputs; a read means the latest copy.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order.
        shapes: for each tensor the class of shapes within which a dead buffer is handed on, None for a tensor that
            takes no part in that. When they are given, what nobody reads is held to the end, too; by default no buffer
            is held.

    Raises:
        ValueError: an op reads a tensor before any copy of it is made, or some op never runs.
    """
    ops, tensors = problem.ops, problem.tensors
    missing = set(range(len(ops))).difference(schedule)
    if missing:
        raise ValueError(f"{len(missing)} op(s) never run, the first is {ops[min(missing)].name!r}")
    # Reads left of each copy, where a copy is numbered by (step, position) in order of creation.
    current = [-1] * len(tensors)
    reads: list[int] = []
    read_copies: list[tuple[int, ...]] = []
    first_copy: list[int] = []
    for index in schedule:
        op = ops[index]
        read = []
        for tensor in op.inputs:
            copy = current[tensor]
            if copy >= 0:
                reads[copy] += 1
            elif problem.producer[tensor] >= 0:
                raise ValueError(f"op {op.name!r} reads {tensors[tensor].name!r} before it is made")
            read.append(copy)
        read_copies.append(tuple(read))
        first_copy.append(len(reads))
        for tensor in op.outputs:
            current[tensor] = len(reads)
            reads.append(0)

    buffer_of: list[int] = [-1] * len(reads)
    uses: list[int] = []  # reads left of all copies that share the buffer
    size: list[int] = []
    born: list[int] = []
    dies: list[int] = []
    owner: list[int] = []
    returned: list[bool] = []
    ever_read: list[bool] = []
    dead: dict[Hashable, list[int]] = {}  # per class of shapes, dead buffers, the one that died last at the end
    output_made: set[int] = set()
    last = len(schedule) - 1
    buffers: list[tuple[int, ...]] = []
    for step, index in enumerate(schedule):
        op = ops[index]
        copies = read_copies[step]
        row: list[int] = []
        for position, tensor in enumerate(op.outputs):
            copy = first_copy[step] + position
            is_output = tensors[tensor].kind is Kind.OUTPUT and tensor not in output_made
            shared: int | None = None
            if is_output:
                output_made.add(tensor)
            elif tensor in op.views:
                source = copies[op.inputs.index(op.views[tensor])]
                shared = buffer_of[source] if source >= 0 else -1
            else:
                for candidate in op.inplace.get(tensor, ()):
                    source = copies[op.inputs.index(candidate)]
                    target = buffer_of[source] if source >= 0 else -1
                    # onnxruntime compares shapes; without them, bytes are what the numbers know.
                    fits = tensors[candidate].bytes == tensors[tensor].bytes
                    if shapes is not None:
                        fits = fits and shapes[candidate] is not None and shapes[candidate] == shapes[tensor]
                    if fits and target >= 0 and uses[target] == 1 and not returned[target]:
                        shared = target
                        break
            shape = shapes[tensor] if shapes is not None else None
            # What nobody reads is never put into a dead buffer; its own may be handed on.
            if shared is None and not is_output and shape is not None and reads[copy] and dead.get(shape):
                shared = dead[shape].pop()
            if shared is None:
                shared = len(size)
                size.append(tensors[tensor].bytes)
                born.append(step)
                dies.append(last if is_output else step)
                owner.append(tensor)
                returned.append(is_output)
                uses.append(0)
                ever_read.append(False)
            if shared >= 0:
                uses[shared] += reads[copy]
                ever_read[shared] = ever_read[shared] or reads[copy] > 0
            buffer_of[copy] = shared
            row.append(shared)
        released = []
        for copy in copies:
            held = buffer_of[copy] if copy >= 0 else -1
            if held >= 0:
                uses[held] -= 1
                released.append(held)
        for held in dict.fromkeys((*released, *row)):
            if held >= 0 and not returned[held]:
                dies[held] = step
                if uses[held] == 0 and shapes is not None:
                    dead.setdefault(shapes[owner[held]], []).append(held)
        buffers.append(tuple(row))
    if shapes is not None:
        for held, is_read in enumerate(ever_read):
            if not is_read:
                dies[held] = last
    return Lifetimes(tuple(buffers), tuple(size), tuple(born), tuple(dies), tuple(owner), tuple(returned))


def simulate(
    problem: Problem,
    schedule: Sequence[int],
    shapes: Sequence[Hashable | None] | None = None,
    lives: Lifetimes | None = None,
) -> Timeline:
    """Memory over the steps of a schedule.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; an op that stands again is recomputed.
        shapes: see `lifetimes`.
        lives: what that gives, if it is known.

    Returns:
        One step per schedule entry; live bytes while the op runs, inputs and outputs included.

    Raises:
        ValueError: the schedule is not valid, see `lifetimes`.
    """
    if shapes is None and lives is None and (found := _by_arrays(problem, schedule)) is not None:
        return found
    lives = lives or lifetimes(problem, schedule, shapes)
    workspaces = workspace_by_step(problem, schedule, lives)
    count = len(schedule)
    change = [0] * (count + 1)
    returned = [0] * (count + 1)
    for size, born, dies, is_output in zip(lives.size, lives.born, lives.dies, lives.returned, strict=True):
        if is_output:
            returned[born] += size
        else:
            change[born] += size
            change[dies + 1] -= size
    steps = []
    seen: set[int] = set()
    live = outputs = 0
    for step, index in enumerate(schedule):
        op = problem.ops[index]
        live += change[step]
        outputs += returned[step]
        activations = live + workspaces[step]
        steps.append(Moment(op.name, problem.resident + outputs + activations, activations, op.backward, index in seen))
        seen.add(index)
    return Timeline(tuple(steps))


def _by_arrays(problem: Problem, schedule: Sequence[int]) -> Timeline | None:
    """The same for a valid schedule, much faster; None where that is not known, or what kernels make late decides."""
    ops = problem.ops
    if len(schedule) < len(ops) or any(op.late for op in ops):
        return None
    copies = Copies.of(problem, tuple(schedule))
    if not copies.is_valid():
        return None
    outputs = problem.resident + copies.returned()
    columns = zip(
        schedule, live_bytes(problem, schedule).tolist(), outputs.tolist(), copies.again.tolist(), strict=True
    )
    steps = (
        Moment(ops[index].name, taken + held, held, ops[index].backward, again) for index, held, taken, again in columns
    )
    return Timeline(tuple(steps))


def workspace_by_step(problem: Problem, schedule: Sequence[int], lives: Lifetimes) -> list[int]:
    """Bytes that each step's kernel takes beyond its outputs, those of them included that it makes late."""
    found = []
    for step, index in enumerate(schedule):
        op = problem.ops[index]
        most = op.workspace
        if op.late:
            rows = zip(op.outputs, lives.buffer[step], strict=True)
            late = [buffer for tensor, buffer in rows if tensor in op.late and buffer >= 0]
            most = max(most, op.early - sum(lives.size[buffer] for buffer in late if lives.born[buffer] == step))
        found.append(most)
    return found


def live_at(problem: Problem, schedule: Sequence[int], step: int) -> list[tuple[int, int]]:
    """The buffers alive at a step, largest first, as ``(tensor, bytes)``; outputs of the file left out."""
    lives = lifetimes(problem, schedule)
    alive = [
        (lives.tensor[buffer], lives.size[buffer])
        for buffer in range(len(lives.size))
        if lives.born[buffer] <= step <= lives.dies[buffer] and not lives.returned[buffer]
    ]
    return sorted(alive, key=lambda entry: -entry[1])

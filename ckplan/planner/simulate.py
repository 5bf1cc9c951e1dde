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

from ckplan.arguments import check_kind, is_number, shown
from ckplan.errors import UsageError
from ckplan.planner.copies import Copies
from ckplan.planner.peak import live_bytes
from ckplan.planner.problem import Kind, Op, Problem
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
    first_copy, read_copies, reads = _copies(problem, schedule)
    buffers = _Buffers(len(schedule) - 1)
    buffer_of = [-1] * len(reads)
    output_made: set[int] = set()
    rows: list[tuple[int, ...]] = []
    for step, index in enumerate(schedule):
        op = ops[index]
        read = [buffer_of[copy] if copy >= 0 else -1 for copy in read_copies[step]]
        row: list[int] = []
        for copy, tensor in enumerate(op.outputs, first_copy[step]):
            is_output = tensors[tensor].kind is Kind.OUTPUT and tensor not in output_made
            shared: int | None = None
            if is_output:
                output_made.add(tensor)
            elif tensor in op.views:
                shared = read[op.inputs.index(op.views[tensor])]
            else:
                if tensor in op.inplace:
                    shared = _written_over(problem, op, tensor, read, buffers, shapes)
                # What nobody reads is never put into a dead buffer; its own may be handed on.
                if shared is None and shapes is not None and reads[copy]:
                    shared = buffers.take_dead(shapes[tensor])
            if shared is None:
                shared = buffers.add(tensor, tensors[tensor].bytes, step, is_output)
            if shared >= 0:
                buffers.uses[shared] += reads[copy]
                buffers.is_read[shared] |= reads[copy] > 0
            buffer_of[copy] = shared
            row.append(shared)
        buffers.release(read, row, step, shapes)
        rows.append(tuple(row))
    if shapes is not None:
        buffers.hold_unread()
    return Lifetimes(
        tuple(rows),
        tuple(buffers.size),
        tuple(buffers.born),
        tuple(buffers.dies),
        tuple(buffers.owner),
        tuple(buffers.returned),
    )


def _copies(problem: Problem, schedule: Sequence[int]) -> tuple[list[int], list[tuple[int, ...]], list[int]]:
    """Number the tensor copies that a schedule makes in order of creation.

    Returns:
        For each step the first copy that it makes, and the copies that it reads (-1: resident memory); for each copy
        how often it is read.

    Raises:
        ValueError: an op reads a tensor before any copy of it is made.
    """
    current = [-1] * len(problem.tensors)
    first_copy: list[int] = []
    read_copies: list[tuple[int, ...]] = []
    reads: list[int] = []
    for index in schedule:
        op = problem.ops[index]
        read = []
        for tensor in op.inputs:
            copy = current[tensor]
            if copy >= 0:
                reads[copy] += 1
            elif problem.producer[tensor] >= 0:
                raise ValueError(f"op {op.name!r} reads {problem.tensors[tensor].name!r} before it is made")
            read.append(copy)
        read_copies.append(tuple(read))
        first_copy.append(len(reads))
        for tensor in op.outputs:
            current[tensor] = len(reads)
            reads.append(0)
    return first_copy, read_copies, reads


class _Buffers:
    """The buffers of a schedule as they come to be, a column each for what `Lifetimes` tells of them.

    Attributes:
        uses: reads left of all copies that share a buffer.
        is_read: whether one of them is read at all.
    """

    def __init__(self, last: int) -> None:
        self._last = last
        self.size: list[int] = []
        self.born: list[int] = []
        self.dies: list[int] = []
        self.owner: list[int] = []
        self.returned: list[bool] = []
        self.uses: list[int] = []
        self.is_read: list[bool] = []
        self._dead: dict[Hashable, list[int]] = {}  # by class of shapes, the one that died last at the end

    def add(self, tensor: int, size: int, step: int, returned: bool) -> int:
        """Allocate a buffer for a tensor, and return its number."""
        self.size.append(size)
        self.born.append(step)
        self.dies.append(self._last if returned else step)
        self.owner.append(tensor)
        self.returned.append(returned)
        self.uses.append(0)
        self.is_read.append(False)
        return len(self.size) - 1

    def take_dead(self, shape: Hashable | None) -> int | None:
        """The dead buffer of a class of shapes that is handed on next, if there is one."""
        dead = self._dead.get(shape) if shape is not None else None
        return dead.pop() if dead else None

    def release(
        self, read: Sequence[int], made: Sequence[int], step: int, shapes: Sequence[Hashable | None] | None
    ) -> None:
        """Count the reads of a step; what it has read or made and nothing reads any more may be handed on after it."""
        for buffer in read:
            if buffer >= 0:
                self.uses[buffer] -= 1
        for buffer in dict.fromkeys((*read, *made)):
            if buffer >= 0 and not self.returned[buffer]:
                self.dies[buffer] = step
                if shapes is not None and not self.uses[buffer]:
                    self._dead.setdefault(shapes[self.owner[buffer]], []).append(buffer)

    def hold_unread(self) -> None:
        """Let buffers that nobody reads live to the end."""
        for buffer, is_read in enumerate(self.is_read):
            if not is_read:
                self.dies[buffer] = self._last


def _written_over(
    problem: Problem,
    op: Op,
    tensor: int,
    read: Sequence[int],
    buffers: _Buffers,
    shapes: Sequence[Hashable | None] | None,
) -> int | None:
    """The buffer of an input that an op writes an output over, if it may: one that nothing else reads any more.

    Args:
        problem: the ops and tensors.
        op: the op.
        tensor: the output.
        read: the buffers of the op's inputs (-1: resident memory).
        buffers: those that there are.
        shapes: see `lifetimes`.
    """
    for candidate in op.inplace[tensor]:
        buffer = read[op.inputs.index(candidate)]
        # onnxruntime compares shapes; without them, bytes are what the numbers know.
        fits = problem.tensors[candidate].bytes == problem.tensors[tensor].bytes
        if shapes is not None:
            fits = fits and shapes[candidate] is not None and shapes[candidate] == shapes[tensor]
        if fits and buffer >= 0 and buffers.uses[buffer] == 1 and not buffers.returned[buffer]:
            return buffer
    return None


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
        ValueError: the schedule is not valid: see `lifetimes`; or it has an op that the problem has not, or runs one
            again that would then give another result.
        UsageError: one of the two is of another kind.
    """
    check_kind("the problem", problem, Problem, "make one with `ckplan.problem_of`")
    check_kind("the schedule", schedule, Sequence, "give op ids in execution order")
    _check_ops(problem, schedule)
    if shapes is None and lives is None and (found := _by_arrays(problem, schedule)) is not None:
        return found
    lives = lives or lifetimes(problem, schedule, shapes)
    workspaces = workspace_by_step(problem, schedule, lives)
    beyond = _beyond_returned(problem, schedule, lives)
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
        everything = problem.resident + outputs + live + beyond.get(step, workspaces[step])
        steps.append(Moment(op.name, everything, activations, op.backward, index in seen))
        seen.add(index)
    return Timeline(tuple(steps))


def _check_ops(problem: Problem, schedule: Sequence[int]) -> None:
    """See that ids are those of ops, and that none runs again that must not: a second draw is another number.

    Raises:
        ValueError: one is of no op, or of an op that may run only once and stands there twice.
        UsageError: one is no whole number.
    """
    ops = problem.ops
    seen: set[int] = set()
    for index in schedule:
        if type(index) is not int and not is_number(index, whole=True):
            raise UsageError(f"an op id of the schedule is {shown(index)}", "give whole numbers from 0 on")
        if not 0 <= index < len(ops):
            raise ValueError(f"there is no op {index}, the ids of {len(ops)} ops begin at 0")
        if index in seen and not ops[index].recomputable:
            raise ValueError(f"op {ops[index].name!r} stands there twice, and may run only once")
        seen.add(index)


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
    """Bytes of activations that each step's kernel takes beyond its outputs; see `Problem.workspaces`."""
    found = []
    for step, index in enumerate(schedule):
        late = [buffer for buffer in _made_late(problem, index, step, lives) if not lives.returned[buffer]]
        found.append(_beyond(problem, index, late, lives))
    return found


def _beyond_returned(problem: Problem, schedule: Sequence[int], lives: Lifetimes) -> dict[int, int]:
    """Bytes that kernels which make outputs late take beyond all of them, by step."""
    return {
        step: _beyond(problem, index, late, lives)
        for step, index in enumerate(schedule)
        if (late := _made_late(problem, index, step, lives))
    }


def _beyond(problem: Problem, index: int, late: Sequence[int], lives: Lifetimes) -> int:
    """Bytes that an op's kernel takes beyond its outputs, of which it makes some buffers late."""
    op = problem.ops[index]
    return max(op.workspace, op.early - sum(lives.size[buffer] for buffer in late))


def _made_late(problem: Problem, index: int, step: int, lives: Lifetimes) -> list[int]:
    """The buffers that an op allocates at a step when it ends."""
    op = problem.ops[index]
    if not op.late:
        return []
    rows = zip(op.outputs, lives.buffer[step], strict=True)
    return [b for tensor, b in rows if tensor in op.late and b >= 0 and lives.born[b] == step]


def live_at(problem: Problem, schedule: Sequence[int], step: int) -> list[tuple[int, int]]:
    """The buffers alive at a step, largest first, as ``(tensor, bytes)``; outputs of the file left out."""
    lives = lifetimes(problem, schedule)
    alive = [
        (lives.tensor[buffer], lives.size[buffer])
        for buffer in range(len(lives.size))
        if lives.born[buffer] <= step <= lives.dies[buffer] and not lives.returned[buffer]
    ]
    return sorted(alive, key=lambda entry: -entry[1])

"""What a schedule asks of onnxruntime's allocator, and what its arena makes of that.

In the first run every tensor is allocated when it is made and freed after its last reader. From the second run on
(``enable_mem_pattern``) onnxruntime takes one block for all tensors but the outputs of the file, laid out from the
lifetimes of the first run (`ckplan.planner.arena.memory_pattern`). The block is there from the start of the run to its
end, beside what the arena still holds of the first run. Where it does not fit into a limit, onnxruntime does without
it, and some files have none at all.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from ckplan.planner.arena.memory_pattern import block_of
from ckplan.planner.arena.regions import DEFAULT, UNIT, Arena, ArenaFullError, ArenaSettings, tables_of
from ckplan.planner.problem import Freed, Mark, Piece, Problem
from ckplan.planner.simulate import Lifetimes, lifetimes

_BLOCK, INNER_NODE, _WORKSPACE = -2, -3, -4
"""Keys of what is no tensor; those of a workspace go on below."""

_ORDERS = 6
"""Orders of an arena's regions that are looked at: none of them from the C library's heap, the first, and so on."""

_RUNS = 2
"""Later runs until an arena has what they need."""

_ENDLESS = ArenaSettings(first_region=2**50, waste=0)

_PRECISION = 1 / 512
"""Width at which the search for the smallest limit ends, as a ratio of the limit."""


@dataclass(frozen=True, slots=True)
class Demand:
    """What one step asks of the allocator.

    Attributes:
        tensors: buffers that are allocated, outputs of the file left out.
        outputs: buffers of outputs of the file that are allocated; the caller frees them after the run.
        workspace: bytes that are allocated after those and freed before the step ends; what a kernel takes outside the
            allocator is not in it.
        freed: buffers that are freed when the step has ended.
        outside: bytes that a kernel takes of the system itself while it runs.
        pieces: the workspace tensor by tensor; see `ckplan.planner.problem.Op`.
        pieces_again: the same in later runs, where that is not the same.
        late: those of the buffers that the kernel asks for at its end only.
    """

    tensors: tuple[int, ...]
    outputs: tuple[int, ...]
    workspace: int
    freed: tuple[int, ...]
    outside: int = 0
    pieces: tuple[Piece, ...] = ()
    pieces_again: tuple[Piece, ...] = ()
    late: tuple[int, ...] = ()

    @property
    def work(self) -> tuple[Piece, ...]:
        """The workspace tensor by tensor, also where the kernel takes all at once."""
        known = not self.workspace or any(isinstance(piece, int) for piece in self.pieces)
        return self.pieces if known else (*self.pieces, self.workspace)

    @property
    def again(self) -> Demand:
        """The same in a later run."""
        return replace(self, pieces=self.pieces_again, pieces_again=()) if self.pieces_again else self

    def asks(self, size: Sequence[int], buffers: Iterable[int]) -> Iterator[tuple[int, int]]:
        """What the kernel asks for in order, as key and bytes, and, at no bytes, what it gives back.

        At `INNER_NODE` in place of a key a node of one of its bodies has ended.

        Args:
            size: bytes of each buffer; those of no bytes are not asked for.
            buffers: what it asks for itself of the buffers that it makes.
        """
        given: dict[int, None] = {}  # keys of what is held
        work = self.work
        late = self.late if Mark.LATE_OUTPUTS in work else ()
        for number, piece in enumerate(work if Mark.OUTPUTS in work else (Mark.OUTPUTS, *work)):
            if isinstance(piece, Mark):
                if piece is Mark.INNER_NODE:
                    yield INNER_NODE, 0
                else:
                    at_end = piece is Mark.LATE_OUTPUTS
                    yield from ((one, size[one]) for one in buffers if size[one] and (one in late) == at_end)
            elif isinstance(piece, Freed):
                freed = _WORKSPACE - (number - piece.back)
                del given[freed]
                yield freed, 0
            else:
                given[_WORKSPACE - number] = None
                yield _WORKSPACE - number, piece
        yield from ((key, 0) for key in given)


@dataclass(frozen=True, slots=True)
class Allocations:
    """The allocations of one run.

    Attributes:
        size: bytes of each buffer.
        steps: what each step asks for.
        resident: bytes that were handed out before the first run, such as packed weights.
        pattern: whether later runs have the block of a memory pattern.
    """

    size: tuple[int, ...]
    steps: tuple[Demand, ...]
    resident: int = 0
    pattern: bool = True

    @property
    def outside(self) -> int:
        """Most bytes that a kernel takes of the system itself."""
        return max((step.outside for step in self.steps), default=0)


@dataclass(frozen=True, slots=True)
class ArenaUse:
    """What an arena had handed out at most at the end of a kernel of a run, and what it held at the end of the run.

    Attributes:
        in_use: bytes handed out.
        held: bytes of its regions.
        touched: bytes of them that anything was ever written to, at most.
    """

    in_use: int
    held: int
    touched: int

    @property
    def tables(self) -> int:
        """Bytes that the arena keeps beside its regions; see `ckplan.planner.arena.regions`."""
        return tables_of(self.held)


@dataclass(frozen=True, slots=True)
class ExpectedArena:
    """The arena over several runs, in bytes.

    Attributes:
        live: most bytes that are handed out at once in the first run, without any waste.
        first: the first run.
        block: the block of the memory pattern.
        needed: most bytes that are handed out at once in a later run, the block among them, without any waste.
        steady: a later run, with the block.
        without_pattern: a later run with memory patterns off.
    """

    live: int
    first: ArenaUse
    block: int
    needed: int
    steady: ArenaUse
    without_pattern: ArenaUse


def allocations(
    problem: Problem,
    schedule: Sequence[int],
    shapes: Sequence[Hashable | None] | None = None,
    resident: int = 0,
    *,
    pattern: bool = True,
    lives: Lifetimes | None = None,
) -> Allocations:
    """What a schedule asks of the allocator, step by step.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order.
        shapes: see `ckplan.planner.simulate.lifetimes`.
        resident: see `Allocations`.
        pattern: see `Allocations`.
        lives: what `ckplan.planner.simulate.lifetimes` gives, if it is known.

    Raises:
        ValueError: the schedule is not valid.
    """
    lives = lives or lifetimes(problem, schedule, shapes)
    tensors: list[list[int]] = [[] for _ in schedule]
    outputs: list[list[int]] = [[] for _ in schedule]
    freed: list[list[int]] = [[] for _ in schedule]
    for buffer, (born, dies, returned) in enumerate(zip(lives.born, lives.dies, lives.returned, strict=True)):
        (outputs if returned else tensors)[born].append(buffer)
        if not returned:
            freed[dies].append(buffer)
    steps = tuple(
        Demand(
            tuple(tensors[step]),
            tuple(outputs[step]),
            op.workspace - op.outside,
            tuple(freed[step]),
            op.outside,
            op.pieces,
            op.pieces_again,
            tuple(lives.buffer[step][op.outputs.index(tensor)] for tensor in op.late),
        )
        for step, op in enumerate(problem.ops[index] for index in schedule)
    )
    return Allocations(lives.size, steps, resident, pattern)


def requests(asked: Allocations) -> Iterator[tuple[int, int]]:
    """What a run without a block asks for in order, as key and bytes, and, at no bytes, gives back before it ends."""
    for step in asked.steps:
        wanted = step.asks(asked.size, (*step.tensors, *step.outputs))
        yield from (request for request in wanted if request[0] != INNER_NODE)
        yield from ((buffer, 0) for buffer in step.freed if asked.size[buffer])


def pattern_block(asked: Allocations) -> int:
    """Bytes of the block that onnxruntime lays out for the tensors of a run."""
    return block_of(asked.size, ((step.tensors, step.freed) for step in asked.steps))


def expected_arena(asked: Allocations, settings: ArenaSettings = DEFAULT) -> ExpectedArena:
    """What onnxruntime's arena makes of the allocations of a run, in the first run and in later ones.

    Where the first region lies is for the C library to say, and what holds more is told.

    Args:
        asked: the allocations of one run.
        settings: of the arena.

    Raises:
        ArenaFullError: the limit of the settings is too small.
    """
    block = _block(asked)
    first, steady = _worst(asked, settings, block)
    _, without = _worst(asked, settings, None)
    needed, live = (_opened(asked, _ENDLESS) for _ in range(2))
    _run(needed, asked, block)
    _run(live, asked, again=False)
    return ExpectedArena(live.high, first, block or 0, needed.high, steady, without)


def steady_arena(asked: Allocations) -> ArenaUse:
    """What the arena is expected to be in later runs under default settings, and nothing else; see `expected_arena`."""
    _, steady = _worst(asked, DEFAULT, _block(asked))
    return steady


def held_wherever(asked: Allocations) -> int:
    """Bytes that an arena holds in later runs where its regions lie in the worst of the orders that occur.

    Cells are made for regions in some of these orders; in another one, a gap may be taken that has to be left.
    """
    block = _block(asked)
    return max(_runs(asked, DEFAULT, below, block)[1].held for below in range(_ORDERS))


def _block(asked: Allocations) -> int | None:
    """Bytes of the block of later runs; None where they have none."""
    return pattern_block(asked) if asked.pattern else None


def _worst(asked: Allocations, settings: ArenaSettings, block: int | None) -> tuple[ArenaUse, ArenaUse]:
    """The first run and later ones where the first region lies in the way, be it below the others or above one."""
    found = [_runs(asked, settings, below, block) for below in (0, 1)]
    return max(found, key=lambda uses: (uses[1].held, uses[1].touched, uses[0].held))


def _runs(asked: Allocations, settings: ArenaSettings, below: int, block: int | None) -> tuple[ArenaUse, ArenaUse]:
    """The first run and a later one, with some of the first regions below all others, or none."""
    arena = _opened(asked, settings, below)
    first = _run(arena, asked, again=False)
    for _ in range(_RUNS):
        steady = _run(arena, asked, block)
    return first, steady


def written(asked: Allocations) -> int:
    """Bytes that all runs of a process write to in the end: what the arena holds, its tables, what kernels take beside.

    That is what the resident set grows by. What a kernel takes of the system and gives back, the C library keeps.

    Args:
        asked: the allocations of one run.
    """
    steady = steady_arena(asked)
    return steady.touched + steady.tables + asked.outside


def smallest_limit(asked: Allocations, *, pattern: bool, settings: Callable[[int], ArenaSettings]) -> int:
    """The smallest limit of an arena in which a first run and later runs go through, in bytes.

    Found by bisection: where a larger arena fails for the way in which its chunks are cut, it is one such limit.

    Args:
        asked: the allocations of one run.
        pattern: whether later runs have to have the block of a memory pattern; else memory patterns are off.
        settings: from a limit to the settings of the arena.
    """
    block = pattern_block(asked) if pattern and asked.pattern else None

    def runs(limit: int) -> bool:
        try:
            for below in (0, 1):
                arena = _opened(asked, settings(limit), below)
                _run(arena, asked, again=False)
                _run(arena, asked, block)
        except ArenaFullError:
            return False
        return True

    low, high = 0, max(sum(asked.size[buffer] for step in asked.steps[:1] for buffer in step.tensors), 2**16)
    while not runs(high):
        low, high = high, 2 * high
    while high - low > max(high * _PRECISION, UNIT):
        middle = (low + high) // 2
        low, high = (low, middle) if runs(middle) else (middle, high)
    return high


def _opened(asked: Allocations, settings: ArenaSettings, below: int = 0) -> Arena:
    arena = Arena(settings, below=below)
    arena.reserve(asked.resident)
    return arena


def _run(arena: Arena, asked: Allocations, block: int | None = None, *, again: bool = True) -> ArenaUse:
    """One run, with a block for its tensors if its size is given.

    Args:
        arena: is changed.
        asked: the allocations of a run.
        block: bytes of the block.
        again: whether it is a later run.
    """
    if block is not None:
        arena.allocate(_BLOCK, block)
    most = arena.in_use
    for step in asked.steps:
        own = step.outputs if block is not None else (*step.tensors, *step.outputs)
        for key, size in (step.again if again else step).asks(asked.size, own):
            if size:
                arena.allocate(key, size)
            elif key == INNER_NODE:
                most = max(most, arena.in_use)
            else:
                arena.free(key)
        most = max(most, arena.in_use)
        for buffer in step.freed:
            arena.free(buffer)
    arena.free(_BLOCK)
    for step in asked.steps:
        for buffer in step.outputs:
            arena.free(buffer)
    return ArenaUse(most, arena.held, arena.touched)

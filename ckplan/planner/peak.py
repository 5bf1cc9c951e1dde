"""The peak of a schedule, fast: what searching strategies ask thousands of times.

The same memory semantics as `ckplan.planner.simulate.simulate`, which makes the whole timeline; a property test holds
the two together. Here the problem is read once into flat tuples, and only the running sum is kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ckplan.planner.problem import Kind, Problem

NEW, VIEW, OVERWRITE = range(3)

Making = tuple[int, int, int, tuple[int, ...]]
"""How an output is made: tensor, bytes, one of NEW, VIEW or OVERWRITE, and the tensors it may take the memory of."""


@lru_cache(maxsize=8)
def _compiled(problem: Problem) -> list[tuple[tuple[int, ...], tuple[Making, ...], int]]:
    rows = []
    for op in problem.ops:
        read = tuple(tensor for tensor in op.inputs if problem.producer[tensor] >= 0)
        makings: list[Making] = []
        for tensor in op.outputs:
            size = problem.tensors[tensor].bytes
            if tensor in op.views:
                makings.append((tensor, size, VIEW, (op.views[tensor],)))
            else:
                sources = tuple(
                    source
                    for source in op.inplace.get(tensor, ())
                    if problem.producer[source] >= 0 and problem.tensors[source].bytes == size
                )
                makings.append((tensor, size, OVERWRITE if sources else NEW, sources))
        rows.append((read, tuple(makings), op.workspace))
    return rows


def peak_of(problem: Problem, schedule: Sequence[int]) -> int:
    """Peak of activations of a valid schedule, in bytes.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; every op reads only what was made before.
    """
    return max(live_bytes(problem, schedule), default=0)


def live_bytes(problem: Problem, schedule: Sequence[int]) -> list[int]:
    """Bytes of activations that are alive while each step of a valid schedule runs, workspace included.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; every op reads only what was made before.
    """
    rows = _compiled(problem)
    returned_kind = [tensor.kind is Kind.OUTPUT for tensor in problem.tensors]
    copy_of = [-1] * len(problem.tensors)
    reads: list[int] = []
    copies_read: list[list[int]] = []
    for index in schedule:
        read, makings, _ = rows[index]
        copies = [copy_of[tensor] for tensor in read]
        for copy in copies:
            reads[copy] += 1
        copies_read.append(copies)
        for making in makings:
            copy_of[making[0]] = len(reads)
            reads.append(0)
    # A buffer is known by the copy it was allocated for; resident memory and outputs of the file are buffer -1.
    buffer_of = [-1] * len(reads)
    uses = [0] * len(reads)
    size_of = [0] * len(reads)
    made = live = 0
    alive: list[int] = []
    for step, index in enumerate(schedule):
        read, makings, workspace = rows[index]
        copies = copies_read[step]
        unread: list[int] = []
        for tensor, size, how, sources in makings:
            buffer = made
            if returned_kind[tensor]:
                returned_kind[tensor] = False
                buffer = -1
            elif how == VIEW:
                source = sources[0]
                buffer = buffer_of[copies[read.index(source)]] if source in read else -1
            elif how == OVERWRITE:
                for source in sources:
                    held = buffer_of[copies[read.index(source)]]
                    if held >= 0 and uses[held] == 1:
                        buffer = held
                        break
            if buffer >= 0:
                if buffer == made:
                    size_of[made] = size
                    live += size
                uses[buffer] += reads[made]
                unread.append(buffer)
            buffer_of[made] = buffer
            made += 1
        alive.append(live + workspace)
        for copy in copies:
            buffer = buffer_of[copy]
            if buffer >= 0:
                uses[buffer] -= 1
                if uses[buffer] == 0:
                    live -= size_of[buffer]
                    size_of[buffer] = 0
        for buffer in unread:
            if uses[buffer] == 0:
                live -= size_of[buffer]
                size_of[buffer] = 0
    return alive

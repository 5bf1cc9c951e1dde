"""The block that onnxruntime lays out for the tensors of later runs, from what it saw allocated and freed in the first.

``core/framework/mem_pattern_planner.h``: each tensor goes into the gap that leaves least, the lowest one among equals,
and the block grows at its end where no gap is large enough. What lies between the last tensor that is alive and the
furthest end so far is a gap like any other: a small tensor may go there, beside an empty half of the block. So the
block depends on sizes in a way that is hard to foresee, and a tensor of 256 bytes can change it by megabytes.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence

from ckplan.planner.arena.regions import chunk_size


def block_of(size: Sequence[int], steps: Iterable[tuple[Iterable[int], Iterable[int]]]) -> int:
    """Bytes of the block.

    Args:
        size: bytes of each buffer.
        steps: for each step of the first run, in order, the buffers that are allocated and those that are freed.
    """
    end = 0
    gaps: list[tuple[int, int]] = []  # bytes and where each begins, sorted
    begins: dict[int, int] = {}  # of each gap, by where it ends
    ends: dict[int, int] = {}  # of each gap, by where it begins
    at: dict[int, int] = {}  # where each buffer lies that is alive

    def take(begin: int) -> int:
        behind = ends.pop(begin)
        del begins[behind]
        del gaps[bisect_left(gaps, (behind - begin, begin))]
        return behind

    def leave(begin: int, behind: int) -> None:
        if begin < behind:
            begins[behind], ends[begin] = begin, behind
            insort(gaps, (behind - begin, begin))

    for made, freed in steps:
        for buffer in made:
            wanted = chunk_size(size[buffer])
            if not wanted:
                continue
            position = bisect_left(gaps, (wanted, -1))
            if position < len(gaps):
                begin = gaps[position][1]
                leave(begin + wanted, take(begin))
            else:
                begin = begins.get(end, end)
                if begin < end:
                    take(begin)
                end = begin + wanted
            at[buffer] = begin
        for buffer in freed:
            if buffer not in at:
                continue
            begin = at.pop(buffer)
            behind = begin + chunk_size(size[buffer])
            if behind in ends:
                behind = take(behind)
            if begin in begins:
                begin = begins[begin]
                take(begin)
            leave(begin, behind)
    return end

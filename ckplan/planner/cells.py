"""Cells: what the regions of an arena are cut into before a run, and whether the run finds room there.

Regions are powers of two from the second one on, each larger than the one before, so that their sum can be any even
number of first regions beside the first.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from ckplan.planner.arena import DEFAULT, UNIT

POOL, WALL = -1, -2
"""What cells are that are kept for no tensor: free from the start, or taken to the end."""

WALL_BYTES = 20 * 2**10
"""Bytes of a wall, which keeps what is free on its two sides apart."""

REGION = DEFAULT.first_region // UNIT
"""Units of the first region."""

MADE = (-(2**40), -1)
"""Stands among the requests of a run where the cells are there: what is made before them lies in the first region."""

_RELEASED = 2**40
"""Added to a buffer: the key of the cell that is kept for it."""

Row = Sequence[tuple[int, int]]
"""The cells of a region in the order of their addresses: units, and `POOL`, `WALL` or the buffer it is kept for."""


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of a region.

    Attributes:
        bytes: its size.
        use: `POOL`, `WALL` or the number of the buffer that it is kept for: free once that is about to be made.
        node: name of the node that makes that buffer, where nodes have names.
        tensor: name of a tensor that this node makes.
        after: name of the tensor that is made last before.
    """

    bytes: int
    use: int = POOL
    node: str = ""
    tensor: str = ""
    after: str = ""


Regions = tuple[tuple[Cell, ...], ...]
"""The cells of each region behind the first, which is one pool; smaller regions first."""


UNCUT: Regions = ((Cell(2 * DEFAULT.first_region),),)
"""One region, the smallest there is, as one pool."""


def held_in(regions: Regions) -> int:
    """Bytes of all regions, the first one included."""
    return DEFAULT.first_region + sum(cell.bytes for region in regions for cell in region)


def parts_of(row: Row) -> list[tuple[int, int]]:
    """The cells of a region as they can be made, one after the other.

    The arena cuts a gap only for what is at most half of it: a cell that is larger than what lies behind it is made in
    parts, which are one when all are given back.
    """
    parts: list[tuple[int, int]] = []
    behind = sum(size for size, _ in row)
    for size, use in row:
        behind -= size
        while size > behind > 0:
            part = (size + behind) // 2
            parts.append((part, use))
            size -= part
        parts.append((size, use))
    return parts


def released(buffer: int) -> tuple[int, int]:
    """Stands among the requests of a run where a cell that is kept for a buffer is given back, if there is one."""
    return buffer + _RELEASED, 0


def lacking(
    made: Sequence[tuple[int, int]], rows: Sequence[Row], *, first_above: bool = True, enough: float = float("inf")
) -> tuple[int, int]:
    """Whether the requests of a run find room in regions that are there already.

    The rules are those of `ckplan.planner.arena.Arena`; what finds no room is left out.

    Args:
        made: key and units of each request in order, no units where it is given back; `MADE` and `released`.
        rows: the regions but the first in the order of their addresses.
        first_above: whether the first region lies above all of them, not below.
        enough: where so many lack, no more are counted.

    Returns:
        How many units too short the largest gaps are for the requests that find no room, 0 if all do; and the place of
        the first of them among the requests, or -1.
    """
    waste = DEFAULT.waste // UNIT
    free: list[tuple[int, int]] = []  # size and address, sorted
    begins: dict[int, int] = {}  # size of each gap, by address
    ends: dict[int, int] = {}  # address of each gap, by where it ends
    address = sum(size + 1 for row in rows for size, _ in row) + 1 if first_above else -REGION - 1
    free.append((REGION, address))
    begins[address], ends[address + REGION] = REGION, address
    given: dict[int, tuple[int, int]] = {}
    lacks, first = 0, -1
    for place, (key, size) in enumerate(made):
        if size > 0:
            position = bisect_left(free, (size, -1))
            if position == len(free):
                lacks += size - (free[-1][0] if free else 0)
                first = place if first < 0 else first
                if lacks > enough:
                    break
                continue
            there, address = free.pop(position)
            del begins[address], ends[address + there]
            if there >= 2 * size or there - size >= waste:
                rest, behind = there - size, address + size
                insort(free, (rest, behind))
                begins[behind], ends[behind + rest] = rest, behind
                there = size
            given[key] = (address, there)
        elif key in given:
            address, there = given.pop(key)
            behind = address + there
            if behind in begins:
                more = begins.pop(behind)
                del ends[behind + more], free[bisect_left(free, (more, behind))]
                there += more
            if address in ends:
                before = ends.pop(address)
                more = address - before
                del begins[before], free[bisect_left(free, (more, before))]
                there, address = there + more, before
            begins[address], ends[address + there] = there, address
            insort(free, (there, address))
        elif size < 0:
            address = 0
            for row in rows:
                for whole, use in row:
                    if use == POOL:
                        insort(free, (whole, address))
                        begins[address], ends[address + whole] = whole, address
                    else:
                        given[released(use)[0]] = (address, whole)
                    address += whole
                address += 1
    return lacks, first

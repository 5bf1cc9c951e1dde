"""Cells: what the regions of an arena are cut into before a run, and whether the run finds room there.

Regions are powers of two, each larger than the one before: together they can be any number of MiB.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckplan.planner.arena.gaps import Gaps
from ckplan.planner.arena.regions import DEFAULT, UNIT
from ckplan.planner.arena.slots import SLOT, slots_taken

POOL, WALL = -1, -2
"""What cells are that are kept for no tensor: free from the start, or taken to the end."""

WALL_BYTES = 20 * 2**10
"""Bytes of a wall, which keeps what is free on its two sides apart."""

SPARE = 56
"""Units at the beginning of the first region that a wall keeps apart: shapes and numbers lie there, in no other gap."""

SMALLEST = 2 * WALL_BYTES // UNIT
"""Units of the smallest cell but walls: nothing small that is made before they are may fall into a smaller gap."""

APART = SPARE + WALL_BYTES // UNIT + 4
"""Units up to the end of that wall, if nothing else is known, with some shapes that are made before."""

REGION = DEFAULT.first_region // UNIT
"""Units of the first region."""

MADE = (-(2**40), -1)
"""Stands among the requests of a run where the cells are there: what is made before them lies in the first region."""

_RELEASED = 2**40
"""Added to a buffer: the key of the cell that is kept for it."""

Row = Sequence[tuple[int, int]]
"""The cells of a region in the order of their addresses: units, and `POOL`, `WALL` or the buffer it is kept for."""


@dataclass(frozen=True, slots=True)
class Moment:
    """When a step of a run begins.

    Attributes:
        step: its number.
        node: name of the node that runs then, where nodes have names.
        tensor: name of a tensor that this node makes.
        after: name of the tensor that is made last before.
    """

    step: int
    node: str = ""
    tensor: str = ""
    after: str = ""


@dataclass(frozen=True, slots=True)
class Cell:
    """A part of a region.

    Attributes:
        bytes: its size.
        use: `POOL`, `WALL` or the number of the buffer that it is kept for.
        end: when that is about to be made, and the cell is given back.
    """

    bytes: int
    use: int = POOL
    end: Moment | None = None


Regions = tuple[tuple[Cell, ...], ...]
"""The cells of each region behind the first; smaller regions first."""


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A tensor that nobody reads, made in the middle of a run so that others lie elsewhere.

    Attributes:
        bytes: its size.
        begin: it is made right before that.
        end: it is given back right before that.
    """

    bytes: int
    begin: Moment
    end: Moment


@dataclass(frozen=True, slots=True)
class Layout:
    """What is made in an arena beside the tensors of a run, so that they find room.

    Attributes:
        regions: the cells of each region behind the first.
        first: bytes of the first region, which is one pool behind what is apart at its beginning.
        placeholders: what is made in the middle of the run, in order.
        slots: how many there are at the beginning of the first region; see `ckplan.planner.arena.slots`.
    """

    regions: Regions
    first: int = DEFAULT.first_region
    placeholders: tuple[Placeholder, ...] = ()
    slots: int = 0

    @property
    def held(self) -> int:
        """Bytes of all regions."""
        return self.first + sum(cell.bytes for region in self.regions for cell in region)


UNCUT = Layout(((Cell(2 * DEFAULT.first_region),),))
"""One region beside the first, the smallest there is, as one pool."""


def parts_of(row: Row) -> list[tuple[int, int]]:
    """The cells of a region as they can be made, one after the other.

    The arena cuts a gap only for what is at most half of it: a cell that is larger than what lies behind it is made in
    parts, which are one when all are given back. None is so small that it would fall into the gap that is left for
    shapes.
    """
    parts: list[tuple[int, int]] = []
    behind = sum(size for size, _ in row)
    for size, use in row:
        behind -= size
        while size > behind > 0:
            rest = max(min(size // 2, behind), (size - behind + 1) // 2)
            parts.append((size - rest, use))
            size = rest
        parts.append((size, use))
    return parts


def released(buffer: int) -> tuple[int, int]:
    """Stands among the requests of a run where a cell that is kept for a buffer is given back, if there is one."""
    return buffer + _RELEASED, 0


def lacking(
    made: Sequence[tuple[int, int]],
    rows: Sequence[Row],
    *,
    first: int = REGION,
    apart: int = APART,
    slots: int = 0,
    below: int = 0,
    enough: float = float("inf"),
) -> tuple[int, int]:
    """Whether the requests of a run find room in regions that are there already; what finds none is left out.

    Args:
        made: key and units of each request in order, no units where it is given back; `MADE` and `released`.
        rows: the regions but the first, as they are made.
        first: units of the first region.
        apart: units at its beginning that are no part of its pool.
        slots: how many slots are the last of that.
        below: how many regions, the first among them, lie below those that follow; see `Arena`.
        enough: where so many lack, no more are counted.

    Returns:
        How many units too short the largest gaps are for the requests that find no room, 0 if all do; and the place of
        the first of them among the requests, or -1.
    """
    gaps = opened(rows, first, apart, slots, first_above=not below)
    ordered = arranged(rows, below)
    lacks, at = 0, -1
    for place, (key, size) in enumerate(made):
        if size > 0:
            if short := gaps.take(key, size):
                lacks += short
                at = place if at < 0 else at
                if lacks > enough:
                    break
        elif size == 0:
            gaps.give_back(key)
        else:
            make(ordered, gaps)
    return lacks, at


def arranged(rows: Sequence[Row], below: int) -> list[Row]:
    """The regions but the first in the order of their addresses; see `lacking`."""
    heap = max(below - 1, 0)
    return [*rows[:heap], *reversed(rows[heap:])]


def opened(rows: Sequence[Row], first: int, apart: int, slots: int, *, first_above: bool) -> Gaps:
    """The first region alone, above or below others that are to be made; see `lacking`."""
    gaps = Gaps()
    address = sum(size + 1 for row in rows for size, _ in row) + 1 if first_above else -first - 1
    gaps.add(address, SPARE)
    for number in range(slots):
        gaps.add(address + apart - slots_taken(slots - number), SLOT)
    gaps.add(address + apart, first - apart)
    return gaps


def make(rows: Sequence[Row], gaps: Gaps) -> None:
    """Add the cells of all regions but the first."""
    address = 0
    for row in rows:
        for whole, use in row:
            if use == POOL:
                gaps.add(address, whole)
            else:
                gaps.given[released(use)[0]] = (address, whole)
            address += whole
        address += 1

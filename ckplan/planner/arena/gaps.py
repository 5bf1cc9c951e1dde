"""The gaps of an arena whose regions are all there, and best fit into them.

The rules are those of `ckplan.planner.arena.regions.Arena`. Here nothing grows, and a state can be copied, to go on
from it twice.
"""

from __future__ import annotations

from bisect import bisect_left, insort

from ckplan.planner.arena.regions import DEFAULT, UNIT

_WASTE = DEFAULT.waste // UNIT


class Gaps:
    """Free chunks, and chunks that are handed out, in units of `ckplan.planner.arena.regions.UNIT`.

    Attributes:
        free: size and address of each gap, sorted.
        given: address and size of what is handed out, by key.
    """

    __slots__ = ("_begins", "_ends", "free", "given")

    def __init__(self) -> None:
        self.free: list[tuple[int, int]] = []
        self.given: dict[int, tuple[int, int]] = {}
        self._begins: dict[int, int] = {}  # size of each gap, by address
        self._ends: dict[int, int] = {}  # address of each gap, by where it ends

    def copy(self) -> Gaps:
        """The same state, to go on from."""
        made = Gaps()
        made.free, made.given = self.free.copy(), self.given.copy()
        made._begins, made._ends = self._begins.copy(), self._ends.copy()
        return made

    def add(self, address: int, size: int) -> None:
        """Add a gap that touches no other."""
        insort(self.free, (size, address))
        self._begins[address], self._ends[address + size] = size, address

    def take(self, key: int, size: int) -> int:
        """Hand out the smallest gap that is large enough, cut as the arena cuts.

        Returns:
            How many units the largest gap is too short, 0 if there is room; then nothing is handed out.
        """
        free = self.free
        position = bisect_left(free, (size, -(2**62)))
        if position == len(free):
            return size - (free[-1][0] if free else 0)
        there, address = free.pop(position)
        del self._begins[address], self._ends[address + there]
        if there >= 2 * size or there - size >= _WASTE:
            self.add(address + size, there - size)
            there = size
        self.given[key] = address, there
        return 0

    def give_back(self, key: int) -> None:
        """Take back what was handed out, if it was, and join it with the gaps that it touches."""
        if key not in self.given:
            return
        address, there = self.given.pop(key)
        begins, ends, free = self._begins, self._ends, self.free
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
        self.add(address, there)

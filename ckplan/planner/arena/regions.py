"""Model of onnxruntime's arena: what it holds of the system's memory for a sequence of allocations.

The arena (``core/framework/bfc_arena.cc``) takes regions from the system and never gives them back. It cuts them into
chunks of multiples of 256 bytes and hands out the smallest free chunk that is large enough, at the lowest address
among equals. A chunk is cut only if it is at least twice as large as asked for, or leaves more than a set number of
bytes; else the whole chunk is handed out, so that up to half of it may be waste. A chunk that is freed joins its free
neighbours, but never one in another region.

Memory of a region is taken page by page as something is written there: of the last region there is often a part that
nobody ever touches. Beside each region the arena keeps a table of its chunks, eight bytes for every 256 of the region,
all of them written to: a thirty-second of what it holds.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass

UNIT = 256
"""Chunks are multiples of this many bytes."""


_ENTRY = 8
"""Bytes that the arena keeps for each unit of a region."""

_FIRST, _ABOVE = 2**62, 2**63
"""Addresses: where the first region begins, and above that."""


class ArenaFullError(Exception):
    """The arena may not grow as far as an allocation needs."""


@dataclass(frozen=True, slots=True)
class ArenaSettings:
    """How an arena grows and cuts chunks; the defaults are onnxruntime's.

    Attributes:
        limit: bytes that it may hold (``max_mem``, ``gpu_mem_limit``); None for no limit.
        same_as_requested: whether a new region is as large as the allocation that needs it
            (``kSameAsRequested``), and not the next of a row of powers of two (``kNextPowerOfTwo``).
        first_region: bytes of the first region (``initial_chunk_size_bytes``), if it is not as requested.
        waste: a chunk that is larger than asked for by this many bytes is cut (``max_dead_bytes_per_chunk``).
        largest_growth: bytes up to which regions double (``max_power_of_two_extend_bytes``).
    """

    limit: int | None = None
    same_as_requested: bool = False
    first_region: int = 2**20
    waste: int = 128 * 2**20
    largest_growth: int = 2**30


def tables_of(held: int) -> int:
    """Bytes of the tables that an arena keeps of regions of so many bytes."""
    return held // UNIT * _ENTRY


DEFAULT = ArenaSettings()
"""What onnxruntime does unless it is told otherwise."""


class Arena:
    """An arena and what is handed out of it.

    Attributes:
        in_use: bytes of the chunks handed out.
        held: bytes of all regions.
        high: largest ``in_use`` so far.
        touched: bytes of all regions up to the furthest end of what was asked for in each: what is written at most, and
            so what the arena adds to the resident set, beside its tables.
    """

    def __init__(self, settings: ArenaSettings = DEFAULT, *, below: int = 0) -> None:
        """An arena without regions.

        Args:
            settings: of the arena.
            below: how many regions the C library takes from its heap, each above the one before, before it maps those
                that follow, each below the one before. Of free chunks of one size the one at the lowest address is
                handed out, so that it makes a difference.
        """
        self.in_use = self.held = self.high = self.touched = 0
        self._settings = settings
        self._growth = chunk_size(min(settings.first_region, settings.limit or settings.first_region))
        self._free: list[tuple[int, int]] = []  # (size, address), sorted
        self._size: dict[int, int] = {}  # of each chunk, by address
        self._before: dict[int, int | None] = {}  # the chunk that ends where one begins, in its region
        self._given: dict[int, int] = {}  # by key: address
        self._region: dict[int, int] = {}  # of each chunk, by address: where its region begins
        self._end: dict[int, int] = {}  # of what was asked for in each region
        self._below, self._behind = below, _FIRST
        self._end_of_next = _ABOVE if below else _FIRST

    def allocate(self, key: int, size: int) -> None:
        """Hand out a chunk.

        Args:
            key: to free it by.
            size: bytes; nothing is handed out for none.

        Raises:
            ArenaFullError: the arena would have to grow beyond its limit.
        """
        if size <= 0:
            return
        wanted = chunk_size(size)
        position = bisect_left(self._free, (wanted, -1))
        if position == len(self._free):
            self._grow(wanted)
            position = bisect_left(self._free, (wanted, -1))
        size, address = self._free.pop(position)
        if size >= 2 * wanted or size - wanted >= max(self._settings.waste, 1):
            self._cut(address, wanted)
        self._given[key] = address
        self.in_use += self._size[address]
        self.high = max(self.high, self.in_use)
        region = self._region[address]
        if address + wanted > self._end[region]:
            self.touched += address + wanted - self._end[region]
            self._end[region] = address + wanted

    def end_of(self, key: int) -> int:
        """Bytes from the beginning of a region to the end of the chunk that was handed out for a key."""
        address = self._given[key]
        return address + self._size[address] - self._region[address]

    def reserve(self, size: int) -> None:
        """Take bytes of the system apart from all regions, to the end, as a session does when it is opened."""
        self.in_use += size
        self.held += size
        self.touched += size
        self.high = max(self.high, self.in_use)

    def free(self, key: int) -> None:
        """Take a chunk back; nothing happens if none was handed out for the key."""
        address = self._given.pop(key, None)
        if address is None:
            return
        self.in_use -= self._size[address]
        after = address + self._size[address]
        if after in self._before and self._before[after] == address and self._is_free(after):
            self._join(address, after)
        before = self._before[address]
        if before is not None and self._is_free(before):
            self._free.remove((self._size[before], before))
            self._join_sizes(before, address)
            address = before
        insort(self._free, (self._size[address], address))

    def _is_free(self, address: int) -> bool:
        entry = (self._size[address], address)
        position = bisect_left(self._free, entry)
        return position < len(self._free) and self._free[position] == entry

    def _join(self, address: int, after: int) -> None:
        """Merge a free chunk into the one before it, which is in no list."""
        self._free.remove((self._size[after], after))
        self._join_sizes(address, after)

    def _join_sizes(self, address: int, after: int) -> None:
        self._size[address] += self._size.pop(after)
        del self._before[after], self._region[after]
        behind = address + self._size[address]
        if self._before.get(behind) == after:
            self._before[behind] = address

    def _cut(self, address: int, wanted: int) -> None:
        rest = address + wanted
        self._size[rest] = self._size[address] - wanted
        self._size[address] = wanted
        behind = rest + self._size[rest]
        if self._before.get(behind) == address:
            self._before[behind] = rest
        self._before[rest], self._region[rest] = address, self._region[address]
        insort(self._free, (self._size[rest], rest))

    def _grow(self, wanted: int) -> None:
        settings = self._settings
        available = None if settings.limit is None else (settings.limit - self.held) // UNIT * UNIT
        if available is not None and wanted > available:
            raise ArenaFullError(f"{available} bytes are left, {wanted} are needed")
        size = wanted
        if not settings.same_as_requested:
            increased = False
            while wanted > self._growth:
                self._growth *= 2
                increased = True
            size = self._growth if available is None else min(self._growth, available)
            if not increased:
                self._growth = min(2 * self._growth, settings.largest_growth)
        # Later regions tend to lie below earlier ones, but for the first ones; they never touch.
        if self._below or not self._before:
            address, self._behind = self._behind, self._behind + size + UNIT
            self._below = max(self._below - 1, 0)
        else:
            address = self._end_of_next = self._end_of_next - size - UNIT
        self._size[address], self._region[address], self._end[address] = size, address, address
        self._before[address] = None
        self.held += size
        insort(self._free, (size, address))


def chunk_size(size: int) -> int:
    """Bytes of the chunk that an allocation of so many bytes takes at least."""
    return -(-size // UNIT) * UNIT

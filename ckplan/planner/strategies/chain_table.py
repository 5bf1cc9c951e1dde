"""Dynamic programming over a chain: the cheapest way to reverse each part of it in each amount of memory."""

from __future__ import annotations

import math
from functools import reduce

import numpy as np
import numpy.typing as npt

from ckplan.planner.strategies.chain import Action, Chain

Slots = npt.NDArray[np.int64]
Costs = npt.NDArray[np.float32]


class ChainTable:
    """Costs of reversing stages s to t with cut s held, by slots of memory beyond it.

    Reversing one stage runs its forward ops and its backward ops. Reversing several either runs the first one, holds
    all that its backward ops read, and reverses the rest before it; or runs up to a cut j, holds that,
    reverses from j on, and then what stands before j, from cut s again. On the way forwards for the first time
    all ops run once in any case, so that only what runs again is counted.

    Args:
        chain: the stages.
        most: bytes up to which the table reaches.
        slots: into how many units they are divided at most; fewer if all sizes are multiples of a larger unit.

    Attributes:
        unit: bytes of a slot.
    """

    def __init__(self, chain: Chain, most: int, slots: int) -> None:
        sizes = [chain.added, chain.gradient, chain.saved, chain.advance, chain.record, chain.reverse]
        divisor = reduce(math.gcd, (int(size) for array in sizes for size in array.flat), 0) or 1
        self.unit = divisor if most // divisor <= slots else most / slots
        self.top = int(most / self.unit)
        self.chain = chain
        self.count = len(chain.forward)
        added, gradient, saved, advance, record, reverse = (self._slots(array) for array in sizes)
        self.added = added
        self.saved = saved
        # [s, t]: what running forwards from cut s to cut t takes beyond cut s.
        self.passing = np.zeros((self.count, self.count + 1), np.int64)
        self.distance = np.zeros((self.count, self.count + 1), np.float32)
        for start in range(self.count):
            on_the_way = added[start, start:] + advance[start:]
            self.passing[start, start + 1 :] = np.maximum.accumulate(on_the_way)
            self.distance[start, start + 1 :] = np.cumsum(chain.advance_cost[start:])
        self._chosen: dict[tuple[int, int, bool], Slots] = {}
        self.gradient = gradient
        self.record = record
        self.reverse = reverse
        self.levels: Slots = np.arange(self.top + 1)
        self.best = np.full((self.count, self.count, self.top + 1), np.inf, np.float32)
        for start in range(self.count - 1, -1, -1):
            self._reverse_from(start)
        # [s]: the same for stages s to the last one when the forward pass has just arrived at cut s.
        self.first = np.full((self.count, self.top + 1), np.inf, np.float32)
        self.first[-1] = self._one_stage(self.count - 1, 0.0)
        for start in range(self.count - 2, -1, -1):
            self.first[start] = self._first_options(start).min(0)

    def _slots(self, sizes: npt.NDArray[np.float64]) -> Slots:
        result: Slots = np.rint(sizes / self.unit).astype(np.int64)
        return result

    def _one_stage(self, stage: int, cost: float) -> Costs:
        least = max(self.record[stage] + self.gradient[stage], self.reverse[stage])
        return np.where(self.levels >= least, cost, np.inf).astype(np.float32)

    def _reverse_from(self, start: int) -> None:
        """The costs of reversing the stages from one on, given those from later ones on; as `_options` tells them."""
        self.best[start, start] = self._one_stage(start, self.chain.reverse_cost[start])
        held = np.full((self.count - start - 1, self.count, self.top + 1), np.inf, np.float32)
        for cut, rows in enumerate(held, start + 1):
            size, rest = self.added[start, cut], rows[cut:]
            if size <= self.top:
                rest[:, size:] = self.best[cut, cut:, : self.top + 1 - size]
                np.putmask(rest, self.levels < (self.passing[start, cut] + self.gradient[cut:])[:, None], np.inf)
                rest += self.distance[start, cut]
        for last in range(start + 1, self.count):
            cost = float(self.chain.record_cost[start])
            recorded = self._recorded(start, last, self.best[start + 1, last], cost)
            options = held[: last - start, last] + self.best[start, start:last]
            np.minimum(recorded, options.min(0), out=self.best[start, last])

    def _recorded(self, start: int, last: int, rest: Costs, cost: float) -> Costs:
        least = max(self.record[start] + self.gradient[last], self.reverse[start], self.saved[start])
        row = np.full(self.top + 1, np.inf, np.float32)
        if least <= self.top:
            row[least:] = rest[self.levels[least:] - self.saved[start]] + np.float32(cost)
        return row

    def _held(self, start: int, last: int, rest: Costs) -> Costs:
        """A row for each cut that may be held, from the one after the first stage on: the part from there on."""
        cuts = np.arange(start + 1, last + 1)
        left = self.levels[None, :] - self.added[start, cuts][:, None]
        fits = (left >= 0) & (self.levels[None, :] >= (self.passing[start, cuts] + self.gradient[last])[:, None])
        result: Costs = np.where(fits, np.take_along_axis(rest, np.maximum(left, 0), 1), np.float32(np.inf))
        return result

    def _options(self, start: int, last: int) -> Costs:
        """The costs of recording the first stage, then of holding each cut, by slots."""
        held = self._held(start, last, self.best[start + 1 : last + 1, last])
        held += self.distance[start, start + 1 : last + 1][:, None]
        held += self.best[start, start:last]
        cost = float(self.chain.record_cost[start])
        return np.vstack([self._recorded(start, last, self.best[start + 1, last], cost)[None], held])

    def _first_options(self, start: int) -> Costs:
        last = self.count - 1
        held = self._held(start, last, self.first[start + 1 :]) + self.best[start, start:last]
        return np.vstack([self._recorded(start, last, self.first[start + 1], 0.0)[None], held])

    def _choice(self, start: int, last: int, first: bool) -> Slots:
        """Which of these is cheapest, by slots: 0 for recording, else how far behind the start the cut is."""
        if (start, last, first) not in self._chosen:
            options = self._first_options(start) if first else self._options(start, last)
            self._chosen[start, last, first] = options.argmin(0)
        return self._chosen[start, last, first]

    def changes(self) -> list[int]:
        """The amounts of memory, in slots, at which the whole chain becomes possible or cheaper, from the least on."""
        row = self.first[0]
        return [
            slot for slot in range(self.top + 1) if np.isfinite(row[slot]) and (slot == 0 or row[slot] < row[slot - 1])
        ]

    def extra_cost(self, slot: int) -> float:
        """Seconds of what runs again when the whole chain is reversed in an amount of memory."""
        return float(self.first[0, slot])

    def actions(self, slot: int) -> list[Action]:
        """What to run, in order, to reverse the whole chain in an amount of memory."""
        actions: list[Action] = []
        # Entries: an action to emit, or a part to reverse: first stage, last stage, slots, whether for the first time.
        stack: list[Action | tuple[int, int, int, bool]] = [(0, self.count - 1, slot, True)]
        while stack:
            item = stack.pop()
            if isinstance(item, int) or len(item) == 2:
                actions.append(item)
                continue
            start, last, room, first = item
            if start == last:
                stack += [start, (start, start + 1)]
                continue
            cut = start + int(self._choice(start, last, first)[room])
            if cut == start:
                stack += [start, (start + 1, last, room - int(self.saved[start]), first), (start, start + 1)]
            else:
                rest = (cut, last, room - int(self.added[start, cut]), first)
                stack += [(start, cut - 1, room, False), rest, (start, cut)]
        return actions

"""Addresses for all tensors of a run at once, whatever best fit makes of them (offline dynamic storage allocation).

What a run asks for is known, so every tensor can be given an address before it begins: each in turn goes into the
smallest gap that is free for its whole life. Where there is none, what is in the way goes elsewhere, and what was sent
away often counts for more. That packs a training step into little more than what is alive at once; see
`ckplan.planner.arena.directing` for how best fit is brought to it.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

_NOWHERE = 2**45
"""Stands for the address of what has none, and is above all that are."""

_FIXED = 1e18
"""Weight of what cannot go elsewhere."""

_SPREAD = 0.1
"""Part by which the weight of what is in the way is varied, so that no two are sent to and fro."""

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Asked:
    """What is asked for in a run, request by request, in units.

    Attributes:
        begin: the place among the requests at which each is made.
        end: the place at which it is given back, behind the last one if it is not.
        size: of each.
        step: the step that makes it.
        key: of each; see `ckplan.planner.arena.cutting.Run`.
        at: what is made, by its place among the requests.
        there: the place at which the cells are there.
    """

    begin: Sequence[int]
    end: Sequence[int]
    size: Sequence[int]
    step: Sequence[int]
    key: Sequence[int]
    at: dict[int, int]
    there: int

    def beside(self, since: Collection[int] = ()) -> list[Numbers]:
        """What is there with each at any time when the cells are, some of them being there as long as the cells."""
        begin = [self.there if number in since else begin for number, begin in enumerate(self.begin)]
        found: list[list[int]] = [[] for _ in begin]
        alive: list[int] = []
        for number in sorted(range(len(begin)), key=lambda number: begin[number]):
            if self.end[number] > self.there:
                alive = [other for other in alive if self.end[other] > begin[number]]
                for other in alive:
                    found[number].append(other)
                    found[other].append(number)
                alive.append(number)
        return [np.array(others, dtype=np.int64) for others in found]


def asked_in(stages: Sequence[Sequence[tuple[int, int]]]) -> Asked:
    """What is asked for by the requests of a run, which come step by step."""
    begin, end, size, steps, keys = (list[int]() for _ in range(5))
    at: dict[int, int] = {}
    given: dict[int, int] = {}
    place = there = 0
    for step, stage in enumerate(stages):
        for key, units in stage:
            if units > 0:
                at[place] = given[key] = len(begin)
                begin.append(place)
                end.append(-1)
                size.append(units)
                steps.append(step)
                keys.append(key)
            elif units == 0:
                if key in given:
                    end[given.pop(key)] = place
            else:
                there = place
            place += 1
    return Asked(begin, [place if one < 0 else one for one in end], size, steps, keys, at, there)


@dataclass
class Effort:
    """What may still be tried in a search: addresses and steps."""

    left: int


class Addresses:
    """Addresses of what is asked for: of what is there already, and those that are meant for what is not yet.

    Attributes:
        meant: what has an address that it is to have.
        homeless: what found none.
    """

    def __init__(
        self,
        asked: Asked,
        beside: Sequence[Numbers],
        spaces: Sequence[tuple[int, int]],
        effort: Effort,
        rng: random.Random,
    ) -> None:
        """Nothing has an address.

        Args:
            asked: what is asked for.
            beside: what is there with each.
            spaces: address and units of all that may be handed out.
            effort: what may be tried.
            rng: of the search.
        """
        self.meant: set[int] = set()
        self.homeless: list[int] = []
        self._asked, self._beside, self._effort = asked, beside, effort
        self._random = np.random.default_rng(rng.getrandbits(32))
        self._address: Numbers = np.full(len(asked.size), _NOWHERE, dtype=np.int64)
        self._extent: Numbers = np.array(asked.size, dtype=np.int64)
        self._weight = np.array(asked.size, dtype=np.float64)
        ordered = sorted(spaces)
        self._wall_begins = np.array([-_NOWHERE, *(begin + units for begin, units in ordered)], dtype=np.int64)
        self._wall_ends = np.array([*(begin for begin, _ in ordered), _NOWHERE], dtype=np.int64)
        self._walls = np.full(len(self._wall_begins), _FIXED)

    def copy(self) -> Addresses:
        """The same, to go on from."""
        made = Addresses.__new__(Addresses)
        made.__dict__.update(self.__dict__)
        made.meant, made.homeless = self.meant.copy(), self.homeless.copy()
        made._address, made._extent, made._weight = self._address.copy(), self._extent.copy(), self._weight.copy()
        return made

    def of(self, number: int) -> int | None:
        """The address that something is to have."""
        return int(self._address[number]) if number in self.meant else None

    def mean(self, number: int, address: int) -> None:
        """Let something have an address that is free."""
        self._address[number] = address
        self.meant.add(number)

    def lies(self, number: int, address: int, units: int, trials: int) -> bool:
        """Tell where something came to lie; whatever was to lie there goes elsewhere. Whether everything has a place.

        Args:
            number: what was made.
            address: where it lies.
            units: what it was handed.
            trials: addresses that are looked for at most.
        """
        was = self.of(number)
        self.meant.discard(number)
        self._address[number], self._extent[number], self._weight[number] = address, units, _FIXED
        if number in self.homeless:
            self.homeless.remove(number)
        if was == address and units == self._asked.size[number]:
            return True
        beside = self._beside[number]
        begins = self._address[beside]
        hit = beside[(begins < address + units) & (begins + self._extent[beside] > address)]
        clashing = [int(other) for other in hit if int(other) in self.meant]
        for other in clashing:
            self._leave(other)
        return not clashing or self.place([*clashing, *self.homeless], trials)

    def place(self, numbers: Sequence[int], trials: int) -> bool:
        """Find addresses; whether all have one then, those sent elsewhere for them among them."""
        waiting, size = list(numbers), self._asked.size
        sent: dict[int, int] = {}
        while waiting and trials > 0:
            trials -= 1
            self._effort.left -= 1
            number = max(waiting, key=lambda number: (size[number] * (1 + sent.get(number, 0)), number))
            waiting.remove(number)
            beside = self._beside[number]
            beside = beside[self._address[beside] < _NOWHERE]
            begins = np.concatenate((self._wall_begins, self._address[beside]))
            ends = np.concatenate((self._wall_ends, self._address[beside] + self._extent[beside]))
            if (found := _smallest_gap(begins, ends, size[number])) is not None:
                self.mean(number, found)
                continue
            sent[number] = sent.get(number, 0) + 1
            self._weight[number] = size[number] * (1 + sent[number])
            weights = np.concatenate((self._walls, self._weight[beside]))
            cheapest = self._cheapest(begins, ends, weights, size[number])
            if cheapest is None:
                waiting.append(number)
                break
            self.mean(number, cheapest)
            hit = ((begins < cheapest + size[number]) & (ends > cheapest))[len(self._walls) :]
            for other in map(int, beside[hit]):
                self._leave(other)
                waiting.append(other)
        self.homeless = waiting
        return not waiting

    def _leave(self, number: int) -> None:
        self._address[number] = _NOWHERE
        self.meant.discard(number)

    def _cheapest(self, begins: Numbers, ends: Numbers, weights: npt.NDArray[np.float64], size: int) -> int | None:
        """The address at which what is in the way weighs least, None if something cannot go elsewhere anywhere."""
        starts = np.concatenate((ends, begins - size))
        starts = starts[np.abs(starts) < _NOWHERE]
        # What begins before the end, less what ends before the beginning: the latter is among the former.
        fixed = weights >= _FIXED
        loose = np.where(fixed, 0.0, weights)
        costs, blocked = np.zeros(len(starts)), np.zeros(len(starts), dtype=np.int64)
        for sign, bounds, reached in ((1, begins, starts + size), (-1, ends, starts + 1)):
            order = np.argsort(bounds)
            places = np.searchsorted(bounds[order], reached)
            costs += sign * np.concatenate(([0.0], np.cumsum(loose[order])))[places]
            blocked += sign * np.concatenate(([0], np.cumsum(fixed[order])))[places]
        costs *= self._random.uniform(1 - _SPREAD, 1 + _SPREAD, len(costs))
        costs[blocked > 0] = _FIXED
        best = int(costs.argmin())
        return None if blocked[best] else int(starts[best])


def _smallest_gap(begins: Numbers, ends: Numbers, size: int) -> int | None:
    """Where the smallest gap between intervals begins that is large enough; None if there is none."""
    order = np.argsort(begins, kind="stable")
    reached = np.maximum.accumulate(ends[order])[:-1]
    gaps = begins[order][1:] - reached
    gaps[gaps < size] = _NOWHERE
    best = int(gaps.argmin())
    return int(reached[best]) if gaps[best] < _NOWHERE else None

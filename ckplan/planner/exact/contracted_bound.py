"""A bound on overhead by a search over states: all orders and any number of repeats of a contraction.

First moments of the contraction are taken together (`ckplan.planner.exact.contracted_stages`). Where they leave a gap,
states and moves are those of `ckplan.planner.exact.states`, of a few dozen ops, most of which run as soon as they can,
without loss. The search goes on from the state of the least cost so far and to come (Hart, Nilsson & Raphael, "A Formal
Basis for the Heuristic Determination of Minimum Cost Paths", 1968). What is to come is at least what has to run again
up to some op and what the minimum cut at that op proves from there on. Whenever the search ends, nothing costs less
than the state it was to go on from. Of large graphs there are too many states of the cost that the best cut proves.
"""

from __future__ import annotations

import heapq
import math
import time
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from ckplan.planner.exact.contracted_stages import overhead_of_stages
from ckplan.planner.exact.contraction import Contraction, bits, contraction, dependence
from ckplan.planner.overhead_bound import bound_beside, is_closed
from ckplan.planner.problem import Problem

_MOST_OPS: Final = 128
"""Ops of the largest contraction that is searched."""
_MOST_ENTRIES: Final = 400_000
"""How many states are looked at in any case at most: they take half a kilobyte each."""
_AT_ONCE: Final = 1 / 16
"""After what part of the work anything has to be proven beyond the first state for the rest to be worth it."""
_SOON: Final = 1 / 4
_PROSPECT: Final = 0.05
"""What of the gap has to be closed after what part of it."""
_WORK_OF_STAGES: Final = 0.6
"""What constraint programming may do for moments together, in its own deterministic units of about a second."""
_ROUNDING: Final = 1e-9
"""What sums of seconds may be wrong by, in the cost of a step."""


def contracted_overhead(
    problem: Problem, budget: int, most: float = math.inf, *, work: float = math.inf, seconds: float = math.inf
) -> float:
    """Seconds of recomputation that no schedule within a budget can avoid, or ``most`` if they are more.

    Holds for any order and any number of recomputations of forward ops.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        most: seconds of recomputation of a schedule that is known: more than these need not be proven.
        work: how many ops of how many states are looked at, at the most.
        seconds: time limit; the bound is what was proven until then.
    """
    deadline = time.monotonic() + seconds
    small = contraction(problem, budget)
    if len(small.ops) > _MOST_OPS or any(op.own > budget for op in small.ops):
        return 0.0
    rounding, bounds = _ROUNDING * problem.cost, _bounds(small, budget)
    proven = overhead_of_stages(small, budget, bounds, _WORK_OF_STAGES, seconds)
    if not is_closed(problem, proven, most):
        entries = min(work / max(len(small.ops), 1), _MOST_ENTRIES)
        found = _Search(small, budget, most, rounding, bounds).run(entries, deadline)
        proven = max(proven, found - rounding)
    return max(0.0, min(proven, most - rounding))


class _Dropping(NamedTuple):
    """A choice of what to let go of for an op that is not made yet: of one more after another."""

    stays: int  # what there is beside what is held
    missing: int  # bytes
    items: Sequence[int]  # what may be let go of, largest first
    following: int  # the first of these that has not been decided on


class _Search:
    """The search over one contraction; sets of ops and activations are bits of numbers.

    Args:
        small: the contraction.
        budget: bytes of activations.
        most: seconds above which states are left out.
        rounding: seconds that do not tell two costs apart.
        bounds: by op the seconds that run again after its first run at the least.
    """

    def __init__(
        self, small: Contraction, budget: int, most: float, rounding: float, bounds: Mapping[int, float]
    ) -> None:
        self.ops, self.sizes, self.budget, self.most, self.rounding = small.ops, small.sizes, budget, most, rounding
        self.all = (1 << len(self.ops)) - 1
        self.again = self.inner = 0
        """Activations that can be made again, and these with what that takes."""
        for op in self.ops:
            if op.again:
                self.again |= op.makes
                self.inner |= op.makes | op.reads
        before = dependence(small)
        self.moments = [
            (before[index], bound)
            for index, bound in bounds.items()
            if not any(other != index and bounds[other] >= bound and before[other] >> index & 1 for other in bounds)
        ]
        """What has run at some moments, and what runs again after them; without those that another makes needless."""
        self.queue: list[tuple[float, int, int, int, int, float, _Dropping | None]] = []
        """Seconds in all, minus the ops that ran, a number, these ops, what is held, seconds so far, what is open."""
        self.tried = 0
        self.best: dict[int, list[tuple[int, float]]] = {}
        """By ops that ran what was held for how many seconds; no entry both holds no more and costs no less."""
        self.bytes: dict[int, int] = {}
        self.useful_after: dict[int, int] = {}
        self.without_loss: dict[int, list[tuple[int, int]]] = {}
        self.read_after: dict[int, int] = {}
        self.wanted_after: dict[int, list[tuple[int, float]]] = {}
        self.repeating: dict[tuple[int, int], float] = {}

    def run(self, entries: float, deadline: float) -> float:
        """Seconds that no schedule goes below, as far as so many states tell and there is time."""
        self._push(0, 0, 0.0)
        first = self.queue[0][0] if self.queue else self.most
        prospect = first + _PROSPECT * (min(self.most, 2 * first + self.rounding) - first)
        while self.queue:
            total, _, _, done, held, cost, dropping = heapq.heappop(self.queue)
            hopeless = (self.tried > entries * _AT_ONCE and total <= first + self.rounding) or (
                self.tried > entries * _SOON and total < prospect
            )
            if done == self.all or hopeless or self.tried > entries or time.monotonic() > deadline:
                return total
            if dropping is not None:
                self._drop(done, held, cost, dropping, total)
            elif (held, cost) in self.best[done]:
                self._expand(done, held, cost, total)
        return self.most

    def _expand(self, done: int, held: int, cost: float, total: float) -> None:
        useful = self._useful(done)
        for index, op in enumerate(self.ops):
            if op.reads & ~held or op.after & ~done:
                continue
            ran = done >> index & 1
            if ran and not (op.again and op.makes & useful & ~held):
                continue
            beside, stays = self._around(done | 1 << index, held, index)
            missing = self._size(beside) + op.own - self.budget
            price = cost + (op.cost if ran else 0.0)
            if missing <= 0:
                self._push(done | 1 << index, beside | stays, price)
            else:
                may_go = self.again | ~self._read_for_the_first_time(done | 1 << index)
                items = sorted(bits(beside & may_go), key=lambda place: (-self.sizes[place], place))
                self._drop(done | 1 << index, beside, price, _Dropping(stays, missing, items, 0), total)

    def _around(self, done: int, held: int, index: int) -> tuple[int, int]:
        """What stays beside an op's working set if there is room, and what is left of that, when it has run."""
        op = self.ops[index]
        counted = op.reads & ~op.beside
        return held & self._useful(done) & ~counted & ~op.makes, held & counted | op.makes

    def _drop(self, done: int, held: int, cost: float, dropping: _Dropping, total: float) -> None:
        """Let go of one of the activations that may go; those before it stay."""
        stays, missing, items, following = dropping
        left = sum(self.sizes[place] for place in items[following:])
        for number in range(following, len(items)):
            if left < missing:
                return
            size, after = self.sizes[items[number]], held & ~(1 << items[number])
            left -= size
            if size >= missing:
                self._push(done, after | stays, cost)
            else:
                self.tried += 1
                least = max(total, cost + self._to_come(done, (after | stays) & self._useful(done)))
                if least <= self.most:
                    open_ = _Dropping(stays, missing - size, items, number + 1)
                    entry = (least, -done.bit_count(), self.tried, done, after, cost, open_)
                    heapq.heappush(self.queue, entry)

    def _push(self, done: int, held: int, cost: float) -> None:
        """Note a state, unless another one has run the same ops, holds no less and costs no more."""
        self.tried += 1
        done, held = self._as_soon_as_possible(done, held)
        total = cost + self._to_come(done, held)
        if total > self.most:
            return
        others = self.best.setdefault(done, [])
        if any(price <= cost + self.rounding and not held & ~other for other, price in others):
            return
        others[:] = [(other, price) for other, price in others if price < cost or other & ~held]
        others.append((held, cost))
        heapq.heappush(self.queue, (total, -done.bit_count(), self.tried, done, held, cost, None))

    def _as_soon_as_possible(self, done: int, held: int) -> tuple[int, int]:
        """The state after all ops that lose nothing by running now.

        They have what they read, nothing has to go for them, and what they alone still read, and cannot be made again,
        is no less than what they make: until they ran at last it would have been held all the time.
        """
        held &= self._useful(done)
        following = 0
        while following < len(ops := self._without_loss(done)):
            index, useful = ops[following]
            following += 1
            if not self.ops[index].reads & ~held:
                beside, stays = self._around(done | 1 << index, held, index)
                if self._size(beside) + self.ops[index].own <= self.budget:
                    done, held, following = done | 1 << index, (beside | stays) & useful, 0
        return done, held

    def _without_loss(self, done: int) -> list[tuple[int, int]]:
        """The ops that lose nothing by running next, when they have what they read, and what is useful after them."""
        if done not in self.without_loss:
            found = []
            for index in bits(self.all & ~done):
                op, useful = self.ops[index], self._useful(done | 1 << index)
                goes = op.reads & ~self.again & ~useful
                if not op.after & ~done and self._size(goes) >= self._size(op.makes & useful):
                    found.append((index, useful))
            self.without_loss[done] = found
        return self.without_loss[done]

    def _read_for_the_first_time(self, done: int) -> int:
        """Activations that ops read which have not run."""
        if done not in self.read_after:
            read = 0
            for index in bits(self.all & ~done):
                read |= self.ops[index].reads
            self.read_after[done] = read
        return self.read_after[done]

    def _size(self, held: int) -> int:
        if held not in self.bytes:
            self.bytes[held] = sum(self.sizes[place] for place in bits(held))
        return self.bytes[held]

    def _useful(self, done: int) -> int:
        """Activations that an op may still read."""
        if done not in self.useful_after:
            useful = 0
            for index in range(len(self.ops) - 1, -1, -1):
                op = self.ops[index]
                if not done >> index & 1 or (op.again and op.makes & useful):
                    useful |= op.reads
            self.useful_after[done] = useful
        return self.useful_after[done]

    def _to_come(self, done: int, held: int) -> float:
        """Seconds of recomputation from a state on, at the least."""
        return max(self._repeats(wanted, held) + more for wanted, more in self._wanted(done))

    def _wanted(self, done: int) -> list[tuple[int, float]]:
        """For the end and some moments what is read until then of what was made, and seconds after that at the least.

        Args:
            done: ops that ran.
        """
        if done not in self.wanted_after:
            made = 0
            for index in bits(done):
                made |= self.ops[index].makes
            wanted = []
            for before, more in ((self.all, 0.0), *self.moments):
                if before & ~done:
                    read = 0
                    for index in bits(before & ~done):
                        read |= self.ops[index].reads
                    wanted.append((read & made, more))
            self.wanted_after[done] = wanted or [(0, 0.0)]
        return self.wanted_after[done]

    def _repeats(self, wanted: int, held: int) -> float:
        """Seconds of the ops that have to run again for what is wanted, from what is held."""
        missing = wanted & ~held
        if not missing:
            return 0.0
        key = missing, held & self.inner
        if key not in self.repeating:
            seconds = 0.0
            for op in reversed(self.ops):
                if op.makes & missing:
                    seconds += op.cost if op.again else math.inf
                    missing = (missing & ~op.makes) | (op.reads & ~held)
            self.repeating[key] = seconds
        return self.repeating[key]


def _bounds(small: Contraction, budget: int) -> dict[int, float]:
    """By op the seconds that run again after its first run at the least, where that is proven to be any."""
    problem = small.problem()
    found: dict[int, float] = {}
    for index, op in enumerate(small.ops):
        given = tuple(bits((op.reads & ~op.beside) | op.makes))
        bound = bound_beside(problem, index, budget - op.own, given) - _ROUNDING * problem.cost
        if bound > 0:
            found[index] = bound
    return found

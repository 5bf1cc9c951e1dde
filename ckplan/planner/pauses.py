"""Pauses: stretches of a schedule over which a tensor need not be alive, and what has to run again after each."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush

import numpy as np
import numpy.typing as npt

from ckplan.planner.copies import Copies, Integers
from ckplan.planner.problem import Kind, Problem

_CHAIN = 24
"""How many ops may run again for one read."""

Factors = Callable[[int], Sequence[float]]
"""What to multiply so many prices with."""


@dataclass(frozen=True, slots=True)
class Pause:
    """A stretch of the schedule over which a tensor need not be alive.

    Attributes:
        price: seconds of running again for each byte of excess that goes, or a multiple of that.
        start: the step that reads or makes it before.
        stop: the step that reads it after.
        bytes: of the tensor.
        cost: the seconds of running again.
        again: the ops to run before that step, in order.
    """

    price: float
    start: int
    stop: int
    bytes: int
    cost: float
    again: tuple[int, ...]


class Pauses:
    """Every pause that spans a step above the budget.

    What has to run again after one, and with that its price, is found out as late as can be: of hundreds that overlap
    the cheapest is made use of. A pause costs no less than the op that makes its tensor.

    Args:
        problem: the ops and tensors.
        copies: what a schedule makes of tensors.
        live: bytes of activations that are alive at each step.
        budget: bytes of activations.
        factors: asked for what to multiply prices with, so that other pauses are the cheapest; None for nothing.
    """

    def __init__(
        self, problem: Problem, copies: Copies, live: Integers, budget: int, factors: Factors | None = None
    ) -> None:
        figures = _figures(problem)
        tensor, start, stop = _gaps(copies, figures.may_pause)
        over = np.maximum(live - budget, 0)
        steps, total = np.append(0, np.cumsum(over > 0)), np.append(0, np.cumsum(over))
        gain = np.minimum(total[stop] - total[start + 1], copies.bytes[tensor] * (steps[stop] - steps[start + 1]))
        spans = np.flatnonzero(gain > 0)
        tensor, self.start, self.stop, gain = tensor[spans], start[spans], stop[spans], gain[spans]
        maker = figures.producer[tensor]
        self.maker, self.bytes, self.gain = maker.tolist(), copies.bytes[tensor].tolist(), gain.tolist()
        self.factor = None if factors is None else factors(len(spans))
        self.least = figures.cost[maker] / gain
        if self.factor is not None:
            self.least *= self.factor
        self.problem, self.present, self.over = problem, _Present.of(copies), over
        self.known: dict[int, Pause | None] = {}

    def cheapest_first(self, among: Integers | None = None) -> Iterator[Pause]:
        """The pauses from the lowest price to the highest, the earlier first of those of one price.

        Args:
            among: numbers of pauses to leave it at, in the order of the least that they may cost; None for all.
        """
        waiting: list[tuple[float, int, int, int, Pause]] = []
        for number in map(int, self.in_order() if among is None else among):
            least = self.least[number], self.start[number], self.stop[number], number
            while waiting and waiting[0] <= least:
                yield heappop(waiting)[-1]
            if (pause := self._pause(number)) is not None:
                heappush(waiting, (pause.price, pause.start, pause.stop, number, pause))
        while waiting:
            yield heappop(waiting)[-1]

    def disjoint(self) -> list[Pause]:
        """Pauses that do not overlap, chosen greedily."""
        chosen: list[Pause] = []
        left = self.in_order()
        while (pause := next(self.cheapest_first(left), None)) is not None:
            chosen.append(pause)
            left = left[(self.stop[left] <= pause.start) | (self.start[left] >= pause.stop)]
        return chosen

    def together(self, most: int) -> list[Pause]:
        """Pauses, the cheapest first, each of which still lowers the excess that those before it leave.

        Args:
            most: how many.
        """
        chosen: dict[int, Pause] = {}
        left = self.over.copy()
        for pause in self.cheapest_first():
            spanned = left[pause.start + 1 : pause.stop]
            if pause.stop not in chosen and spanned.max(initial=0) > 0:
                chosen[pause.stop] = pause
                spanned -= pause.bytes
                if len(chosen) == most or left.max() <= 0:
                    break
        return list(chosen.values())

    def in_order(self) -> Integers:
        """The numbers of all pauses in the order of the least that they may cost."""
        return np.lexsort((self.stop, self.start, self.least))

    def _pause(self, number: int) -> Pause | None:
        """A pause by its number; None if what it needs cannot run again, or is too much."""
        if number not in self.known:
            stop = int(self.stop[number])
            again = _to_run(self.problem, self.maker[number], stop, self.present)
            self.known[number] = None
            if again is not None:
                cost = self.problem.schedule_cost(again)
                price = cost / self.gain[number] * (1.0 if self.factor is None else self.factor[number])
                self.known[number] = Pause(price, int(self.start[number]), stop, self.bytes[number], cost, again)
        return self.known[number]


def _gaps(copies: Copies, may_pause: npt.NDArray[np.bool_]) -> tuple[Integers, Integers, Integers]:
    """For each buffer that may be made again, and each two steps in a row that make or read it: tensor and steps."""
    owner = np.concatenate([np.arange(len(copies.made)), copies.buffers[copies.read]])
    event = np.concatenate([copies.made, copies.reader])
    kept = (owner >= 0) & may_pause[copies.tensor[owner]]
    kept[: len(copies.made)] &= copies.buffers[:-1] == np.arange(len(copies.made))
    owner, event = owner[kept], event[kept]
    order = np.argsort(owner * (len(copies.ops) + 1) + event)
    owner, event = owner[order], event[order]
    gap = np.flatnonzero(owner[1:] == owner[:-1])
    return copies.tensor[owner[gap]], event[gap], event[gap + 1]


@dataclass(frozen=True)
class _Figures:
    """What is asked of a problem for each schedule.

    Attributes:
        producer: for each tensor the op that makes it, or -1.
        cost: seconds of each op.
        may_pause: for each tensor whether its memory can be given back, and an op that may run again makes it.
    """

    producer: Integers
    cost: npt.NDArray[np.float64]
    may_pause: npt.NDArray[np.bool_]


@lru_cache(maxsize=4)
def _figures(problem: Problem) -> _Figures:
    root, producer, ops = problem.view_root, problem.producer, problem.ops
    may_pause = [
        root[number] == number
        and tensor.kind is not Kind.OUTPUT
        and producer[number] >= 0
        and ops[producer[number]].repeatable
        for number, tensor in enumerate(problem.tensors)
    ]
    cost = np.array([op.cost for op in ops], np.float64)
    return _Figures(np.array(producer, np.int64), cost, np.array(may_pause, bool))


@dataclass(frozen=True)
class _Present:
    """From which step to which the copies of tensors are there.

    Attributes:
        span: more than there are steps.
        made: for each copy its tensor times the span, plus the step that makes it; sorted.
        ends: the last step at which it is there.
    """

    span: int
    made: list[int]
    ends: list[int]

    @classmethod
    def of(cls, copies: Copies) -> _Present:
        """Those of a schedule."""
        span, buffer = len(copies.ops) + 1, copies.buffers
        made = copies.tensor * span + copies.made
        order = np.argsort(made)
        ends = np.where(buffer[:-1] >= 0, copies.last[buffer[:-1]], span)
        return cls(span, made[order].tolist(), ends[order].tolist())

    def at(self, tensor: int, step: int) -> bool:
        """Whether there is a copy of a tensor right before a step that can be read in it."""
        place = bisect_left(self.made, tensor * self.span + step) - 1
        return place >= 0 and self.made[place] >= tensor * self.span and self.ends[place] >= step


def _to_run(problem: Problem, index: int, step: int, present: _Present) -> tuple[int, ...] | None:
    """The ops to run so that an op can run before a step, itself included; None if that is impossible or too much."""
    ops, producer = problem.ops, problem.producer
    needed, stack = {index}, [index]
    while stack:
        for tensor in ops[stack.pop()].inputs:
            maker = producer[tensor]
            if maker < 0 or maker in needed or present.at(tensor, step):
                continue
            if not ops[maker].repeatable or len(needed) >= _CHAIN:
                return None
            needed.add(maker)
            stack.append(maker)
    return tuple(sorted(needed))

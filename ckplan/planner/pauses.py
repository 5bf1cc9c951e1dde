"""Pauses: stretches of a schedule over which a tensor need not be alive, and what has to run again after each."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ckplan.planner.copies import Copies, Integers
from ckplan.planner.problem import Kind, Problem

_CHAIN = 24
"""How many ops may run again for one read."""

Factors = Callable[[int], Sequence[float]]
"""What to multiply so many prices with."""


class Pause(NamedTuple):
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
        most_cost: seconds that running again after a pause may take.
    """

    def __init__(
        self,
        problem: Problem,
        copies: Copies,
        live: Integers,
        budget: int,
        factors: Factors | None = None,
        most_cost: float = math.inf,
    ) -> None:
        figures = self.figures = _figures(problem)
        tensor, start, stop = _gaps(copies, figures.may_pause)
        over = np.maximum(live - budget, 0)
        steps, total = np.append(0, np.cumsum(over > 0)), np.append(0, np.cumsum(over))
        gain = np.minimum(total[stop] - total[start + 1], copies.bytes[tensor] * (steps[stop] - steps[start + 1]))
        spans = np.flatnonzero((gain > 0) & (figures.cost[figures.producer[tensor]] <= most_cost))
        tensor, self.start, self.stop, gain = tensor[spans], start[spans], stop[spans], gain[spans]
        maker = figures.producer[tensor]
        self.maker, self.bytes, self.gain = maker.tolist(), copies.bytes[tensor].tolist(), gain.tolist()
        self.factor = None if factors is None else factors(len(spans))
        self.least = figures.cost[maker] / gain
        if self.factor is not None:
            self.least *= self.factor
        self.ranks = list(zip(self.least.tolist(), self.start.tolist(), self.stop.tolist(), strict=True))
        self.most_cost = most_cost
        self.problem, self.present, self.over = problem, _Present.of(copies), over
        self.known: dict[int, Pause | None] = {}

    def cheapest_first(self) -> Iterator[Pause]:
        """The pauses from the lowest price to the highest, the earlier first of those of one price."""
        waiting: list[tuple[float, int, int, int, Pause]] = []
        for number in np.lexsort((self.stop, self.start, self.least)).tolist():
            least = *self.ranks[number], number
            while waiting and waiting[0] <= least:
                yield heappop(waiting)[-1]
            if (pause := self._pause(number)) is not None:
                heappush(waiting, (pause.price, pause.start, pause.stop, number, pause))
        while waiting:
            yield heappop(waiting)[-1]

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

    def _pause(self, number: int) -> Pause | None:
        """A pause by its number; None if what it needs cannot run again, or is too much."""
        if number not in self.known:
            _, start, stop = self.ranks[number]
            again = _to_run(self.figures, self.maker[number], stop, self.present)
            self.known[number] = None
            if again is not None and (cost := self.problem.schedule_cost(again)) <= self.most_cost:
                price = cost / self.gain[number] * (1.0 if self.factor is None else self.factor[number])
                self.known[number] = Pause(price, start, stop, self.bytes[number], cost, again)
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
        reads: for each op what it reads that ops make, with these ops.
        repeatable: for each op whether it may run again.
    """

    producer: Integers
    cost: npt.NDArray[np.float64]
    may_pause: npt.NDArray[np.bool_]
    reads: list[tuple[tuple[int, int], ...]]
    repeatable: list[bool]


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
    return _Figures(
        np.array(producer, np.int64),
        np.array([op.cost for op in ops], np.float64),
        np.array(may_pause, bool),
        [tuple((t, producer[t]) for t in dict.fromkeys(op.inputs) if producer[t] >= 0) for op in ops],
        [op.repeatable for op in ops],
    )


@dataclass(frozen=True)
class _Present:
    """From which step to which the copies of tensors are there.

    Attributes:
        first: for each tensor the place of its first copy; and the end.
        made: the steps that make the copies, tensor by tensor.
        ends: the last step at which each is there.
    """

    first: list[int]
    made: list[int]
    ends: list[int]

    @classmethod
    def of(cls, copies: Copies) -> _Present:
        """Those of a schedule."""
        buffer = copies.buffers
        order = np.argsort(copies.tensor * (len(copies.ops) + 1) + copies.made)
        ends = np.where(buffer[:-1] >= 0, copies.last[buffer[:-1]], len(copies.ops))
        count = np.bincount(copies.tensor, minlength=len(copies.bytes))
        return cls([0, *np.cumsum(count).tolist()], copies.made[order].tolist(), ends[order].tolist())


def _to_run(figures: _Figures, index: int, step: int, present: _Present) -> tuple[int, ...] | None:
    """The ops to run so that an op can run before a step, itself included; None if that is impossible or too much."""
    reads, repeatable = figures.reads, figures.repeatable
    first, made, ends = present.first, present.made, present.ends
    needed, stack = {index}, [index]
    while stack:
        for tensor, maker in reads[stack.pop()]:
            if maker in needed:
                continue
            copy = bisect_left(made, step, first[tensor], first[tensor + 1]) - 1
            if copy >= first[tensor] and ends[copy] >= step:
                continue  # it can be read right before the step
            if not repeatable[maker] or len(needed) >= _CHAIN:
                return None
            needed.add(maker)
            stack.append(maker)
    return tuple(sorted(needed))

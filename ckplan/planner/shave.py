"""Shaving peaks: tensors that are not read for a while give way where too much is alive, and are made again for a read.

Eviction goes through a graph once and decides by what is alive at that moment. Here a whole schedule is there, so that
it is known what will have died when a tensor is read next: what has to run again is counted with that, and whether the
memory then has room for it is simulated. The excess over the budget falls with every change, so that chains of
recomputations cannot evict each other. That suits wide graphs, with or without a backward pass, that need a little less
memory than they take.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ckplan.planner.copies import Copies, Integers
from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Kind, Problem
from ckplan.planner.recompute import with_views

_ROUNDS = 400
"""How often the schedule is looked at anew at most."""
_FURTHEST = 1.5
"""How many times the budget a schedule may take: one that takes more is no longer a matter of single peaks."""
_CHAIN = 24
"""How many ops may run again for one read."""
_SINGLE = 48
"""How many changes are tried by themselves where several at once do not help."""
_ROUNDING = 1e-9
"""By how much sums of seconds may differ that are added up in another order, in the cost of a step."""


def shave(
    problem: Problem,
    schedule: Sequence[int],
    budget: int,
    most_cost: float = float("inf"),
    factor: Callable[[], float] | None = None,
) -> list[int] | None:
    """A schedule within a budget, made of one that exceeds it.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; valid.
        budget: bytes of activations.
        most_cost: seconds that the schedule must not exceed.
        factor: asked for what to multiply each price with, so that other changes are the cheapest; None for nothing.

    Returns:
        Op ids in execution order, or None where nothing lowers the excess any further, or too much is missing.
    """
    if peak_of(problem, schedule) > _FURTHEST * budget:
        return None
    best = list(schedule)
    copies = Copies.of(problem, tuple(best))
    live = copies.live()
    for _ in range(_ROUNDS):
        excess = _excess(live, budget)
        if excess == 0:
            return best
        pauses = _pauses(problem, copies, live, budget, factor)
        left = most_cost - problem.schedule_cost(best) + _ROUNDING * problem.cost
        for chosen in _attempts(pauses):
            if sum(pause.cost for pause in chosen) > left:
                continue
            changed = _with_repeats(problem, best, chosen)
            after = Copies(problem, changed)
            alive = after.live()
            if _excess(alive, budget) < excess and problem.schedule_cost(changed) <= most_cost:
                break
        else:
            return None
        best, copies, live = changed, after, alive
    return best if _excess(live, budget) == 0 else None


def _excess(live: Integers, budget: int) -> int:
    """Bytes over the budget, of all steps together."""
    return int(np.maximum(live - budget, 0).sum())


@dataclass(frozen=True, slots=True)
class _Pause:
    """A stretch of the schedule over which a tensor need not be alive.

    Attributes:
        price: seconds of running again for each byte of excess that goes, or a multiple of that.
        cost: these seconds.
        start: the step that reads or makes it before.
        stop: the step that reads it after.
        again: the ops to run before that step, in order.
    """

    price: float
    cost: float
    start: int
    stop: int
    again: tuple[int, ...]


def _pauses(
    problem: Problem, copies: Copies, live: Integers, budget: int, factor: Callable[[], float] | None
) -> list[_Pause]:
    """Every pause that spans a step above the budget, the cheapest first."""
    producer, costs = problem.producer, [op.cost for op in problem.ops]
    over = np.maximum(live - budget, 0)
    steps = np.concatenate([[0], np.cumsum(over > 0)])
    total = np.concatenate([[0], np.cumsum(over)])
    # All events of each buffer that may be made again, in order: the step that makes it, then those that read it.
    owner = np.concatenate([np.arange(len(copies.made)), copies.buffers[copies.read]])
    event = np.concatenate([copies.made, copies.reader])
    kept = (owner >= 0) & _may_pause(problem)[copies.tensor[owner]]
    kept[: len(copies.made)] &= copies.buffers[:-1] == np.arange(len(copies.made))
    owner, event = owner[kept], event[kept]
    order = np.lexsort((event, owner))
    owner, event = owner[order], event[order]
    gap = np.flatnonzero(owner[1:] == owner[:-1])
    tensor, start, stop = copies.tensor[owner[gap]], event[gap], event[gap + 1]
    gain = np.minimum(total[stop] - total[start + 1], copies.bytes[tensor] * (steps[stop] - steps[start + 1]))
    spans = gain > 0
    present, found = _Present.of(copies), []
    columns = (column[spans].tolist() for column in (tensor, start, stop, gain))
    for made, first, last, gained in zip(*columns, strict=True):
        again = _to_run(problem, producer[made], last, present)
        if again is not None:
            cost = sum([costs[index] for index in again])
            price = cost / gained if factor is None else cost / gained * factor()
            found.append(_Pause(price, cost, first, last, again))
    return sorted(found, key=lambda pause: (pause.price, pause.start, pause.stop))


@lru_cache(maxsize=4)
def _may_pause(problem: Problem) -> npt.NDArray[np.bool_]:
    """For each tensor whether its memory can be given back, and an op that may run again makes it."""
    root, producer, ops = problem.view_root, problem.producer, problem.ops
    return np.array(
        [
            root[number] == number
            and tensor.kind is not Kind.OUTPUT
            and producer[number] >= 0
            and not ops[producer[number]].backward
            and ops[producer[number]].recomputable
            for number, tensor in enumerate(problem.tensors)
        ],
        bool,
    )


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
            if ops[maker].backward or not ops[maker].recomputable or len(needed) >= _CHAIN:
                return None
            needed.add(maker)
            stack.append(maker)
    return tuple(sorted(needed))


def _attempts(pauses: Sequence[_Pause]) -> Iterator[Sequence[_Pause]]:
    """Pauses to make use of at once: as many as do not overlap, then ever fewer of these, then single ones."""
    chosen = _disjoint(pauses)
    while len(chosen) > 1:
        yield chosen
        chosen = chosen[: len(chosen) // 2]
    for pause in pauses[:_SINGLE]:
        yield [pause]


def _disjoint(pauses: Sequence[_Pause]) -> list[_Pause]:
    """Pauses that do not overlap, chosen greedily."""
    chosen: list[_Pause] = []
    starts: list[tuple[int, int]] = []
    for pause in pauses:
        place = bisect_left(starts, (pause.start, pause.stop))
        before_ends = place == 0 or starts[place - 1][1] <= pause.start
        after_begins = place == len(starts) or starts[place][0] >= pause.stop
        if before_ends and after_begins:
            starts.insert(place, (pause.start, pause.stop))
            chosen.append(pause)
    return chosen


def _with_repeats(problem: Problem, schedule: Sequence[int], pauses: Sequence[_Pause]) -> list[int]:
    """The schedule with what the end of each pause needs run before it."""
    before = {pause.stop: pause.again for pause in pauses}
    changed: list[int] = []
    for step, index in enumerate(schedule):
        changed += before.get(step, ())
        changed.append(index)
    return with_views(problem, changed)

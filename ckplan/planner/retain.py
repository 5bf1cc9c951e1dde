"""Retaining: repeats of a schedule that there is room to do without.

A repeat is not needed where what is read of it can stay from the copy before, if the memory in between has room for
it. Taking out the repeats that save most for their bytes, and then the repeats that only those needed, makes
any schedule cheaper within the same limit.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import compress

import numpy as np
import numpy.typing as npt

from ckplan.planner.copies import Copies, Integers, Rows
from ckplan.planner.peak import live_bytes
from ckplan.planner.phases import without_dead_repeats
from ckplan.planner.problem import Kind, Problem
from ckplan.planner.range_maximum import maxima

_SHORT = 4_000
"""Steps of the longest schedule of which is kept what was found out."""
_ROUNDS = 8
"""How often the timeline is simulated anew at most; room appears as repeats go."""
_SAVED_LATER = (0.2, *[0.1] * (_ROUNDS - 1))
"""What all that follow a round save at most of the seconds that repeats take after it, as a ratio. Of 4,500 schedules
one would have come to less than it was to cost and is not gone on with, near the lowest peak."""


def retain(problem: Problem, schedule: Sequence[int], limit: int, most_cost: float = math.inf) -> list[int]:
    """The schedule without repeats that the limit has room to do without.

    O(rounds x (n log n + repeats that fit x steps between)), in numpy.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; valid, with a peak within the limit.
        limit: bytes of activations that the peak must not exceed.
        most_cost: seconds above which a schedule is of no use; one that will cost more, by what a round has come to, is
            left as it was before that round.
    """
    clean, look = (_lately_cleaned, _looked_at) if len(schedule) <= _SHORT else (_cleaned, _look)
    best = clean(problem, tuple(schedule))
    live, gaps = look(problem, best)
    for saved in _SAVED_LATER:
        chosen = _affordable(live, gaps, limit)
        while chosen:
            shorter = clean(problem, gaps.left_out(best, chosen))
            if (problem.schedule_cost(shorter) - problem.cost) * (1 - saved) > most_cost - problem.cost:
                return list(best)
            alive, left = look(problem, shorter)
            if alive.max(initial=0) <= limit:
                break
            chosen = chosen[: len(chosen) // 2]  # what kernels overwrite in place is only estimated above
        if not chosen:
            break
        best, live, gaps = shorter, alive, left
    return list(best)


@dataclass(frozen=True)
class _Gaps:
    """The repeats that could be left out, the most worthwhile first: those that save most seconds per byte.

    Attributes:
        step: the step of each.
        start: for each tensor that has to stay for one, as it is read until it is made again: first step at which that
            takes memory.
        bytes: how much.
        first: where the tensors of each repeat begin; and the end.
        views: by the step of a repeat, the steps of the views that were made of it anew.
    """

    step: Integers
    start: Integers
    bytes: Integers
    first: Integers
    views: Mapping[int, Sequence[int]]

    def left_out(self, schedule: Sequence[int], chosen: Sequence[int]) -> tuple[int, ...]:
        """The schedule without some repeats, given by their steps, and without views of them."""
        dropped = {*chosen, *(view for step in chosen for view in self.views.get(step, ()))}
        left = bytearray(b"\1") * len(schedule)
        for step in dropped:
            left[step] = False
        return tuple(compress(schedule, left))


def _cleaned(problem: Problem, schedule: tuple[int, ...]) -> tuple[int, ...]:
    """A schedule without dead repeats."""
    return tuple(without_dead_repeats(problem, schedule))


def _look(problem: Problem, schedule: tuple[int, ...]) -> tuple[Integers, _Gaps]:
    """What is alive at the steps of a schedule, and what could be left out of it."""
    return live_bytes(problem, schedule), _gaps(problem, schedule)


_lately_cleaned = lru_cache(maxsize=128)(_cleaned)
_looked_at = lru_cache(maxsize=128)(_look)
"""The same, kept: one schedule is retained within many limits that lie close together."""


def _gaps(problem: Problem, schedule: tuple[int, ...]) -> _Gaps:
    """All repeats but those of views."""
    figures, copies = _figures(problem), Copies.of(problem, schedule)
    read = np.flatnonzero(copies.again[copies.made] & figures.held[copies.tensor] & (copies.last > copies.made))
    made, at = copies.tensor[read], copies.made[read]
    # What a repeat makes anew was last touched at the step at whose end its memory was free; or where that is a kernel
    # that may overwrite it, at whose start.
    span = len(schedule)
    touching, base, _ = figures.touched.along(copies.ops)
    touches = np.sort(base * span + touching)
    last = touches[np.searchsorted(touches, made * span + at) - 1] % span
    start = last + 1
    if len(figures.overwriting):
        start -= np.isin(copies.ops[last] * len(figures.held) + made, figures.overwriting)
    first = np.flatnonzero(np.diff(at, prepend=-1))
    step, count = at[first], np.diff(first, append=len(at))
    size = copies.bytes[made]
    total = np.add.reduceat(size, first)
    order = np.lexsort((step, -figures.cost[copies.ops[step]] / np.maximum(total, 1)))
    ends = np.append(0, np.cumsum(count[order]))
    place = np.arange(len(at)) + np.repeat(first[order] - ends[:-1], count[order])
    return _Gaps(step[order], start[place], size[place], ends, _views(problem, copies))


def _views(problem: Problem, copies: Copies) -> dict[int, list[int]]:
    """By the step of a repeat, the steps at which views of what it makes are made that were made of the copy before."""
    figures, found = _figures(problem), dict[int, list[int]]()
    repeated = np.flatnonzero(copies.again & (figures.viewed.count[copies.ops] > 0))
    if not len(repeated):
        return found
    span = len(copies.ops)
    runs = np.sort(copies.ops * span + np.arange(span))

    def run_before(index: int, step: int) -> int:
        """The last step before a given one at which an op runs, -1 if there is none."""
        run = int(runs[np.searchsorted(runs, index * span + step) - 1])
        return run % span if run // span == index and run < index * span + step else -1

    for step in repeated.tolist():
        index = int(copies.ops[step])
        for maker in figures.viewed.of_op(index):
            latest = run_before(maker, step)
            repeats = latest >= 0 and copies.again[latest] and figures.makes[maker]
            if repeats and run_before(index, step) > run_before(maker, latest):
                found.setdefault(latest, []).append(step)
    return found


@dataclass(frozen=True)
class _Figures:
    """What is asked of a problem for each schedule.

    Attributes:
        touched: for each op the roots of what it reads and makes.
        viewed: the ops that make what it makes views of.
        cost: seconds of each op.
        held: for each tensor whether it is an activation in memory of its own.
        makes: for each op whether it makes one.
        overwriting: for each op and activation that it may overwrite a number: op times tensors, plus tensor.
    """

    touched: Rows
    viewed: Rows
    cost: npt.NDArray[np.float64]
    held: npt.NDArray[np.bool_]
    makes: npt.NDArray[np.bool_]
    overwriting: Integers


@lru_cache(maxsize=8)
def _figures(problem: Problem) -> _Figures:
    root, tensors, producer = problem.view_root, problem.tensors, problem.producer
    held = [root[number] == number and tensor.kind is Kind.ACTIVATION for number, tensor in enumerate(tensors)]
    touched = [tuple(dict.fromkeys(root[t] for t in (*op.inputs, *op.outputs))) for op in problem.ops]
    viewed = [
        [maker for maker in dict.fromkeys(producer[root[t]] for t in op.outputs if root[t] != t) if maker >= 0]
        for op in problem.ops
    ]
    cost = np.array([op.cost for op in problem.ops], np.float64)
    makes = [any(held[tensor] for tensor in op.outputs) for op in problem.ops]
    overwriting = [
        number * len(tensors) + root[source]
        for number, op in enumerate(problem.ops)
        for sources in op.inplace.values()
        for source in sources
    ]
    return _Figures(
        Rows.of(touched),
        Rows.of(viewed),
        cost,
        np.array(held, bool),
        np.array(makes, bool),
        np.array(overwriting, np.int64),
    )


def _affordable(alive: Integers, gaps: _Gaps, limit: int) -> list[int]:
    """The steps of the repeats to leave out, chosen greedily while the memory between has room."""
    live, chosen, first = alive.copy(), [], gaps.first[:-1]
    latest, total = np.maximum.reduceat(gaps.start, first), np.add.reduceat(gaps.bytes, first)
    # What is chosen only takes room away, so that what does not fit at first never does.
    fits = (latest >= gaps.step) | (maxima(live, latest, np.maximum(gaps.step, latest + 1)) + total <= limit)
    steps, several = gaps.step.tolist(), (np.diff(gaps.first) > 1).tolist()
    earliest, sizes = np.minimum.reduceat(gaps.start, first).tolist(), total.tolist()
    for number in np.flatnonzero(fits).tolist():
        step, between = steps[number], live[earliest[number] : steps[number]]
        added = _added(gaps, number) if several[number] else sizes[number]
        if not len(between) or int((between + added).max()) <= limit:
            between += added
            chosen.append(step)
    return chosen


def _added(gaps: _Gaps, number: int) -> Integers:
    """Bytes that the tensors of a repeat take where they stay, from the first that does until it is left out."""
    own = slice(*gaps.first[number : number + 2])
    starts = gaps.start[own]
    first = int(starts.min())
    added = np.zeros(max(int(gaps.step[number]) - first, 0), np.int64)
    for start, size in zip((starts - first).tolist(), gaps.bytes[own].tolist(), strict=True):
        added[start:] += size
    return added

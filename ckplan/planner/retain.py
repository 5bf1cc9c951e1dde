"""Retaining: repeats of a schedule that there is room to do without.

A repeat is not needed where the copy before it can stay until the repeat's first reader, if the memory in between has
room for it. Taking out the repeats that save most for their bytes, and then the repeats that only those needed, makes
any schedule cheaper within the same limit.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ckplan.planner.copies import Integers
from ckplan.planner.peak import live_bytes
from ckplan.planner.phases import without_dead_repeats
from ckplan.planner.problem import Kind, Problem

_SHORT = 4_000
"""Steps of the longest schedule of which is kept what was found out."""


def retain(problem: Problem, schedule: Sequence[int], limit: int, rounds: int = 8) -> list[int]:
    """The schedule without repeats that the limit has room to do without.

    O(rounds x (n + repeats x steps between)), the inner loop in numpy.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; valid, with a peak within the limit.
        limit: bytes of activations that the peak must not exceed.
        rounds: how often the timeline is simulated anew at most; room appears as repeats go.
    """
    look = _looked_at if len(schedule) <= _SHORT else _look
    best, live, gaps = look(problem, tuple(schedule))
    for _ in range(rounds):
        chosen = _affordable(live, gaps, limit)
        while chosen:
            dropped = {step for gap in chosen for step in gap.steps}
            shorter, alive, left = look(problem, tuple(i for s, i in enumerate(best) if s not in dropped))
            if alive.max(initial=0) <= limit:
                break
            chosen = chosen[: len(chosen) // 2]  # what kernels overwrite in place is only estimated above
        if not chosen:
            break
        best, live, gaps = shorter, alive, left
    return list(best)


@dataclass(frozen=True, slots=True)
class _Gap:
    """A repeat that could be left out.

    Attributes:
        worth: seconds saved per byte.
        steps: the repeat's step, then those of the views that were made of it anew.
        start: first step at which retaining the copy before takes memory.
        bytes: how much.
    """

    worth: float
    steps: tuple[int, ...]
    start: int
    bytes: int


def _look(problem: Problem, schedule: tuple[int, ...]) -> tuple[tuple[int, ...], Integers, Sequence[_Gap]]:
    """A schedule without dead repeats, what is alive at its steps, and what could be left out of it."""
    cleaned = tuple(without_dead_repeats(problem, schedule))
    return cleaned, live_bytes(problem, cleaned), _gaps(problem, cleaned)


_looked_at = lru_cache(maxsize=128)(_look)
"""The same, kept: one schedule is retained within many limits that lie close together."""


def _gaps(problem: Problem, schedule: Sequence[int]) -> list[_Gap]:
    """All repeats but those of views, the most worthwhile first."""
    ops, root, figures = problem.ops, problem.view_root, _figures(problem)
    last_read = [-1] * len(problem.tensors)
    last_run = [-1] * len(ops)
    run_before = [-1] * len(ops)
    found: dict[int, tuple[int, int, int]] = {}  # by op, its last repeat: step, start, bytes
    views: dict[int, list[int]] = {}  # by step of a repeat
    gaps: list[_Gap] = []

    def close(index: int) -> None:
        step, start, size = found.pop(index)
        gaps.append(_Gap(ops[index].cost / max(size, 1), (step, *views.pop(step, ())), start, size))

    for step, index in enumerate(schedule):
        op = ops[index]
        if index in found:
            close(index)
        if last_run[index] >= 0:
            _, counted, size = figures[index]
            if counted:
                found[index] = step, min(last_read[t] for t in counted), size
            for tensor in op.outputs:
                maker = problem.producer[root[tensor]]
                # The view made before is one of the copy before.
                if root[tensor] != tensor and maker in found and last_run[index] > run_before[maker]:
                    views.setdefault(found[maker][0], []).append(step)
        run_before[index], last_run[index] = last_run[index], step
        for base in figures[index][0]:
            last_read[base] = step
    for index in list(found):
        close(index)
    gaps.sort(key=lambda gap: (-gap.worth, gap.steps))
    return gaps


@lru_cache(maxsize=8)
def _figures(problem: Problem) -> list[tuple[tuple[int, ...], tuple[int, ...], int]]:
    """For each op the roots that it touches, and of the activations that it makes the roots and their bytes."""
    root, tensors = problem.view_root, problem.tensors
    figures = []
    for op in problem.ops:
        counted = tuple(t for t in op.outputs if root[t] == t and tensors[t].kind is Kind.ACTIVATION)
        touched = tuple(dict.fromkeys(root[t] for t in (*op.inputs, *op.outputs)))
        figures.append((touched, counted, sum(tensors[t].bytes for t in counted)))
    return figures


def _affordable(alive: Integers, gaps: Sequence[_Gap], limit: int) -> list[_Gap]:
    """The repeats to leave out, chosen greedily while the memory between has room."""
    live = alive.copy()
    chosen = []
    for gap in gaps:
        between = live[gap.start : gap.steps[0]]
        if between.size == 0 or int(between.max()) + gap.bytes <= limit:
            between += gap.bytes
            chosen.append(gap)
    return chosen

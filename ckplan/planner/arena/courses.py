"""Courses: how far a run comes in cells, with placeholders that are made in the middle of it.

What differs from another course is simulated from there on.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from ckplan.planner.arena.cells import Row, arranged, make, opened
from ckplan.planner.arena.cutting import Run, State
from ckplan.planner.arena.gaps import Gaps

_EVERY = 12
"""Steps between two states that are kept, to simulate from there."""

KEY = -(2**30)
"""Below this are keys of placeholders."""


@dataclass(frozen=True, slots=True)
class Held:
    """A placeholder: units, the steps before which it is made and given back, and its number."""

    size: int
    begin: int
    end: int
    number: int


@dataclass(frozen=True)
class Course:
    """How far a run comes.

    Attributes:
        state: the cells but for the last pool of each region.
        rows: all of them.
        held: the placeholders.
        step: the first step at which a request finds no room, in any variant of the run; behind the last if all do.
        short: units that the largest gap is too short then.
        wanted: key and units of that request.
        gaps: the gaps then.
        variant: the variant of the run in which that is so.
        saved: of each variant, the state before every twelfth step.
        spent: steps that were simulated for it.
    """

    state: State
    rows: Sequence[Row]
    held: tuple[Held, ...]
    step: int
    short: int = 0
    wanted: tuple[int, int] = (0, 0)
    gaps: Gaps = field(default_factory=Gaps)
    variant: int = 0
    saved: Sequence[list[Gaps]] = ()
    spent: int = 0

    @property
    def score(self) -> tuple[int, int]:
        """Larger where the run comes further, or nearly does."""
        return self.step, -self.short


def followed(
    run: Run,
    state: State,
    rows: Sequence[Row],
    held: tuple[Held, ...],
    before: Course | None = None,
    since: int = 0,
    least: float = 0,
) -> Course:
    """How far a run comes with cells and placeholders.

    Args:
        run: what is asked of the arena.
        state: the cells but for the last pool of each region.
        rows: all of them.
        held: the placeholders.
        before: another course. The variant in which it ends first is simulated first.
        since: the step before which both are the same; 0 where the cells are not.
        least: a step that has to be reached; a course that ends before is of no use, and not all of it is simulated.
    """
    stop, spent = len(run.stages[0]), 0
    short, wanted, gaps = 0, (0, 0), Gaps()
    begins, ends = _by_step(held)
    saved: list[list[Gaps]] = [[] for _ in run.stages]
    worst = 0 if before is None else before.variant
    for variant in (worst, *(other for other in range(len(run.stages)) if other != worst)):
        stages, below = run.stages[variant], run.below[variant]
        ordered = arranged(rows, below)
        known = saved[variant]
        if before is not None and since:
            known += before.saved[variant][: since // _EVERY + 1]
        now = known[-1].copy() if known else opened(ordered, run.first, run.apart, run.slots, first_above=not below)
        for step in range(max(len(known) - 1, 0) * _EVERY, min(stop + 1, len(stages))):
            if step % _EVERY == 0 and step // _EVERY == len(known):
                known.append(now.copy())
            spent += 1
            lacks = None
            for key, size in itertools.chain(_requests(step, begins, ends), stages[step]):
                if size > 0:
                    if lack := now.take(key, size):
                        lacks = lack, (key, size)
                        break
                elif size == 0:
                    now.give_back(key)
                else:
                    make(ordered, now)
            if lacks is not None:
                if step < stop or lacks[0] > short:
                    stop, (short, wanted), gaps, worst = step, lacks, now, variant
                break
        if stop < least:
            break
    return Course(state, rows, held, stop, short, wanted, gaps, worst, saved, spent)


def _by_step(held: Sequence[Held]) -> tuple[dict[int, list[Held]], dict[int, list[Held]]]:
    begins: dict[int, list[Held]] = {}
    ends: dict[int, list[Held]] = {}
    for one in held:
        begins.setdefault(one.begin, []).append(one)
        ends.setdefault(one.end, []).append(one)
    return begins, ends


def _requests(step: int, begins: dict[int, list[Held]], ends: dict[int, list[Held]]) -> Iterator[tuple[int, int]]:
    """What is asked for before a step for placeholders.

    The shapes that they are made of are not: onnxruntime puts them where shapes were before.
    """
    for held in ends.get(step, ()):
        yield KEY - held.number, 0
    for held in begins.get(step, ()):
        yield KEY - held.number, held.size


def requests_of(step: int, held: Sequence[Held]) -> list[tuple[int, int]]:
    """What placeholders ask for right before a step, as keys and units, and, at no units, give back."""
    return list(_requests(step, *_by_step([one for one in held if step in (one.begin, one.end)])))


def gaps_at(run: Run, course: Course, step: int) -> Gaps:
    """The gaps before a step of the first variant, when its placeholders are made."""
    stages, rows = run.stages[0], arranged(course.rows, run.below[0])
    saved = course.saved[0]
    number = min(step // _EVERY, len(saved) - 1)
    now = saved[number].copy()
    begins, ends = _by_step(course.held)
    for place in range(number * _EVERY, step + 1):
        own = stages[place] if place < step else ()
        for key, size in itertools.chain(_requests(place, begins, ends), own):
            if size > 0:
                now.take(key, size)
            elif size == 0:
                now.give_back(key)
            else:
                make(rows, now)
    return now

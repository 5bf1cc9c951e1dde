"""Steering best fit in the middle of a run, where cells alone do not do: placeholders that send tensors elsewhere.

A tensor that nobody reads takes a gap, and then the next one that would have gone there goes elsewhere: out of a small
gap into the large one behind it, to the upper end of a gap, or not into the place that a later one needs. Which
placeholders do is found by repair. The run is simulated up to the first request that finds no room; of the tensors that
are in its way some are sent elsewhere; what lets the run come further is kept.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckplan.planner.arena.courses import KEY, Course, Held, followed, gaps_at
from ckplan.planner.arena.cutting import MOST_CELLS, Run, State, changed, rows_of
from ckplan.planner.arena.gaps import Gaps

_MOST = 30
"""Placeholders beyond which none is added: each takes five nodes of the file."""

_TRIAL = 60
"""What a trial costs beside its steps, in steps."""

_BACK = 60
"""Steps that it is looked back for tensors to send elsewhere, and for when a placeholder may begin."""

_PATIENCE = 60, 400
"""Trials without gain after which steps back are taken, and after which the search goes on from the best."""

_LESS = 16
"""Units that are asked for less than a gap has that is to be taken: all of it is handed out, also if it is smaller."""


def steer(
    run: Run, regions: Sequence[int], state: State, effort: int, rng: random.Random, held: tuple[Held, ...] = ()
) -> tuple[State, list[Held]] | None:
    """Cells and placeholders with which all requests find room, as few as were found; None if not found.

    Args:
        run: what is asked of the arena.
        regions: units of each but the first, ascending.
        state: cells to begin with.
        effort: steps that are simulated.
        rng: of the search.
        held: placeholders to begin with.
    """
    rows = rows_of(regions, state)
    if rows is None:
        return None
    best = course = followed(run, state, rows, held)
    numbers = itertools.count(len(held))
    patience = 0
    while effort > 0 and course.step < len(run.stages[0]) and not run.is_over:
        least = float(course.step)
        if patience > _PATIENCE[0] and rng.random() < 0.2:
            least -= rng.random() ** 2 * _BACK
        tried = _tried(run, regions, course, numbers, least, rng)
        if tried is None:
            effort -= _TRIAL
            continue
        effort -= tried.spent + _TRIAL
        more = len(tried.held) - len(course.held)
        patience += 1
        back = least <= tried.step < course.step
        alike = tried.score == course.score and (more <= 0 or rng.random() < 0.1)
        if tried.score > course.score or alike or back:
            course = tried
            if course.score > best.score:
                best, patience = course, 0
        if patience > _PATIENCE[1]:
            course, patience = best, 0
    if course.step < len(run.stages[0]):
        return None
    return fewer(run, regions, course)


def fewer(run: Run, regions: Sequence[int], course: Course) -> tuple[State, list[Held]]:
    """The same without placeholders and cells that are not needed."""
    for held in course.held:
        others = tuple(other for other in course.held if other != held)
        tried = followed(run, course.state, course.rows, others, course, held.begin, course.step)
        course = tried if tried.step >= course.step else course
    for number, row in enumerate(course.state):
        for cell in list(row):
            state = [list(row) for row in course.state]
            state[number].remove(cell)
            rows = rows_of(regions, state)
            if (
                rows is not None
                and (tried := followed(run, state, rows, course.held, course, 0, course.step)).step >= course.step
            ):
                course = tried
    return course.state, list(course.held)


def _tried(
    run: Run, regions: Sequence[int], course: Course, numbers: Iterator[int], least: float, rng: random.Random
) -> Course | None:
    """A course with other placeholders, mostly for what is in the way where this one ends, or with other cells.

    It is simulated as a whole where it reaches a step.
    """
    way = rng.random()
    held = list(course.held)
    if way < 0.1:
        state = changed(run, regions, course.state, course.step, rng)
        rows = rows_of(regions, state)
        if rows is None or sum(map(len, state)) > MOST_CELLS:
            return None
        return followed(run, state, rows, course.held, course, 0, least)
    since = course.step
    if held and way < 0.2:
        since = held.pop(rng.randrange(len(held))).begin
    elif held and way < 0.25:
        place = rng.randrange(len(held))
        moved = _gate(run, held[place].begin + rng.randint(-20, 20))
        if not moved < held[place].end:
            return None
        since = min(moved, held[place].begin)
        held[place] = replace(held[place], begin=moved, number=next(numbers))
    else:
        for _ in range(rng.choice((1, 1, 1, 2))):
            added = _sent_elsewhere(run, course, numbers, rng)
            held += added
            since = min([since, *(one.begin for one in added)])
    if tuple(held) == course.held or len(held) > max(_MOST, len(course.held)):
        return None
    return followed(run, course.state, course.rows, tuple(held), course, since, least)


def _sent_elsewhere(run: Run, course: Course, numbers: Iterator[int], rng: random.Random) -> list[Held]:
    """Placeholders that send a tensor elsewhere which is in the way, or which finds no room."""
    buffer = _in_the_way(run, course, rng)
    if buffer is None:
        return []
    born, size = run.born[buffer], run.size[buffer]
    way = rng.random()
    if way < 0.35:  # its place is taken when another gap is the smallest
        begin = _gate(run, born - 1 - int(rng.random() ** 2 * _BACK))
        return [Held(size, begin, born, next(numbers))] if begin < born else []
    end = run.gates[bisect_right(run.gates, born)] if born < run.gates[-1] else born
    gaps = gaps_at(run, course, born)
    fitting = [gap for gap in gaps.free if gap[0] >= size]
    if not fitting or end == born:
        return []
    gap = fitting[0] if rng.random() < 0.4 else rng.choice(fitting)
    made = directed(gaps, size, gap, above=rng.random() < 0.6)
    return [Held(part, born, end, next(numbers)) for part in made]


def directed(gaps: Gaps, size: int, gap: tuple[int, int], *, above: bool) -> list[int]:
    """Units of placeholders after which a tensor goes into one gap, to its upper end or to where the gap begins.

    Whatever gap fits better is taken as a whole. For the upper end, what is below is taken, in parts where it is more
    than half of the gap; then the gap is not handed out as a whole to what is larger than half of it.

    Args:
        gaps: what is free; the placeholders are taken out of it.
        size: units of the tensor.
        gap: units and address of the gap that it is to go into.
        above: whether to the upper end.
    """
    whole, begin = gap
    made: list[int] = []

    def take(units: int) -> None:
        gaps.take(KEY - len(made), units)
        made.append(units)

    def clear(units: int) -> None:
        """Take what would be handed out for so many units before the gap is."""
        while len(made) < _MOST:
            best, address = gaps.free[bisect_left(gaps.free, (units, -(2**62)))]
            if begin <= address < begin + whole:
                return
            take(max(units, best - _LESS))

    left = whole
    while above and left > size and len(made) < _MOST:
        part = min(left - size, left // 2)
        clear(part)
        take(part)
        left -= part
    clear(size)
    return made


def _in_the_way(run: Run, course: Course, rng: random.Random) -> int | None:
    """A tensor for which a placeholder may be made: one where room is lacking, what finds none, or one made lately."""
    found: Sequence[int] = []
    if rng.random() < 0.6:
        found = rng.choice(_obstacles(run, course) or [[]])
    if not found and rng.random() < 0.3:
        found = [course.wanted[0]]
    if not found:
        if rng.random() < 0.5:
            found = [buffer for buffer in run.kept if course.step - _BACK <= run.born[buffer] <= course.step]
        else:
            found = [buffer for buffer in run.kept if run.born[buffer] <= course.step <= run.dies[buffer]]
    gates = set(run.gates)
    found = [buffer for buffer in found if 0 <= buffer < len(run.born) and run.born[buffer] in gates]
    return rng.choice(found) if found else None


def _obstacles(run: Run, course: Course) -> list[list[int]]:
    """What would have to lie elsewhere for the request that finds no room, of several ways those that move least."""
    wanted = course.wanted[1]
    chunks: list[tuple[int, int, int | None]] = [(address, size, None) for size, address in course.gaps.free]
    chunks += [(address, size, key) for key, (address, size) in course.gaps.given.items()]
    chunks.sort(key=lambda chunk: chunk[0])
    found: list[tuple[int, list[int]]] = []
    for place, (behind, _, _) in enumerate(chunks):
        whole = taken = 0
        keys: list[int] = []
        for address, size, key in itertools.islice(chunks, place, None):
            if address != behind or taken > 1.5 * wanted:
                break
            behind += size
            whole += size
            if key is not None:
                taken += size
                keys.append(key)
            if whole >= wanted:
                found.append((taken, keys))
                break
    # And what was handed more than it asked for.
    given = course.gaps.given.items()
    sizes = dict(enumerate(run.size))
    wasteful = [[key] for key, (_, size) in given if size - sizes.get(key, size) >= course.short / 4]
    return [keys for _, keys in sorted(found, key=lambda way: way[0])[:5]] + (wasteful if course.short else [])


def _gate(run: Run, step: int) -> int:
    """The last step up to another one at which a placeholder may be made; the first there is if none is."""
    return run.gates[max(bisect_right(run.gates, step) - 1, 0)]

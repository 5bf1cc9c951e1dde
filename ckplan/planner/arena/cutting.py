"""Cutting the regions of an arena into cells with which a run finds room: hill climbing, judged by simulation."""

from __future__ import annotations

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass

from ckplan.planner.arena.cells import POOL, SMALLEST, WALL, WALL_BYTES, Row, lacking
from ckplan.planner.arena.regions import UNIT

MOST_CELLS = 40
"""Cells beyond which none is added: each takes a few nodes of the file."""

_WALL = WALL_BYTES // UNIT
_PARTED = 8
"""A cell is at most so many times as large as what lies behind it: it is made in some parts then."""

_LONG = (0.7, 0.5, 0.35, 0.25, 0.15, 0.08, 0.04)
"""Parts of a run: of what lives longer, places are kept at first."""

State = list[list[tuple[int, int]]]
"""The cells of each region but for the pool that is left at its end."""


@dataclass(frozen=True)
class Run:
    """What is asked of the arena, in units.

    Attributes:
        variants: the requests of a run as they may come, and how many regions lie below those that follow.
        size: of each buffer.
        born: the step that asks for each buffer.
        dies: the step after which it is given back; behind the last one for outputs.
        kept: buffers of which the place may be kept.
        steps: the step of each request of the first variant.
        first: units of the first region.
        apart: units at its beginning that are no part of its pool.
        slots: how many slots are the last of that.
        gates: steps before which something else can be made, ascending, cells being there.
        stages: the requests of the variants, step by step.
        deadline: `time.monotonic` after which no other way to find room for it is tried.
    """

    variants: Sequence[tuple[Sequence[tuple[int, int]], int]]
    size: Sequence[int]
    born: Sequence[int]
    dies: Sequence[int]
    kept: Sequence[int]
    steps: Sequence[int]
    first: int
    apart: int
    slots: int
    gates: Sequence[int]
    stages: Sequence[Sequence[Sequence[tuple[int, int]]]]
    deadline: float = math.inf

    @property
    def below(self) -> Sequence[int]:
        """Of each variant, how many regions lie below those that follow; see `ckplan.planner.arena.regions.Arena`."""
        return [below for _, below in self.variants]

    @property
    def is_over(self) -> bool:
        """Whether the time to find room for it is up."""
        return time.monotonic() > self.deadline


def cut(run: Run, regions: Sequence[int], trials: int, rng: random.Random) -> State | None:
    """Regions cut so that all requests find room, as few cells as were found; None if not found."""
    uncut: State = [[] for _ in regions]
    starts = [long_kept(run, regions), uncut]
    for start in starts:
        state, lacks = climbed(run, regions, start, trials // len(starts), rng)
        if not lacks:
            return fewer(run, regions, state)
        if start == uncut:
            break
    return None


def long_kept(run: Run, regions: Sequence[int]) -> State:
    """Places kept for what lives long, of several ways to pack them into the regions that which lacks least."""
    best: State = [[] for _ in regions]
    least, _ = _lacking(run, rows_of(regions, best) or [], 1)
    lives = [dies - born for born, dies in zip(run.born, run.dies, strict=True)]
    keys = (run.dies, run.size, lives, [-born for born in run.born])
    for part in _LONG:
        long = [buffer for buffer in run.kept if lives[buffer] >= part * run.steps[-1]]
        for key in keys:
            ordered = sorted(long, key=lambda buffer: (-key[buffer], buffer))
            for ascending in (True, False):
                for spared in (0.0, 0.1):
                    if run.is_over:
                        return best
                    state = _packed(run, regions, ordered, ascending, spared)
                    rows = rows_of(regions, state)
                    lacks = least if rows is None else _lacking(run, rows, 1, least)[0]
                    if lacks < least:
                        best, least = state, lacks
    return best


def _packed(run: Run, regions: Sequence[int], buffers: Sequence[int], ascending: bool, spared: float) -> State:
    """Places for buffers, each in the first region with room for it, in each region that first that is free last.

    Args:
        run: what is asked for.
        regions: units of each.
        buffers: the buffers, in the order in which they are placed.
        ascending: whether small regions come first.
        spared: part of each region that is left.
    """
    left = [int(size * (1 - spared)) for size in regions]
    state: State = [[] for _ in regions]
    for buffer in buffers:
        order = range(len(regions)) if ascending else reversed(range(len(regions)))
        number = next((number for number in order if left[number] >= run.size[buffer]), None)
        if number is not None:
            left[number] -= run.size[buffer]
            state[number].append((run.size[buffer], buffer))
    for row in state:
        row.sort(key=lambda cell: (-run.dies[cell[1]], cell[1]))
    return state


def climbed(run: Run, regions: Sequence[int], state: State, trials: int, rng: random.Random) -> tuple[State, int]:
    """Cells found by changing the best ones so far, and units that are lacking then: none if all requests find room."""
    # One variant of the run is enough until it finds room.
    variants = 1
    least, fails = _lacking(run, rows_of(regions, state) or [], variants)
    for _ in range(trials):
        if not least and variants < len(run.variants):
            variants = len(run.variants)
            least, fails = _lacking(run, rows_of(regions, state) or [], variants)
        if not least or run.is_over:
            break
        tried = changed(run, regions, state, fails, rng)
        more = sum(map(len, tried)) - sum(map(len, state))
        rows = None if more > 0 and sum(map(len, tried)) > MOST_CELLS else rows_of(regions, tried)
        if rows is None:
            continue
        lacks, at = _lacking(run, rows, variants, least)
        if lacks < least or (lacks == least and (more <= 0 or rng.random() < 0.2)):
            state, least, fails = tried, lacks, at
    return state, int(least) or int(variants < len(run.variants))


def fewer(run: Run, regions: Sequence[int], state: State) -> State:
    """The same without cells that are not needed."""
    for number, row in enumerate(state):
        for cell in list(row):
            tried = [list(row) for row in state]
            tried[number].remove(cell)
            rows = rows_of(regions, tried)
            if rows is not None and not _lacking(run, rows, len(run.variants), 0)[0]:
                state = tried
    return state


def rows_of(regions: Sequence[int], state: State) -> list[Row] | None:
    """All cells of the regions, the pool at the end of each among them; None where they cannot be made so.

    They are made in the order of their addresses; see `ckplan.planner.arena.cells.parts_of`.
    """
    rows: list[Row] = []
    for whole, cells in zip(regions, state, strict=True):
        rest = whole - sum(size for size, _ in cells)
        if 0 < rest < SMALLEST or rest < 0:
            return None
        row: list[tuple[int, int]] = []
        for size, use in (*cells, *([(rest, POOL)] if rest else [])):
            if row and use == POOL == row[-1][1]:
                row[-1] = (row[-1][0] + size, POOL)
            else:
                row.append((size, use))
        behind = whole
        for size, _ in row[:-1]:
            behind -= size
            if size > _PARTED * behind:
                return None
        rows.append(row)
    return rows


def _lacking(run: Run, rows: Sequence[Row], variants: int, enough: float = float("inf")) -> tuple[float, int]:
    """What `lacking` tells of some variants of a run together, and the step at which the first that fails does."""
    lacks, at = 0.0, -1
    for made, below in run.variants[:variants]:
        if lacks <= enough:
            more, place = lacking(
                made, rows, first=run.first, apart=run.apart, slots=run.slots, below=below, enough=enough - lacks
            )
            lacks += more
            at = run.steps[min(place, len(run.steps) - 1)] if at < 0 <= place else at
    return lacks, at


def changed(run: Run, regions: Sequence[int], state: State, fails: int, rng: random.Random) -> State:
    """The same with a few cells added, moved or left out, above all places of what is alive where room is lacking."""
    new = [list(row) for row in state]
    numbers = range(len(regions))
    for _ in range(rng.choice((1, 1, 2, 3)) if regions else 0):
        row, other = (new[number] for number in rng.choices(numbers, regions, k=2))
        way = rng.random()
        if way < 0.2:
            if row:
                row.pop(rng.randrange(len(row)))
        elif way < 0.38:
            if row:
                cell = row.pop(rng.randrange(len(row)))
                other.insert(rng.randint(0, len(other)), cell)
        elif way < 0.58:
            alike = run.size[rng.choice(run.kept)] * rng.choice((1, 1, 2)) if run.kept and rng.random() < 0.5 else 0
            size = alike or int(regions[new.index(row)] * rng.random() ** 2)
            if size >= SMALLEST:
                place = rng.randint(0, len(row))
                pair = [(size, POOL), (_WALL, WALL)]
                row[place:place] = pair if rng.random() < 0.5 else pair[::-1]
        elif way < 0.65:
            row.insert(rng.randint(0, len(row)), (_WALL, WALL))
        else:
            _keep_place(run, new, row, fails, rng)
    return new


def _keep_place(run: Run, state: State, row: list[tuple[int, int]], fails: int, rng: random.Random) -> None:
    """Add a place to a row, mostly before the first that is free before it is."""
    have = {use for row in state for _, use in row}
    found = [
        buffer
        for buffer in run.kept
        if buffer not in have and (run.born[buffer] <= fails <= run.dies[buffer] or rng.random() < 0.1)
    ]
    if not found:
        return
    buffer = rng.choices(found, [run.size[buffer] ** 0.5 for buffer in found])[0]
    place = rng.randint(0, len(row))
    if rng.random() < 0.6:
        later = (use < 0 or run.dies[use] < run.dies[buffer] for _, use in row)
        place = next((place for place, stops in enumerate(later) if stops), len(row))
    row.insert(place, (run.size[buffer], buffer))

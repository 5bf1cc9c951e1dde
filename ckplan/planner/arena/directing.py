"""Bringing best fit to addresses that were found for all tensors at once, with places and placeholders.

Of what is the first at its address a place is kept. Then the run is walked through: where best fit puts a tensor
elsewhere than it is meant to lie, the rest is given other addresses around it. Only where that does not work is the
tensor sent to its own address, by placeholders. Where something finds no room, or no address, the walk goes back at
once and takes another turn: what goes on without an address piles up. A walk that comes to the end does so after a few
turns, so others are begun rather than this one gone on with.
"""

from __future__ import annotations

import itertools
import random
from bisect import bisect_right
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from ckplan.planner.arena.addresses import Addresses, Asked, Effort, asked_in
from ckplan.planner.arena.cells import POOL, SMALLEST, Row, arranged, make, opened
from ckplan.planner.arena.courses import Held, followed, requests_of
from ckplan.planner.arena.cutting import Run, State, rows_of
from ckplan.planner.arena.gaps import Gaps
from ckplan.planner.arena.steering import directed, fewer

_MOST, _AT_ONCE = 60, 6
"""Placeholders of a walk, before those that are not needed are left out, and of one tensor."""

_AT_FIRST, _TRIALS = 12, (30, 80, 200)
"""Addresses that are looked for at first for each tensor, and when something lies elsewhere, one of these in a walk."""

_PLACES = 30
"""Places that are kept at most: where more are, nothing else can go there before their tensors are made."""

_TURNS = 12
"""How often a walk goes back before another one is begun, with other addresses."""

_MISSES = 4
"""How often addresses for all are not found before the regions are taken for too small."""

_BACK, _REACH = 10, 3
"""Steps that it goes back, and how many more each time that it comes no further."""

_AIMED = 0.5
"""How often it goes back to where something was made that is there, of the later ones rather than of the earlier."""

_WAYS, _ROUNDS = 8, 3
"""Gaps that a tensor is sent to in turn, and tensors of one step."""


@dataclass
class _Walk:
    """One variant of a run, up to some step.

    Attributes:
        asked: what it asks for.
        stages: its requests, step by step.
        rows: the regions in the order of their addresses.
        gaps: the gaps at that step.
        addresses: what lies where, and is to lie where.
        trials: addresses that are looked for when something lies elsewhere.
        place: how many requests there were.
    """

    asked: Asked
    stages: Sequence[Sequence[tuple[int, int]]]
    rows: Sequence[Row]
    gaps: Gaps
    addresses: Addresses
    trials: int
    place: int = 0

    def copy(self) -> _Walk:
        return replace(self, gaps=self.gaps.copy(), addresses=self.addresses.copy())

    def before(self, step: int, held: Sequence[Held]) -> int:
        """Give back and make the placeholders that are due; how many units find no room."""
        lacks = 0
        for key, size in requests_of(step, held):
            if size:
                lacks += self.gaps.take(key, size)
            else:
                self.gaps.give_back(key)
        return lacks

    def walk(self, steps: range, held: Sequence[Held]) -> tuple[int, int, list[int]]:
        """Some steps: units that find no room, of what has no address then, and what led to that.

        Placeholders are made and die before the first of them alone.
        """
        lacks, blamed = self.before(steps.start, held), list[int]()
        for key, size in chain.from_iterable(self.stages[step] for step in steps):
            if size > 0:
                number = self.asked.at[self.place]
                if lack := self.gaps.take(key, size):
                    lacks += lack
                    blamed.append(number)
                elif not self.addresses.lies(number, *self.gaps.given[key], self.trials):
                    blamed.append(number)
            elif size == 0:
                self.gaps.give_back(key)
            else:
                make(self.rows, self.gaps)
            self.place += 1
        homeless = sum(self.asked.size[number] for number in self.addresses.homeless) if blamed else 0
        return lacks, homeless, blamed


_Found = tuple[tuple[int, int], list[Held], list[list[int]], list[_Walk]]
"""What lacks in some steps, the placeholders made before them, for each variant what led to that, and all after."""


def direct(run: Run, regions: Sequence[int], effort: int, rng: random.Random) -> tuple[State, list[Held]] | None:
    """Cells and placeholders with which all requests find room; None if not found.

    Args:
        run: what is asked of the arena.
        regions: units of each but the first, ascending.
        effort: addresses that are looked for and steps that are simulated.
        rng: of the search.
    """
    asked = {id(stages): asked_in(stages) for stages in run.stages}
    left = Effort(effort)
    misses = 0
    while left.left > 0 and misses < _MISSES and not run.is_over:
        begun = _begun(run, regions, asked, left, rng)
        # Before the first placeholder can be made, best fit has its way.
        if begun is None or not _begins_well(run, begun[2], left):
            misses += 1
            continue
        state, rows, walks = begun
        held = _through(run, walks, left, rng)
        if held is not None:
            course = followed(run, state, rows, tuple(held))
            if course.step >= len(run.stages[0]):
                return fewer(run, regions, course)
    return None


def _begun(
    run: Run, regions: Sequence[int], asked: Mapping[int, Asked], effort: Effort, rng: random.Random
) -> tuple[State, list[Row], list[_Walk]] | None:
    """Cells for addresses that were found, and the variants of the run that are unlike each other, before the first."""
    bare = rows_of(regions, [[] for _ in regions])
    assert bare is not None
    usual = asked[id(run.stages[0])]
    spaces = _spaces(run, bare, 0)
    first = Addresses(usual, usual.beside(), spaces, effort, rng)
    large = _large(usual)
    if not first.place(large, _AT_FIRST * len(large)):
        return None
    meant = {number: address for number in large if (address := first.of(number)) is not None}
    offsets = {
        number: (region, address - begin)
        for number, address in meant.items()
        for region, (begin, units) in enumerate(spaces)
        if begin <= address < begin + units
    }
    state, kept = _places(run, regions, usual, offsets)
    rows = rows_of(regions, state)
    assert rows is not None
    trials = rng.choice(_TRIALS)
    walks, seen = [], set[tuple[int, bool, tuple[int, ...]]]()
    for stages, below in zip(run.stages, run.below, strict=True):
        ordered = arranged(rows, below)
        alike = id(stages), not below, tuple(map(id, ordered))
        if alike in seen:
            continue
        seen.add(alike)
        mine = asked[id(stages)]
        number_of = {key: number for number, key in enumerate(mine.key) if key >= 0}
        since = {number_of[buffer] for buffer in kept}
        own = _spaces(run, rows, below)
        addresses = Addresses(mine, mine.beside(since), own, effort, rng)
        for number, (region, offset) in offsets.items():
            same = number if mine is usual else number_of.get(usual.key[number])
            if same is not None:
                addresses.mean(same, own[region][0] + offset)
        addresses.place([number for number in _large(mine) if number not in addresses.meant], trials)
        gaps = opened(ordered, run.first, run.apart, run.slots, first_above=not below)
        walks.append(_Walk(mine, stages, ordered, gaps, addresses, trials))
    return state, rows, walks


def _large(asked: Asked) -> list[int]:
    """What is there with the cells and is given an address."""
    return [
        number
        for number, (size, end) in enumerate(zip(asked.size, asked.end, strict=True))
        if size >= SMALLEST and end > asked.there
    ]


def _spaces(run: Run, rows: Sequence[Row], below: int) -> list[tuple[int, int]]:
    """Address and units of each region as `make` and `opened` have them, but for what is apart in the first."""
    cells = sum(size + 1 for row in rows for size, _ in row)
    found = {-1: (cells + 1 if not below else -run.first - 1) + run.apart}
    address = 0
    for row in arranged(rows, below):
        found[next(number for number, other in enumerate(rows) if other is row)] = address
        address += sum(size for size, _ in row) + 1
    return [
        (found[-1], run.first - run.apart),
        *((found[number], sum(size for size, _ in row)) for number, row in enumerate(rows)),
    ]


def _places(
    run: Run, regions: Sequence[int], asked: Asked, offsets: Mapping[int, tuple[int, int]]
) -> tuple[State, set[int]]:
    """Places for what is the first where it lies, the largest of them, as they can be made; and their buffers."""
    keepable = set(run.kept)
    firsts: list[tuple[int, int, int, int]] = []
    used: list[list[tuple[int, int]]] = [[] for _ in range(len(regions) + 1)]
    for number in sorted(offsets, key=lambda number: asked.begin[number]):
        region, offset = offsets[number]
        size, buffer = asked.size[number], asked.key[number]
        free = all(offset >= end or offset + size <= begin for begin, end in used[region])
        if free and region and buffer in keepable:
            firsts.append((size, region - 1, offset, buffer))
        used[region].append((offset, offset + size))
    chosen = sorted(firsts, reverse=True)[:_PLACES]
    state: State = []
    for region, units in enumerate(regions):
        row = sorted((offset, size, buffer) for size, other, offset, buffer in chosen if other == region)
        while (cells := _cells(row, units)) is None:
            row.remove(min(row, key=lambda place: place[1]))
        state.append(cells)
    return state, {use for cells in state for _, use in cells if use >= 0}


def _cells(places: Sequence[tuple[int, int, int]], units: int) -> list[tuple[int, int]] | None:
    """Places in a region with pools between them; None where they cannot be made."""
    row: list[tuple[int, int]] = []
    reached = 0
    for offset, size, buffer in places:
        if 0 < offset - reached < SMALLEST:
            return None
        row += [(offset - reached, POOL)] if offset > reached else []
        row.append((size, buffer))
        reached = offset + size
    return None if rows_of([units], [row]) is None else row


def _begins_well(run: Run, walks: Sequence[_Walk], effort: Effort) -> bool:
    """Whether everything has room and an address up to the first step before which a placeholder can be made."""
    lacks, _, _, after = _after(walks, range(run.gates[0]), [], [], effort)
    return lacks == (0, 0) or not (lacks[0] or any(walk.addresses.homeless for walk in after))


def _through(run: Run, walks: list[_Walk], effort: Effort, rng: random.Random) -> list[Held] | None:
    """Placeholders with which all requests find room; None if it went back too often, or time is up.

    Steps before which nothing else can be made go with the last one before which it can: what sends a tensor of theirs
    elsewhere is made there.
    """
    held: list[Held] = []
    numbers = itertools.count()
    saved: dict[int, tuple[list[_Walk], int]] = {}
    begins = [0, *run.gates, len(run.stages[0])]
    place = furthest = stuck = turns = 0
    turned = False
    while place < len(begins) - 1:
        if run.is_over:
            return None
        steps = range(begins[place], begins[place + 1])
        if place:
            saved[steps.start] = walks, len(held)
        homeless = sum(len(walk.addresses.homeless) for walk in walks)
        found = _after(walks, steps, held, [], effort)
        if (found[0] != (0, 0) or turned) and place and len(held) < _MOST and place < len(begins) - 2:
            found = _directed_ones(walks, steps, held, found, turned, numbers, effort, rng)
        turned = False
        if found[0][0] or sum(len(walk.addresses.homeless) for walk in found[3]) > homeless:
            stuck = 0 if place > furthest else stuck + 1
            furthest, turns = max(place, furthest), turns + 1
            if turns > _TURNS or effort.left <= 0 or not saved:
                return None
            back = _back(steps.start, stuck, rng.choice(walks), saved, rng)
            step = max((other for other in saved if other <= back), default=min(saved))
            saved = {other: kept for other, kept in saved.items() if other <= step}
            place = bisect_right(run.gates, step)
            walks, count = saved[step]
            held, turned = held[:count], True
            continue
        held, walks = [*held, *found[1]], found[3]
        place += 1
    return held


def _back(step: int, stuck: int, walk: _Walk, saved: Collection[int], rng: random.Random) -> int:
    """The step to go back to: one that made what is there now, or some steps, the more the longer it is stuck."""
    asked = walk.asked
    made = [
        asked.step[number]
        for number, (begin, end) in enumerate(zip(asked.begin, asked.end, strict=True))
        if begin < walk.place <= end and asked.size[number] >= SMALLEST and asked.step[number] in saved
    ]
    if made and rng.random() < _AIMED:
        return max(rng.choices(made, k=2))
    return step - int(rng.random() ** 2 * (_BACK + _REACH * stuck))


def _after(
    walks: Sequence[_Walk],
    steps: range,
    held: Sequence[Held],
    added: list[Held],
    effort: Effort,
    enough: tuple[int, int] | None = None,
) -> _Found:
    """What comes of steps if some placeholders are made before them; not all of it where at least so much lacks."""
    lacks = homeless = 0
    blamed, after = [], []
    for walk in walks:
        if enough is not None and (0, 0) < (lacks, homeless) >= enough:
            break
        walk = walk.copy()
        effort.left -= len(steps)
        found = walk.walk(steps, [*held, *added])
        lacks, homeless = lacks + found[0], homeless + found[1]
        blamed.append(found[2])
        after.append(walk)
    return (lacks, homeless), added, blamed, after


def _directed_ones(
    walks: Sequence[_Walk],
    steps: range,
    held: Sequence[Held],
    found: _Found,
    turned: bool,
    numbers: Iterator[int],
    effort: Effort,
    rng: random.Random,
) -> _Found:
    """The same steps with placeholders that send elsewhere what led to a lack, or, for another turn, anything."""
    for _ in range(_ROUNDS):
        which = next((number for number, blamed in enumerate(found[2]) if blamed), 0)
        walk = walks[which].copy()
        asks = chain.from_iterable(walk.stages[step] for step in steps)
        made = [walk.asked.at[walk.place + at] for at, (_, size) in enumerate(asks) if size >= SMALLEST]
        if not found[2][which] and not (turned and made):
            break
        number = found[2][which][0] if found[2][which] else rng.choice(made)
        walk.before(steps.start, [*held, *found[1]])
        size, meant = walk.asked.size[number], walk.addresses.of(number) if found[2][which] else None
        before = found[1]
        for gap, above in _ways(walk.gaps, size, meant, turned, rng):
            parts = directed(walk.gaps.copy(), size, gap, above=above)
            if not 0 < len(parts) <= _AT_ONCE:
                continue
            added = [*before, *(Held(part, steps.start, steps.stop, next(numbers)) for part in parts)]
            tried = _after(walks, steps, held, added, effort, found[0])
            if tried[0] < found[0] or (turned and tried[0] == found[0] == (0, 0)):
                found = tried
            if tried[0] == (0, 0):
                break
        turned = False
        if found[1] is before or found[0] == (0, 0):
            break
    return found


def _ways(
    gaps: Gaps, size: int, meant: int | None, turned: bool, rng: random.Random
) -> list[tuple[tuple[int, int], bool]]:
    """Gaps that something could go to, and whether to their upper ends: first the one that it is meant for."""

    def holds(gap: tuple[int, int]) -> bool:
        return meant is not None and gap[1] <= meant < gap[1] + gap[0]

    fitting = [gap for gap in gaps.free if gap[0] >= size]
    fitting.sort(key=lambda gap: (not holds(gap), rng.random()))
    ways = []
    for gap in fitting[:_WAYS]:
        upper = holds(gap) and meant != gap[1]
        ways += [(gap, upper), (gap, not upper)]
    if turned:
        rng.shuffle(ways)
    return ways

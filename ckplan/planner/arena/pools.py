"""Pools: an arena whose regions are cut so that the tensors of a run fit into little more than what is alive.

Best fit puts a small tensor that lives long into the middle of the only large gap there is, and then a large one does
not fit on either side; and it hands out a whole gap for what is larger than half of it. So gaps take up to as much as
what is alive, where the same tensors at other addresses would leave almost none.

Two things move them there. An arena that is cut into *pools* of unlike sizes, with walls between, hands out of the
smallest pool that has room, so that small tensors and large ones keep apart by themselves (segregated storage; Wilson
et al., "Dynamic Storage Allocation: A Survey and Critical Review", IWMM 1995). And of a tensor that lives long the
*place* can be kept from the start: no gap fits it better when it is made. Places lie side by side in a region, the one
that is free last first, so that what they leave grows to one gap when the backward pass reads its activations in
reverse. Which cells serve a step is found by trying, in simulation: the step is the same in every run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import chain, groupby

from ckplan.planner.arena.allocations import Allocations, Demand, requests
from ckplan.planner.arena.cells import (
    APART,
    MADE,
    POOL,
    REGION,
    SMALLEST,
    Cell,
    Layout,
    Moment,
    Placeholder,
    parts_of,
    released,
)
from ckplan.planner.arena.courses import Held
from ckplan.planner.arena.cutting import Run, State, climbed, cut, fewer, long_kept, rows_of
from ckplan.planner.arena.directing import direct
from ckplan.planner.arena.regions import DEFAULT, UNIT
from ckplan.planner.arena.steering import steer
from ckplan.planner.problem import Mark

_EFFORT = 2_000_000
"""Requests that are simulated to cut an arena of one size into cells; a simulation takes a microsecond for each."""

_FEWEST, _MOST = 100, 2_000
"""Changes that are tried for one size of the arena, whatever the effort allows."""

_STEERED = 600_000
"""Steps that are simulated in a search for placeholders."""

_DIRECTED = 200_000
"""Addresses that are looked for and steps that are simulated to bring best fit to addresses in one arena."""

_SEARCHES, _NEAR = 6, 3
"""Searches by repair, and how many sizes are near what is enough, and are tried between that and the most."""

_GOAL = 1.1
"""Ratio of what is alive that is enough for an arena with placeholders."""

_SMALL = 400
"""What is smaller than this part of the arena has no place kept."""

_USUAL, _LARGEST = 1.25, 2.0
"""Ratios of what is alive up to which an arena is looked for, first and then."""

_CLOSE = 1 / 64
"""Part of the size to which it is bisected."""

_SIZES, _FEWEST_SIZES, _ROUNDS = 8, 3, 5
"""Sizes of the arena that are tried where bisection ends at more than enough, how many to the end, and how often."""

_BELOW = (1, 2, 3, 9)
"""How many regions may lie below those that follow, besides none."""

_SHORT = 3
"""Steps for which a tensor has to live for its place to be kept."""


def best_pools(
    asked: Allocations,
    before: int = 0,
    seed: int = 0,
    *,
    places: bool = True,
    gates: Sequence[int] | None = None,
    spread: int | None = None,
    apart: int = APART,
    slots: int = 0,
    below: int | None = None,
    enough: int | None = None,
    start: Layout | None = None,
    deadline: float = math.inf,
) -> Layout | None:
    """Cells in which a run goes through that together are as small as were found; None where there are none.

    Bisection over the size of the arena; for each, hill climbing over how its regions are cut, and if that is not
    enough, over placeholders. A simulation of a run of n requests takes O(n log n), and there are at most some
    thousands of them.

    Args:
        asked: the allocations of one run.
        before: number of its steps that come before the cells are there.
        seed: of the search.
        places: whether places may be kept and placeholders made; else there are pools and walls only.
        gates: steps before which a placeholder can be made; None for all of them.
        spread: bytes of a tensor that is there before the run, of which the first one in the arena can be made: first
            regions that are larger have one. None if they are not to be.
        apart: units at the beginning of the first region that are no part of its pool.
        slots: how many slots are the last of that; see `ckplan.planner.arena.slots`.
        below: bytes; an arena that holds less is looked for, with placeholders. None for cells alone.
        enough: bytes that it may hold then; by default a tenth more than is alive.
        start: what nearly does: it is changed a little, or else its size is tried anew.
        deadline: `time.monotonic` after which what was found is taken.
    """
    gates = range(len(asked.steps)) if gates is None else gates
    run = _run(asked, before, gates, apart, slots, places=places, deadline=deadline)
    units = max(_most_alive(made) for made, _ in run.variants)
    alive = max(-(-units // REGION), 2)
    rng = random.Random(seed)
    if below is None:
        best = _by_cells(run, alive, spread, rng)
        if best is None or best.held <= _GOAL * units * UNIT:
            return best
        return _by_fewer_mib(run, range(alive, best.held // DEFAULT.first_region), spread, rng) or best
    if not run.gates:
        return None
    if start is not None:
        return _mended(run, start, spread, rng) or _directed(run, start.held // DEFAULT.first_region, spread, seed)
    goal = int(_GOAL * units) // REGION if enough is None else enough // DEFAULT.first_region
    return _by_placeholders(run, range(alive, -(-below // DEFAULT.first_region)), goal, spread, rng)


def _by_cells(run: Run, alive: int, spread: int | None, rng: random.Random) -> Layout | None:
    """An arena in which a run goes through with cells alone, found by bisection over its MiB."""
    trials = _trials(run)
    for ratio in (_USUAL, _LARGEST):
        low, high, best = alive, max(int(alive * ratio), alive + 1), None
        middle = high
        while low <= high and (best is None or high - low >= _CLOSE * low) and not run.is_over:
            sized = _sized(run, middle, spread)
            state = None if sized is None else cut(*sized, trials, rng)
            if sized is not None and state is not None:
                best, high = _laid_out(*sized, state, []), middle - 1
            elif best is None and middle <= int(alive * ratio) - 2:
                break
            elif best is None:  # the largest cannot be made, or does not do: the next smaller one may
                high = middle - 1
            else:
                low = middle + 1
            middle = high if best is None else (low + high) // 2
        if best is not None:
            return best
    return None


def _by_fewer_mib(run: Run, counts: range, spread: int | None, rng: random.Random) -> Layout | None:
    """The same for the smallest of some numbers of MiB with which a run goes through, if one was found.

    A run can go through in an arena that is smaller than another one in which it does not: what counts is into which
    regions it falls, and those of few suit best. How near a run comes is told by trying for a while: the nearer half is
    gone on with, in turn from where it was and from the start.
    """
    found: Layout | None = None
    width = max(-(-len(counts) // _SIZES), 1)
    buckets = (range(first, min(first + width, counts.stop)) for first in counts[::width])
    sized = {count: _sized(run, count, spread) for count in (min(bucket, key=int.bit_count) for bucket in buckets)}
    left = [(0, count, one, long_kept(*one)) for count, one in sized.items() if one is not None]
    for number in range(_ROUNDS):
        tried = []
        for _, count, one, state in sorted(left, key=lambda entry: entry[1]):
            if run.is_over:
                return found
            start = [[] for _ in one[1]] if number % 2 else state
            reached, lacks = climbed(*one, start, _trials(run), rng)
            if not lacks:
                found = _laid_out(*one, fewer(*one, reached), [])
                break
            tried.append((lacks, count, one, state if number % 2 else reached))
        left = sorted(tried, key=lambda entry: entry[:2])[: max(-(-len(tried) // 2), _FEWEST_SIZES)]
    return found


def _trials(run: Run) -> int:
    """Changes that are tried for one size of the arena."""
    return min(max(_EFFORT // max(len(run.steps), 1), _FEWEST), _MOST)


def _by_placeholders(run: Run, counts: range, goal: int, spread: int | None, rng: random.Random) -> Layout | None:
    """An arena of some number of MiB in which a run goes through with placeholders, if one was found.

    First those are tried that hold what is enough or little less, where the most is more than that: which of them suits
    best is hard to foresee. Then what is between that and the most.
    """
    if goal not in counts:
        return None
    # Those of little less than is enough, too: what counts is into which regions they fall. That is chance, so that the
    # one that is enough is tried twice.
    for count, seed in [(goal, 0), (goal, 1), *((goal - less, 0) for less in range(1, _NEAR))]:
        if count in counts and (found := _directed(run, count, spread, seed)) is not None:
            return found
    best = None
    low, high = goal + 1, counts.stop - 1
    for _ in range(_NEAR):
        if low <= high:
            middle = (low + high) // 2
            found = _directed(run, middle, spread)
            low, high = (middle + 1, high) if found is None else (low, middle - 1)
            best = found or best
    return best or _by_repair(run, counts, goal, spread, rng)


def _directed(run: Run, count: int, spread: int | None, seed: int = 0) -> Layout | None:
    """An arena of a number of MiB in which best fit was brought to addresses for all tensors, if they were found."""
    sized = _sized(run, count, spread)
    found = None if sized is None else direct(*sized, _DIRECTED, random.Random(count + 1000 * seed))
    return None if sized is None or found is None else _laid_out(*sized, *found)


def _by_repair(run: Run, counts: range, goal: int, spread: int | None, rng: random.Random) -> Layout | None:
    """The same, found by repairing what comes furthest."""
    best = None
    for number in range(_SEARCHES):
        if best is not None:
            counts = range(counts.start, best.held // DEFAULT.first_region)
            count = (counts.start + counts.stop) // 2
        elif number < _SEARCHES * 2 // 3:
            count = max(goal - number % _NEAR, counts.start)
        else:
            count = (goal + counts.stop) // 2
        sized = _sized(run, count, spread) if count in counts else None
        if sized is None:
            continue
        start = [[] for _ in sized[1]] if number // _NEAR % 2 else long_kept(*sized)
        found = steer(*sized, start, _STEERED, rng)
        if best is not None and found is None:
            break
        best = best if found is None else _laid_out(*sized, *found)
    return best


def _mended(run: Run, start: Layout, spread: int | None, rng: random.Random) -> Layout | None:
    """The same with other placeholders, in which a run goes through; None if not found."""
    sized = _sized(run, start.held // DEFAULT.first_region, spread)
    if sized is None or not run.gates:
        return None
    state: State = []
    for region in start.regions:
        parts = groupby(region, lambda cell: cell.use)
        row = [(sum(cell.bytes for cell in cells) // UNIT, use) for use, cells in parts]
        state.append(row[:-1] if row[-1][1] == POOL else row)
    held = tuple(
        Held(one.bytes // UNIT, one.begin.step, one.end.step, number) for number, one in enumerate(start.placeholders)
    )
    found = steer(*sized, state, _STEERED, rng, held)
    return None if found is None else _laid_out(*sized, *found)


def _sized(run: Run, count: int, spread: int | None) -> tuple[Run, list[int]] | None:
    """A run in an arena of so many MiB, and units of the regions behind the first; None where it cannot be made."""
    first = (count & -count) * REGION
    if first > REGION and (spread is None or spread > first * UNIT):
        return None
    regions = [REGION << bit for bit in range(count.bit_length()) if count >> bit & 1][1:]
    large = max(SMALLEST, count * REGION // _SMALL)
    return replace(run, first=first, kept=[buffer for buffer in run.kept if run.size[buffer] >= large]), regions


def _laid_out(run: Run, regions: Sequence[int], state: State, held: Sequence[Held]) -> Layout:
    """What was found, in bytes."""
    rows = rows_of(regions, state)
    assert rows is not None
    cells = tuple(tuple(Cell(size * UNIT, use) for size, use in parts_of(row)) for row in rows)
    ordered = sorted(held, key=lambda one: one.begin)
    placeholders = tuple(Placeholder(one.size * UNIT, Moment(one.begin), Moment(one.end)) for one in ordered)
    return Layout(cells, run.first * UNIT, placeholders, run.slots)


def _run(
    asked: Allocations, before: int, gates: Sequence[int], apart: int, slots: int, *, places: bool, deadline: float
) -> Run:
    size = [-(-bytes_ // UNIT) for bytes_ in asked.size]
    end = len(asked.steps)
    born, dies = [end] * len(size), [end] * len(size)
    for number, step in enumerate(asked.steps):
        for buffer in (*step.tensors, *step.outputs):
            born[buffer] = number
        for buffer in step.freed:
            dies[buffer] = number
    later = dict.fromkeys(step for step in gates if step >= before and places)
    kept = [
        buffer
        for buffer, units in enumerate(size)
        if units >= SMALLEST and dies[buffer] - born[buffer] >= _SHORT and born[buffer] in later
    ]
    mine = set(kept)
    usual: list[list[tuple[int, int]]] = []
    early: list[list[tuple[int, int]]] = []
    for number, step in enumerate(asked.steps):
        first = [MADE] if number == before else []
        first += [released(buffer) for buffer in (*step.tensors, *step.outputs) if buffer in mine]
        for stages, way in ((usual, step), (early, _workspace_first(step))):
            asks = requests(replace(asked, steps=(way,)))
            stages.append([*first, *((key, -(-bytes_ // UNIT)) for key, bytes_ in asks)])
    steps = [number for number, stage in enumerate(usual) for _ in stage]
    # Later regions tend to lie below earlier ones, but that is for the C library to say.
    ways = [(usual, 0), *((usual, below) for below in _BELOW)]
    if early != usual:
        ways.append((early, 0))
    return Run(
        variants=[(list(chain.from_iterable(stages)), below) for stages, below in ways],
        size=size,
        born=born,
        dies=dies,
        kept=kept,
        steps=steps,
        first=REGION,
        apart=apart,
        slots=slots,
        gates=[step for step in later if step > before],
        stages=[stages for stages, _ in ways],
        deadline=deadline,
    )


def _workspace_first(step: Demand) -> Demand:
    """The same step with what its kernel works in, and a little more, asked for before its outputs.

    Not of all kernels is it known in which order they ask, nor what they take that is too small to matter. Where it is
    not, a run has to find room either way: what lies a little elsewhere leaves other gaps.
    """
    return step if Mark.OUTPUTS in step.pieces else replace(step, pieces=(UNIT, *step.work, Mark.OUTPUTS))


def _most_alive(made: Sequence[tuple[int, int]]) -> int:
    """Most units that are handed out at once."""
    alive: dict[int, int] = {}
    live = most = 0
    for key, size in made:
        if size < 0 or not (size or key in alive):
            continue
        live += size or -alive[key]
        alive[key] = size
        most = max(most, live)
    return most

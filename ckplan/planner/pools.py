"""Pools: an arena whose regions are cut so that the tensors of a run fit into little more than what is alive.

Best fit puts a small tensor that lives long into the middle of the only large gap there is, and then a large one does
not fit on either side: gaps take up to as much as what is alive. In an arena that is cut into pools of unlike sizes, it
hands out of the smallest pool that has room, so that small tensors and large ones, and those that live long, keep apart
by themselves. (Segregated storage; Wilson et al., "Dynamic Storage Allocation: A Survey and Critical Review", IWMM
1995.) Which pools serve a step is found by trying, in simulation: the step is the same in every run.

Regions are powers of two from the second one on, each larger than the one before, so that their sum can be any even
number of first regions beside the first: what is held is that sum, in the first run and in all later ones.
"""

from __future__ import annotations

import random
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckplan.planner.allocations import Allocations, Demand, requests
from ckplan.planner.arena import DEFAULT, UNIT
from ckplan.planner.problem import OUTPUTS

_Runs = Sequence[tuple[Sequence[tuple[int, int]], bool]]
"""Requests of runs, key and units of each, and whether later regions lie below earlier ones."""

Pools = tuple[tuple[int, ...], ...]
"""Bytes of the pools of each region behind the first, which is one pool, in ascending order; walls between pools are
not counted."""

WALL = 20 * 2**10
"""Bytes of what keeps two pools of a region apart."""

_EFFORT = 2_000_000
"""Requests that are simulated for one size of the arena; a simulation takes a microsecond for each."""

_FEWEST, _MOST = 60, 2_000
"""Simulations for one size of the arena, whatever the effort allows."""

_LEVELS = 6
"""Sizes of the arena that are tried."""

_LARGEST = 2.0
"""Ratio of what is alive up to which an arena is looked for."""

_POOLS = 5
"""Pools of one region, at most: each takes a few nodes of the file."""

_REGION = DEFAULT.first_region // UNIT
_WALL = WALL // UNIT
_SMALLEST = 2 * _WALL
"""Units of the smallest pool: no small tensor that is made before the pools are may fall into a smaller gap."""

_POOLS_MADE = (-1, -1)
"""Stands among the requests of a run where the pools are there: what is made before them lies in the first region."""


def held_in_pools(pools: Pools) -> int:
    """Bytes of all regions."""
    return DEFAULT.first_region + sum(sum(region) + (len(region) - 1) * WALL for region in pools)


def best_pools(asked: Allocations, before: int = 0, seed: int = 0) -> Pools | None:
    """Pools in which a run goes through that together are as small as were found; None where there are none.

    Bisection over the size of the arena; for each, hill climbing over where its regions are cut. A simulation of a run
    of n requests takes O(n log n), and there are at most some thousands of them.

    Args:
        asked: the allocations of one run.
        before: number of its steps that come before the pools are there.
        seed: of the search.
    """
    usual = _requests(asked, before)
    early = _requests(replace(asked, steps=tuple(map(_workspace_first, asked.steps))), before)
    # Later regions tend to lie below earlier ones, but that is for the system to say.
    runs: _Runs = ((usual, True), (usual, False), (early, True))
    least = -(-max(_most_alive(usual), _most_alive(early)) // _REGION)
    rng = random.Random(seed)
    trials = min(max(_EFFORT // (len(runs) * max(len(usual), 1)), _FEWEST), _MOST)
    best: Pools | None = None
    # In pairs of first regions: the first one stands, and the sum of the others is even.
    low, high = (least - 1) // 2, max(int(least * _LARGEST) // 2, least // 2 + 1)
    for level in range(_LEVELS):
        if low >= high:
            break
        middle = high if level == 0 else (low + high) // 2
        found = _climb(runs, _regions(2 * middle), trials, rng)
        if found is None and level == 0:
            return None
        if found is None:
            low = middle + 1
        else:
            best, high = tuple(tuple(size * UNIT for size in region) for region in found), middle
    return best


def _requests(asked: Allocations, before: int) -> list[tuple[int, int]]:
    """What a run asks for as key and units, and where the pools are made."""
    parts = (replace(asked, steps=asked.steps[:before]), replace(asked, steps=asked.steps[before:]))
    first, then = ([(key, -(-size // UNIT)) for key, size in requests(part)] for part in parts)
    return [*first, _POOLS_MADE, *then]


def _workspace_first(step: Demand) -> Demand:
    """The same step with what its kernel works in, and a little more, asked for before its outputs.

    Not of all kernels is it known in which order they ask, nor what they take that is too small to matter. A run has
    to find room either way: what lies a little elsewhere leaves other gaps.
    """
    if OUTPUTS in step.pieces:
        return step
    pieces = step.pieces or ((step.workspace,) if step.workspace else ())
    return replace(step, pieces=(UNIT, *pieces, OUTPUTS))


def _regions(count: int) -> list[int]:
    """Units of regions that are distinct powers of two and together as large as so many first regions, ascending."""
    return [_REGION << bit for bit in range(count.bit_length()) if count >> bit & 1]


def _climb(runs: _Runs, regions: Sequence[int], trials: int, rng: random.Random) -> list[tuple[int, ...]] | None:
    """Cuts of regions with which all requests find room, found by changing the best cuts so far; None if not found."""
    best: list[tuple[int, ...]] = [(size,) for size in regions]
    least = _all_lacking(runs, best)
    for trial in range(trials):
        if not least:
            return best
        tried = [_cut(size, rng) for size in regions] if trial < trials // 5 else list(_changed(best, rng))
        lacks = _all_lacking(runs, tried, least)
        if lacks <= least:
            best, least = tried, lacks
    return None if least else best


def _all_lacking(runs: _Runs, regions: Sequence[tuple[int, ...]], enough: float = float("inf")) -> int:
    """What `lacking` tells of several runs together."""
    lacks = 0
    for made, later_below in runs:
        ordered = [size for region in (regions[::-1] if later_below else regions) for size in region]
        if lacks <= enough:
            lacks += lacking(made, ordered, first_above=later_below, enough=enough)
    return lacks


def _cut(size: int, rng: random.Random) -> tuple[int, ...]:
    """A region in up to four pools."""
    cuts = sorted(rng.random() ** 2 for _ in range(rng.randint(0, 3)))
    return _fitting(size, [int(size * (after - before)) for before, after in zip([0, *cuts], [*cuts, 1], strict=True)])


def _changed(regions: Sequence[tuple[int, ...]], rng: random.Random) -> Iterator[tuple[int, ...]]:
    """The same with one region, the larger the likelier, cut otherwise."""
    chosen = rng.choices(range(len(regions)), [sum(region) for region in regions])[0] if regions else -1
    for number, region in enumerate(regions):
        if number != chosen:
            yield region
            continue
        whole = sum(region) + (len(region) - 1) * _WALL
        pools, way = list(region), rng.random()
        place = rng.randrange(len(pools))
        if way < 0.6 and len(pools) > 1:
            other = rng.randrange(len(pools))
            moved = int(pools[place] * rng.random() ** 2)
            pools[place] -= moved
            pools[other] += moved
        elif way < 0.8 and len(pools) > 1:
            pools.pop(place)
        else:
            part = int(pools[place] * rng.random())
            pools[place] -= part
            pools.append(part)
        yield _fitting(whole, pools)


def _fitting(whole: int, pools: Sequence[int]) -> tuple[int, ...]:
    """Pools that take up a region with the walls between them, in ascending order; the largest gives or takes."""
    kept = sorted(size for size in pools if size >= _SMALLEST)[-_POOLS:]
    rest = whole - sum(kept[:-1]) - max(len(kept) - 1, 0) * _WALL
    if len(kept) < 2 or rest < kept[-2]:
        return (whole,)
    return (*kept[:-1], rest)


def _most_alive(made: Sequence[tuple[int, int]]) -> int:
    """Most units that are handed out at once."""
    alive: dict[int, int] = {}
    live = most = 0
    for key, size in made:
        if key == _POOLS_MADE[0]:
            continue
        live += size or -alive[key]
        alive[key] = size
        most = max(most, live)
    return most


def lacking(
    made: Sequence[tuple[int, int]], pools: Sequence[int], *, first_above: bool = True, enough: float = float("inf")
) -> int:
    """How many units too short the largest gaps are for the requests that find no room; 0 if all do.

    The rules are those of `ckplan.planner.arena.Arena` with regions that are there already; what finds no room is left
    out.

    Args:
        made: key and units of each request in order, no units where it is given back; and `_POOLS_MADE`.
        pools: units of each pool but the first region, in the order of their addresses.
        first_above: whether the first region lies above all of them, not below.
        enough: where so many lack, no more are counted.
    """
    waste = DEFAULT.waste // UNIT
    free: list[tuple[int, int]] = []  # size and address, sorted
    begins: dict[int, int] = {}  # size of each gap, by address
    ends: dict[int, int] = {}  # address of each gap, by where it ends
    address = sum(pools) + len(pools) if first_above else -_REGION - 1
    free.append((_REGION, address))
    begins[address], ends[address + _REGION] = _REGION, address
    given: dict[int, tuple[int, int]] = {}
    lacks = 0
    for key, size in made:
        if size < 0:
            address = 0
            for whole in pools:
                insort(free, (whole, address))
                begins[address], ends[address + whole] = whole, address
                address += whole + 1
        elif size:
            position = bisect_left(free, (size, -1))
            if position == len(free):
                lacks += size - (free[-1][0] if free else 0)
                if lacks > enough:
                    break
                continue
            there, address = free.pop(position)
            del begins[address], ends[address + there]
            if there >= 2 * size or there - size >= waste:
                rest, behind = there - size, address + size
                insort(free, (rest, behind))
                begins[behind], ends[behind + rest] = rest, behind
                there = size
            given[key] = (address, there)
        elif key in given:
            address, there = given.pop(key)
            behind = address + there
            if behind in begins:
                more = begins.pop(behind)
                del ends[behind + more], free[bisect_left(free, (more, behind))]
                there += more
            if address in ends:
                before = ends.pop(address)
                more = address - before
                del begins[before], free[bisect_left(free, (more, before))]
                there, address = there + more, before
            begins[address], ends[address + there] = there, address
            insort(free, (there, address))
    return lacks

"""Pools: what finds room in them finds room in the arena's own model, and they are close to what is alive."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace

import pytest

from ckplan.planner.allocations import Allocations, Demand, requests
from ckplan.planner.arena import UNIT, Arena
from ckplan.planner.cells import MADE, POOL, WALL, WALL_BYTES, Regions, held_in, lacking, released
from ckplan.planner.pools import best_pools

MIB = 2**20
REGION = MIB // UNIT


def random_run(seed: int) -> Allocations:
    """Tensors of a forward pass, freed in reverse, with outputs that live to the end between them."""
    rng = random.Random(seed)
    size: list[int] = []
    steps: list[Demand] = []
    kept: list[int] = []
    for _ in range(rng.randint(3, 12)):
        size += [rng.randint(1, 40) * 64 * 2**10, rng.randint(1, 30) * 64 * 2**10]
        kept.append(len(size) - 2)
        steps.append(Demand((len(size) - 2, len(size) - 1), (), rng.choice((0, 2**18)), (len(size) - 1,)))
    for buffer in reversed(kept):
        size.append(rng.randint(1, 2000) * 10)
        steps.append(Demand((), (len(size) - 1,), 0, (buffer,)))
    return Allocations(tuple(size), tuple(steps))


def in_units(asked: Allocations) -> list[tuple[int, int]]:
    return [(key, -(-size // UNIT)) for key, size in requests(asked)]


def in_cells(asked: Allocations, regions: Regions) -> list[tuple[int, int]]:
    """The requests of a run whose regions are cut, with what is given back of places that are kept."""
    kept = {cell.use for region in regions for cell in region}
    made = [MADE]
    for step in asked.steps:
        made += [released(buffer) for buffer in (*step.tensors, *step.outputs) if buffer in kept]
        made += in_units(replace(asked, steps=(step,)))
    return made


def rows_of(regions: Regions) -> list[list[tuple[int, int]]]:
    """The cells of the regions, those that are made in parts as one."""
    rows = []
    for region in regions[::-1]:
        together = itertools.groupby(region, lambda cell: cell.use)
        rows.append([(sum(cell.bytes for cell in cells) // UNIT, use) for use, cells in together])
    return rows


@pytest.mark.parametrize("seed", range(12))
def test_a_run_that_finds_room_in_regions_does_not_let_the_arena_grow(seed: int) -> None:
    """The arena's own model, its regions made by reservations, says the same as the quick one."""
    asked = random_run(seed)
    for regions in ((2, 4, 8), (2, 16), (4, 8, 16), (32,), (2, 4), (8,)):
        arena = Arena()
        arena.allocate(-5, UNIT)  # takes the first region, and the gap behind it
        arena.allocate(-6, MIB - UNIT)
        for number, region in enumerate(regions):
            arena.allocate(-10 - number, region * MIB)
        assert arena.held == (1 + sum(regions)) * MIB
        for key in (-5, -6, *(-10 - number for number in range(len(regions)))):
            arena.free(key)
        before = arena.held
        for key, size in requests(asked):
            if size:
                arena.allocate(key, size)
            else:
                arena.free(key)
        rows = [[(region * REGION, POOL)] for region in reversed(regions)]
        assert (lacking([MADE, *in_units(asked)], rows)[0] == 0) == (arena.held == before)


@pytest.mark.parametrize("seed", range(12))
def test_pools_hold_a_run_and_little_more(seed: int) -> None:
    asked = random_run(seed)
    pools = best_pools(asked)
    assert pools is not None
    wholes = [sum(cell.bytes for cell in region) for region in pools]
    assert wholes == sorted(set(wholes))
    assert all(whole.bit_count() == 1 and whole >= 2 * MIB for whole in wholes)
    assert lacking(in_cells(asked, pools), rows_of(pools)) == (0, -1)
    alive = {-1: 0}
    most = 0
    for key, size in requests(asked):
        alive[key] = size
        most = max(most, sum(alive.values()))
    assert most <= held_in(pools) <= 1.25 * most + 2 * MIB


def test_pools_keep_apart_what_one_region_does_not() -> None:
    """Small tensors that stay lie between large ones that go: the next larger one fits nowhere, but in a pool."""
    size = [*[2 * MIB, 2**18] * 5, 3 * MIB, 3 * MIB, 3 * MIB]
    pairs = range(0, 10, 2)
    steps = [Demand((large,), (large + 1,), 0, ()) for large in pairs]
    steps.append(Demand((), (), 0, tuple(pairs)))
    steps.append(Demand((10, 11, 12), (), 0, (10, 11, 12)))
    asked = Allocations(tuple(size), tuple(steps))
    assert lacking([MADE, *in_units(asked)], [[(12 * REGION - 1, POOL)]])[0] > 0
    pools = best_pools(asked)
    assert pools is not None
    assert held_in(pools) <= 13 * MIB


def test_what_is_made_before_the_pools_lies_in_the_first_region() -> None:
    row = [(REGION, POOL)]
    assert lacking([(0, 2), MADE, (1, REGION)], [row]) == (0, -1)
    assert lacking([(0, REGION), MADE, (1, REGION)], [row]) == (0, -1)
    assert lacking([(0, REGION + 1), MADE], [[(2 * REGION, POOL)]]) == (1, 0)


def test_a_place_that_is_kept_is_where_its_buffer_lies() -> None:
    """Best fit would put the small tensor that stays into the middle: then the second large one finds no room."""
    run = [MADE, (1, 3), released(2), (2, 1), (1, 0), (3, 6)]
    assert lacking(run, [[(7, POOL)]], first_above=False, enough=100)[0] == 0  # the first region takes all
    small = [(0, REGION), *run]
    assert lacking(small, [[(7, POOL)]])[0] == 3
    assert lacking(small, [[(1, 2), (6, POOL)]]) == (0, -1)


@pytest.mark.parametrize("seed", range(12))
def test_cells_can_be_made_one_after_the_other(seed: int) -> None:
    """The arena cuts a gap only for what is at most half of it: the cells of a region lie where they are meant to."""
    pools = best_pools(random_run(seed))
    assert pools is not None
    for region in pools:
        sizes = [cell.bytes for cell in region]
        for place, size in enumerate(sizes[:-1]):
            assert size <= sum(sizes[place + 1 :])
        assert all((cell.bytes == WALL_BYTES) == (cell.use == WALL) for cell in region)

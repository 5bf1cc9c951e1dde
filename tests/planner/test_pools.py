"""Pools: what finds room in them finds room in the arena's own model, and they are close to what is alive."""

from __future__ import annotations

import random

import pytest

from ckplan.planner.allocations import Allocations, Demand, requests
from ckplan.planner.arena import UNIT, Arena
from ckplan.planner.pools import WALL, best_pools, held_in_pools, lacking

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
        pools = [region * REGION for region in reversed(regions)]
        assert (lacking([(-1, -1), *in_units(asked)], pools) == 0) == (arena.held == before)


@pytest.mark.parametrize("seed", range(12))
def test_pools_hold_a_run_and_little_more(seed: int) -> None:
    asked = random_run(seed)
    pools = best_pools(asked)
    assert pools is not None
    assert all(list(region) == sorted(region) for region in pools)
    wholes = [sum(region) + (len(region) - 1) * WALL for region in pools]
    assert wholes == sorted(set(wholes))
    assert all(whole.bit_count() == 1 and whole >= 2 * MIB for whole in wholes)
    ordered = [size // UNIT for region in pools[::-1] for size in region]
    assert lacking([(-1, -1), *in_units(asked)], ordered) == 0
    alive = {-1: 0}
    most = 0
    for key, size in requests(asked):
        alive[key] = size
        most = max(most, sum(alive.values()))
    assert most <= held_in_pools(pools) <= 1.25 * most + 2 * MIB


def test_pools_keep_apart_what_one_region_does_not() -> None:
    """Small tensors that stay lie between large ones that go: the next larger one fits nowhere, but in a pool."""
    size = [*[2 * MIB, 2**18] * 5, 3 * MIB, 3 * MIB, 3 * MIB]
    pairs = range(0, 10, 2)
    steps = [Demand((large,), (large + 1,), 0, ()) for large in pairs]
    steps.append(Demand((), (), 0, tuple(pairs)))
    steps.append(Demand((10, 11, 12), (), 0, (10, 11, 12)))
    asked = Allocations(tuple(size), tuple(steps))
    assert lacking([(-1, -1), *in_units(asked)], [12 * REGION - 1]) > 0
    pools = best_pools(asked)
    assert pools is not None
    assert held_in_pools(pools) <= 13 * MIB


def test_what_is_made_before_the_pools_lies_in_the_first_region() -> None:
    made = [(0, 2), (-1, -1), (1, REGION)]
    assert lacking(made, [REGION]) == 0
    assert lacking([(0, REGION), (-1, -1), (1, REGION)], [REGION]) == 0
    assert lacking([(0, REGION + 1), (-1, -1)], [2 * REGION]) == 1

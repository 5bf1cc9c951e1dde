"""Pools: what finds room in them finds room in the arena's own model, and they are close to what is alive."""

from __future__ import annotations

import itertools
import random
from dataclasses import replace
from types import SimpleNamespace

import pytest

from ckplan.planner.arena import cutting, directing
from ckplan.planner.arena import pools as pools_of_arena
from ckplan.planner.arena.allocations import Allocations, Demand, requests
from ckplan.planner.arena.cells import APART, MADE, POOL, SPARE, WALL, WALL_BYTES, Layout, Regions, lacking, released
from ckplan.planner.arena.pools import best_pools
from ckplan.planner.arena.regions import UNIT, Arena
from ckplan.planner.arena.slots import SLOT, slots_for, slots_taken

MIB = 2**20
REGION = MIB // UNIT
ROOM = REGION - APART


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


def long_run(seed: int) -> Allocations:
    """Tensors of a long forward pass, freed in reverse, with as large ones that live shortly beside them."""
    rng = random.Random(seed)
    size: list[int] = []
    steps: list[Demand] = []
    for _ in range(25):
        size += [rng.randint(1, 40) * 64 * 2**10, rng.randint(1, 30) * 64 * 2**10]
        steps.append(Demand((len(size) - 2, len(size) - 1), (), rng.choice((0, 2**18)), (len(size) - 1,)))
    for buffer in range(48, -1, -2):
        size += [rng.randint(1, 2000) * 10, size[buffer]]
        steps.append(Demand((len(size) - 1,), (len(size) - 2,), 0, (buffer, len(size) - 1)))
    return Allocations(tuple(size), tuple(steps))


def in_units(asked: Allocations) -> list[tuple[int, int]]:
    return [(key, -(-size // UNIT)) for key, size in requests(asked)]


def in_layout(asked: Allocations, layout: Layout) -> list[tuple[int, int]]:
    """The requests of a run in a layout, with what is given back of places that are kept, and its placeholders."""
    kept = {cell.use for region in layout.regions for cell in region}
    made = [MADE]
    for number, step in enumerate(asked.steps):
        made += [(-1000 - place, 0) for place, one in enumerate(layout.placeholders) if one.end.step == number]
        for place, one in enumerate(layout.placeholders):
            if one.begin.step == number:
                made.append((-1000 - place, one.bytes // UNIT))
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


@pytest.mark.parametrize("seed", range(6))
def test_pools_hold_a_run_and_little_more(seed: int) -> None:
    asked = random_run(seed)
    pools = best_pools(asked, spread=UNIT)
    assert pools is not None
    wholes = [sum(cell.bytes for cell in region) for region in pools.regions]
    assert [pools.first, *wholes] == sorted({pools.first, *wholes})
    assert all(whole.bit_count() == 1 and whole >= MIB for whole in (pools.first, *wholes))
    rows = rows_of(pools.regions)
    assert lacking(in_layout(asked, pools), rows, first=pools.first // UNIT) == (0, -1)
    alive = {-1: 0}
    most = 0
    for key, size in requests(asked):
        alive[key] = size
        most = max(most, sum(alive.values()))
    assert most <= pools.held <= 1.2 * most + MIB


@pytest.mark.parametrize("seed", [0, 5, 8])
def test_placeholders_hold_a_run_in_less_than_cells_alone(seed: int) -> None:
    asked = random_run(seed)
    cells = best_pools(asked, spread=UNIT)
    assert cells is not None
    assert not cells.placeholders
    less = best_pools(asked, spread=UNIT, below=cells.held, enough=cells.held - MIB)
    assert less is not None
    assert less.held < cells.held
    assert less.placeholders
    rows, first = rows_of(less.regions), less.first // UNIT
    assert lacking(in_layout(asked, less), rows, first=first) == (0, -1)
    assert lacking(in_layout(asked, replace(less, placeholders=())), rows, first=first)[0] > 0


@pytest.mark.parametrize("less", [False, True])
def test_a_search_ends_when_its_time_is_up(less: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """By a clock that counts how often it is looked at: each search looks at it often, and soon ends by it."""
    asked = random_run(0)
    cells = best_pools(asked, spread=UNIT)
    assert cells is not None
    below = {"below": cells.held, "enough": cells.held - MIB} if less else {}
    found = best_pools(asked, spread=UNIT, **below)
    looks = itertools.count()
    monkeypatch.setattr(cutting, "time", SimpleNamespace(monotonic=lambda: next(looks)))
    assert best_pools(asked, spread=UNIT, **below, deadline=10**9) == found
    all_of_it = next(looks)
    assert all_of_it > 20
    for share in (0.0, 0.1, 0.5, 0.9):
        looks = itertools.count()
        tried = best_pools(asked, spread=UNIT, **below, deadline=share * all_of_it)
        assert next(looks) <= share * all_of_it + 20
        if tried is not None:
            rows = rows_of(tried.regions)
            assert lacking(in_layout(asked, tried), rows, first=tried.first // UNIT) == (0, -1)
            assert found is not None
            assert tried.held >= found.held
        else:
            assert share < 0.9 or less


@pytest.mark.parametrize("seed", [3, 8, 18])
def test_sizes_are_tried_that_bisection_passes_over(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = random_run(seed)
    tried = best_pools(asked, spread=UNIT)
    monkeypatch.setattr(pools_of_arena, "_ROUNDS", 0)
    bisected = best_pools(asked, spread=UNIT)
    assert tried is not None
    assert bisected is not None
    assert tried.held < bisected.held
    rows, first = rows_of(tried.regions), tried.first // UNIT
    assert lacking(in_layout(asked, tried), rows, first=first) == (0, -1)


def test_a_first_region_of_more_than_a_mib_needs_a_tensor_to_be_made_of() -> None:
    asked = random_run(6)
    with_one, without = best_pools(asked, spread=UNIT), best_pools(asked)
    assert with_one is not None
    assert without is not None
    assert with_one.first == 2 * MIB
    assert without.first == MIB


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
    assert pools.held <= 13 * MIB


def test_what_is_made_before_the_pools_lies_in_the_first_region() -> None:
    row = [(REGION, POOL)]
    assert lacking([(0, 2), MADE, (1, REGION)], [row]) == (0, -1)
    assert lacking([(0, ROOM), MADE, (1, REGION)], [row]) == (0, -1)
    assert lacking([(0, ROOM + 1), MADE], [[(2 * REGION, POOL)]]) == (1, 0)


def test_what_is_small_and_lives_long_lies_in_slots() -> None:
    """The loss would lie in the middle of the only gap that is large enough for what is made next."""
    row = [(REGION, POOL)]
    run = [MADE, (0, REGION // 2), (1, 1), (2, REGION // 4), (0, 0), (2, 0), (3, REGION)]
    full = [(9, ROOM), (8, SPARE), *run]
    assert lacking(full, [row])[0] > 0
    full[0] = (9, ROOM - slots_taken(3))
    assert lacking(full, [row], apart=APART + slots_taken(3), slots=3) == (0, -1)
    assert lacking([(7, SLOT), (6, SLOT), (5, SLOT), *full], [row], apart=APART + slots_taken(3), slots=3)[0] > 0


def test_there_are_as_many_slots_as_what_is_small_takes() -> None:
    def slots(large: int, small: int) -> int:
        sizes = (large * UNIT, *[UNIT] * small, *[UNIT * (SLOT + 1)] * 50)
        last = len(sizes) - 1
        step = Demand(tuple(range(last)), (last,), 0, tuple(range(last)))
        return slots_for(Allocations(sizes, (step,)))

    assert slots(2000 * REGION, 90) == 3
    assert slots(2000 * REGION, 12) == 0  # there is room beside shapes
    assert slots(1, 90) == 1  # hardly anything is alive but that


def test_a_place_that_is_kept_is_where_its_buffer_lies() -> None:
    """Best fit would put the small tensor that stays into the middle: then the second large one finds no room."""
    run = [MADE, (1, 3), released(2), (2, 1), (1, 0), (3, 6)]
    assert lacking(run, [[(7, POOL)]], below=9, enough=100)[0] == 0  # the first region takes all
    small = [(0, ROOM), (7, SPARE), *run]
    assert lacking(small, [[(7, POOL)]])[0] == 3
    assert lacking(small, [[(1, 2), (6, POOL)]]) == (0, -1)


@pytest.mark.parametrize("seed", range(6))
def test_cells_can_be_made_one_after_the_other(seed: int) -> None:
    """The arena cuts a gap only for what is at most half of it: the cells of a region lie where they are meant to."""
    pools = best_pools(random_run(seed))
    assert pools is not None
    for region in pools.regions:
        sizes = [cell.bytes for cell in region]
        for place, size in enumerate(sizes[:-1]):
            assert size <= sum(sizes[place + 1 :])
        assert all((cell.bytes == WALL_BYTES) == (cell.use == WALL) for cell in region)


@pytest.mark.parametrize(("seed", "size"), [(6, 38), (7, 40)])
def test_best_fit_is_brought_to_addresses_that_were_found_for_all(
    seed: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Little more than is alive holds a long run, with no search for placeholders by repair."""
    monkeypatch.setattr(pools_of_arena, "_SEARCHES", 0)
    asked = long_run(seed)
    found = best_pools(asked, spread=UNIT, below=(size + 1) * MIB, enough=size * MIB)
    assert found is not None
    assert found.held <= size * MIB
    assert found.placeholders
    rows, first = rows_of(found.regions), found.first // UNIT
    for below in range(4):
        assert lacking(in_layout(asked, found), rows, first=first, below=below) == (0, -1)
    assert lacking(in_layout(asked, replace(found, placeholders=())), rows, first=first)[0] > 0


@pytest.mark.parametrize(("seed", "every", "size"), [(0, 4, 38), (0, 3, 38)])
def test_what_is_made_where_no_placeholder_can_be_is_sent_elsewhere_before(
    seed: int, every: int, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Best fit is brought to addresses where placeholders can be made before one step of several only."""
    monkeypatch.setattr(pools_of_arena, "_SEARCHES", 0)
    asked = long_run(seed)
    gates = range(1, len(asked.steps), every)
    found = best_pools(asked, spread=UNIT, below=(size + 1) * MIB, enough=size * MIB, gates=gates)
    assert found is not None
    assert found.held <= size * MIB
    assert {one.begin.step for one in found.placeholders} <= set(gates)
    rows, first = rows_of(found.regions), found.first // UNIT
    for below in range(4):
        assert lacking(in_layout(asked, found), rows, first=first, below=below) == (0, -1)


def test_a_run_that_goes_astray_before_the_first_placeholder_is_not_walked_through(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Best fit puts the first tensor where the last one has to lie, and no placeholder can help: they are given up."""
    monkeypatch.setattr(pools_of_arena, "_SEARCHES", 0)
    walked = []
    monkeypatch.setattr(directing, "_through", lambda *_: walked.append(1))
    size = (3 * MIB + MIB // 8, *[6 * MIB + MIB // 4] * 3)  # of 16, 8, 2 and 1 MiB the first one takes a part of 8
    steps = [Demand((buffer,), (), 0, ()) for buffer in range(4)]
    asked = Allocations(size, (*steps, *(Demand((), (), 0, (buffer,)) for buffer in range(4))))
    assert best_pools(asked, spread=UNIT, below=28 * MIB, enough=27 * MIB, gates=range(5, 8)) is None
    assert not walked

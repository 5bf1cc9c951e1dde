"""The model of onnxruntime's arena, on allocations whose outcome can be told by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ckplan.planner.arena.regions import UNIT, Arena, ArenaFullError, ArenaSettings

MIB = 2**20


def test_regions_double_until_an_allocation_fits() -> None:
    arena = Arena()
    arena.allocate(0, 4 * MIB)
    assert arena.held == 4 * MIB  # 1 MiB doubled twice
    arena.allocate(1, 4 * MIB)
    arena.allocate(2, 4 * MIB)
    assert arena.held == (4 + 4 + 8) * MIB  # a size that fitted at once is doubled for the next region


def test_a_chunk_is_cut_only_if_it_is_twice_as_large() -> None:
    arena = Arena()
    arena.allocate(0, 5 * MIB)
    assert arena.in_use == arena.held == 8 * MIB
    arena.free(0)
    arena.allocate(1, 4 * MIB)
    assert arena.in_use == 4 * MIB


def test_a_chunk_that_would_waste_too_much_is_cut() -> None:
    arena = Arena(ArenaSettings(first_region=8 * MIB, waste=UNIT))
    arena.allocate(0, 5 * MIB)
    arena.allocate(1, 3 * MIB)
    assert arena.in_use == arena.held == 8 * MIB


def test_sizes_are_rounded_up() -> None:
    arena = Arena(ArenaSettings(same_as_requested=True))
    arena.allocate(0, 1)
    arena.allocate(1, UNIT + 1)
    arena.allocate(2, 0)
    assert arena.in_use == arena.held == 3 * UNIT


def test_free_neighbours_are_joined() -> None:
    arena = Arena(ArenaSettings(first_region=4 * MIB, waste=UNIT))
    for key in range(4):
        arena.allocate(key, MIB)
    for key in (1, 3, 2, 0):
        arena.free(key)
    arena.allocate(9, 4 * MIB)
    assert arena.held == 4 * MIB


def test_chunks_of_two_regions_are_not_joined() -> None:
    arena = Arena(ArenaSettings(same_as_requested=True))
    arena.allocate(0, MIB)
    arena.allocate(1, MIB)
    arena.free(0)
    arena.free(1)
    arena.allocate(2, 2 * MIB)
    assert arena.held == 4 * MIB


def test_the_smallest_chunk_that_fits_is_taken() -> None:
    arena = Arena(ArenaSettings(same_as_requested=True))
    arena.allocate(0, 3 * MIB)
    arena.allocate(1, 2 * MIB)
    arena.free(0)
    arena.free(1)
    arena.allocate(2, 2 * MIB)
    arena.allocate(3, 3 * MIB)
    assert arena.held == 5 * MIB


def test_of_two_chunks_of_one_size_the_lower_is_taken() -> None:
    """Handed out of the first region, a tensor leaves the second one whole for a larger tensor."""
    held = {}
    for below in (0, 1):
        arena = Arena(ArenaSettings(first_region=4 * UNIT), below=below)
        for key in (0, 1):
            arena.allocate(key, 4 * UNIT)
        assert arena.held == 12 * UNIT  # 4 and 8, of which half is free
        arena.free(0)
        arena.allocate(2, 4 * UNIT)
        arena.free(1)
        arena.allocate(3, 8 * UNIT)
        held[below] = arena.held
    assert held == {0: 28 * UNIT, 1: 12 * UNIT}


def test_a_limit_is_kept() -> None:
    arena = Arena(ArenaSettings(limit=3 * MIB))
    arena.allocate(0, MIB)
    arena.allocate(1, 2 * MIB)
    assert arena.held == 3 * MIB
    with pytest.raises(ArenaFullError):
        arena.allocate(2, 1)
    arena.free(1)
    arena.allocate(2, 2 * MIB)
    assert arena.in_use == arena.held == 3 * MIB


def test_only_what_is_handed_out_is_touched() -> None:
    arena = Arena()
    arena.allocate(0, 5 * MIB)
    assert (arena.held, arena.touched) == (8 * MIB, 5 * MIB)
    arena.free(0)
    arena.allocate(1, 3 * MIB)
    arena.allocate(2, 3 * MIB)
    assert (arena.held, arena.touched) == (8 * MIB, 6 * MIB)


@given(st.lists(st.tuples(st.integers(0, 9), st.integers(1, 5000)), max_size=60), st.booleans())
def test_what_is_handed_out_never_overlaps_and_all_comes_back(asked: list[tuple[int, int]], same: bool) -> None:
    arena = Arena(ArenaSettings(same_as_requested=same, first_region=8 * UNIT, waste=4 * UNIT))
    alive: dict[int, int] = {}
    for key, size in asked:
        if key in alive:
            arena.free(key)
            del alive[key]
        else:
            arena.allocate(key, size)
            alive[key] = size
        assert sum(alive.values()) <= arena.in_use <= arena.held
        assert arena.in_use <= arena.high
        assert sum(alive.values()) <= arena.touched <= arena.held
    for key in alive:
        arena.free(key)
    assert arena.in_use == 0
    # Everything is joined again: each region can be handed out whole.
    held = arena.held
    arena.allocate(10, 1)
    assert arena.held == max(held, 8 * UNIT if not same else UNIT)

"""The block of later runs: small cases by hand, and random ones against a search of all gaps, as onnxruntime does."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from ckplan.planner.arena.memory_pattern import block_of
from ckplan.planner.arena.regions import UNIT, chunk_size

Steps = list[tuple[list[int], list[int]]]


def test_a_tensor_goes_into_the_gap_that_leaves_least() -> None:
    size = [3 * UNIT, UNIT, 2 * UNIT, UNIT, 2 * UNIT, 3 * UNIT]
    assert block_of(size, [([0, 1, 2, 3], [0, 2]), ([4, 5], [])]) == 7 * UNIT


def test_what_is_free_at_the_end_of_the_block_is_a_gap_too() -> None:
    # Three units are free at the start and one at the end. The small tensor goes to the end, so that the last one finds
    # all three.
    size = [3 * UNIT, UNIT, UNIT, UNIT, 3 * UNIT]
    assert block_of(size, [([0, 1, 2], [0, 2]), ([3], []), ([4], [])]) == 5 * UNIT


def test_the_block_grows_from_its_last_tensor_on() -> None:
    size = [2 * UNIT, UNIT, 3 * UNIT]
    assert block_of(size, [([0], []), ([1], [1]), ([2], [])]) == 5 * UNIT


def test_tensors_take_whole_units_and_empty_ones_nothing() -> None:
    assert block_of([0, 1, UNIT + 1], [([0, 1], []), ([2], [0])]) == 3 * UNIT


def searched(size: list[int], steps: Steps) -> int:
    """The same, gap by gap, as onnxruntime looks for it."""
    alive: list[tuple[int, int, int]] = []  # where each begins and ends, and its buffer, sorted
    end = 0
    for made, freed in steps:
        for buffer in made:
            wanted = chunk_size(size[buffer])
            if not wanted:
                continue
            fits = []
            before = 0
            for begin, behind, _ in [*alive, (end, end, -1)]:
                if begin - before >= wanted:
                    fits.append((begin - before, before))
                before = behind
            at = min(fits)[1] if fits else alive[-1][1] if alive else 0
            alive = sorted([*alive, (at, at + wanted, buffer)])
            end = max(end, at + wanted)
        alive = [entry for entry in alive if entry[2] not in freed]
    return end


@given(st.lists(st.tuples(st.integers(0, 9 * UNIT), st.integers(0, 6)), max_size=40))
def test_is_what_a_search_through_all_gaps_finds(tensors: list[tuple[int, int]]) -> None:
    size = [size for size, _ in tensors]
    freed: list[list[int]] = [[] for _ in range(len(tensors) + 7)]
    for step, (_, steps) in enumerate(tensors):
        freed[step + steps].append(step)
    steps = [([step], freed[step]) for step in range(len(tensors))]
    assert block_of(size, steps) == searched(size, steps)

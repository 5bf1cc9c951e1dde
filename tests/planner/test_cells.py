"""Cells of a region can be made one after the other, each where the one before ends."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from ckplan.planner.arena.cells import POOL, SMALLEST, SPARE, WALL, WALL_BYTES, parts_of
from ckplan.planner.arena.cutting import rows_of
from ckplan.planner.arena.regions import UNIT

_CELL = st.one_of(
    st.tuples(st.integers(SMALLEST, 40 * SMALLEST), st.sampled_from((POOL, 0))),
    st.just((WALL_BYTES // UNIT, WALL)),
)


@given(st.lists(_CELL, min_size=1, max_size=8), st.integers(SMALLEST, 40 * SMALLEST))
def test_parts_are_cut_off_one_after_the_other_and_fit_into_no_gap_for_shapes(
    cells: list[tuple[int, int]], rest: int
) -> None:
    rows = rows_of([sum(size for size, _ in cells) + rest], [cells])
    if rows is None:  # a cell would be too large for what lies behind it
        return
    (row,) = rows
    parts = parts_of(row)
    whole = sum(size for size, _ in row)
    for size, _ in parts:
        assert size > SPARE
        assert size == whole or 2 * size <= whole  # else all that is left would be handed out
        whole -= size
    assert whole == 0
    assert joined(parts) == joined(row)


def joined(cells: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """Units of all that are alike one behind the other, and what they are."""
    found: list[tuple[int, int]] = []
    for size, use in cells:
        if found and found[-1][1] == use:
            size += found.pop()[0]
        found.append((size, use))
    return found

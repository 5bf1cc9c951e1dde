"""What schedules ask of the allocator, the block of a memory pattern, and the smallest limit, on small cases."""

from __future__ import annotations

from dataclasses import replace

from ckplan.planner.arena.allocations import (
    Allocations,
    Demand,
    allocations,
    expected_arena,
    pattern_block,
    smallest_limit,
    written,
)
from ckplan.planner.arena.regions import ArenaSettings
from ckplan.planner.problem import Kind, Op, Problem, Tensor

MIB = 2**20


def one_region(limit: int) -> ArenaSettings:
    return ArenaSettings(limit=limit, first_region=limit, waste=256)


def chain(sizes: list[int], workspace: int = 0) -> Problem:
    """Ops in a row, each reading what the one before made; the last tensor is an output of the file."""
    kinds = [Kind.ACTIVATION] * (len(sizes) - 1) + [Kind.OUTPUT]
    tensors = tuple(Tensor(f"t{i}", size, kind) for i, (size, kind) in enumerate(zip(sizes, kinds, strict=True)))
    ops = tuple(
        Op(f"op{i}", (i - 1,) if i else (), (i,), workspace=workspace if i == len(sizes) - 1 else 0)
        for i in range(len(sizes))
    )
    return Problem(ops, tensors)


def test_what_a_chain_asks_for() -> None:
    asked = allocations(chain([100, 200, 300], workspace=50), range(3))
    assert asked.size == (100, 200, 300)
    assert asked.steps == (
        Demand((0,), (), 0, ()),
        Demand((1,), (), 0, (0,)),
        Demand((), (2,), 50, (1,)),
    )


def test_the_block_holds_all_tensors_but_outputs() -> None:
    asked = allocations(chain([MIB, 2 * MIB, MIB, 4 * MIB]), range(4))
    # The third tensor goes where the first was.
    assert pattern_block(asked) == 3 * MIB


def test_where_the_first_region_lies_is_not_relied_on() -> None:
    size = (MIB, MIB, MIB, MIB, 2 * MIB)
    steps = (
        Demand((0, 1), (), 0, (0,)),
        Demand((2,), (), 0, ()),
        Demand((3,), (), 0, (1, 2)),
        Demand((4,), (), 0, (3, 4)),
    )
    asked = Allocations(size, steps, pattern=False)
    # Regions of 1 and 2 MiB would do, if the third tensor went into the second one, which is so where that lies below.
    assert expected_arena(asked).first.held == 7 * MIB


def test_the_block_takes_the_smallest_gap() -> None:
    size = (3 * MIB, MIB, 2 * MIB, MIB, 2 * MIB, 3 * MIB)
    steps = (Demand((0, 1, 2, 3), (), 0, (0, 2)), Demand((4, 5), (), 0, (1, 3, 4, 5)))
    assert pattern_block(Allocations(size, steps)) == 7 * MIB


def test_the_block_grows_where_no_gap_is_large_enough() -> None:
    size = (MIB, MIB, 2 * MIB)
    steps = (Demand((0, 1), (), 0, (0,)), Demand((2,), (), 0, (1, 2)))
    assert pattern_block(Allocations(size, steps)) == 4 * MIB


def test_the_steady_state_has_the_block_beside_outputs_and_workspace() -> None:
    asked = allocations(chain([MIB, 2 * MIB, MIB, 4 * MIB], workspace=MIB), range(4), resident=MIB)
    found = expected_arena(asked, ArenaSettings(first_region=64 * MIB, waste=256))
    assert found.live == (1 + 1 + 4 + 1) * MIB  # packed weights, the last activation, the output, workspace
    assert found.first.in_use == (1 + 1 + 4) * MIB  # workspace is gone when a kernel ends
    assert found.block == 3 * MIB
    assert found.needed == (1 + 3 + 4 + 1) * MIB
    assert found.steady.in_use == (1 + 3 + 4) * MIB
    assert found.without_pattern == found.first
    assert found.steady.held == (1 + 64) * MIB  # what a session takes when it is opened lies in no region


def test_the_arena_holds_the_block_beside_what_the_first_run_left() -> None:
    asked = allocations(chain([MIB, 2 * MIB, MIB, MIB]), range(4))
    found = expected_arena(asked, ArenaSettings(same_as_requested=True))
    assert found.first.held == found.without_pattern.held == 3 * MIB
    assert found.steady.held == 6 * MIB


def test_the_smallest_limit_is_what_is_live_where_nothing_is_wasted() -> None:
    asked = allocations(chain([4 * MIB, 2 * MIB, 2 * MIB]), range(3))
    for pattern, needed in ((False, 6 * MIB), (True, 8 * MIB)):
        found = smallest_limit(asked, pattern=pattern, settings=one_region)
        assert needed <= found <= 1.002 * needed


def test_fragmentation_counts() -> None:
    # A small output is left in the middle of the arena: two halves are free, the whole is not.
    size = (2 * MIB, 256, 2 * MIB, 4 * MIB)
    steps = (
        Demand((0,), (), 0, ()),
        Demand((), (1,), 0, ()),
        Demand((2,), (), 0, (0, 2)),
        Demand((3,), (), 0, (3,)),
    )
    asked = Allocations(size, steps)
    assert expected_arena(asked, one_region(64 * MIB)).live == 4 * MIB + 256
    found = smallest_limit(asked, pattern=False, settings=one_region)
    assert 6 * MIB < found < 6.02 * MIB


def test_what_is_written_to_is_the_regions_their_tables_and_what_kernels_take_beside() -> None:
    asked = allocations(chain([12 * MIB, 10 * MIB, 2**10]), range(3))
    steady = expected_arena(asked).steady
    assert steady.held > steady.touched
    assert written(asked) == steady.touched + steady.held // 32
    beside = replace(asked, steps=tuple(replace(step, outside=MIB) for step in asked.steps))
    assert written(beside) == written(asked) + MIB

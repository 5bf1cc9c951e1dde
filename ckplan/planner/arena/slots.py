"""Slots: gaps of one size, smaller than all others, for what is small and lives long.

Best fit puts what is small into the smallest gap, wherever that lies, and some of it stays to the end of the run: the
loss, or the gradient of a bias. A single unit in the middle of a region is in the way of whatever is large. Slots lie
side by side at the beginning of the first region, with walls between, so that nothing larger fits into them.
"""

from __future__ import annotations

from ckplan.planner.arena.allocations import Allocations
from ckplan.planner.arena.regions import UNIT

SLOT = 40
"""Units of a slot."""

SLOT_WALL = 9
"""Units of what keeps it apart from the next one: more than the gap for shapes that is there while cells are made."""

MOST_SLOTS = 26
"""While they are made, three times what they take has to find room in a first region of one MiB."""

_ENOUGH = SLOT // 2
"""Units that need no slot: they find room beside shapes."""

_PART = 40
"""Slots take at most this part of what is alive."""


def slots_for(asked: Allocations) -> int:
    """How many slots hold what fits into one at the moment at which most of that is there.

    Args:
        asked: the allocations of one run.
    """
    units = [-(-size // UNIT) for size in asked.size]
    small = alive = most_small = most = 0
    for step in asked.steps:
        for sign, buffers in ((1, (*step.tensors, *step.outputs)), (-1, step.freed)):
            sizes = [units[buffer] for buffer in buffers]
            small += sign * sum(size for size in sizes if size <= SLOT)
            alive += sign * sum(sizes)
            most_small, most = max(most_small, small), max(most, alive)
    if most_small <= _ENOUGH:
        return 0
    return min(-(-most_small // SLOT), most // _PART // (SLOT + SLOT_WALL), MOST_SLOTS)


def slots_taken(slots: int) -> int:
    """Units that some slots take with their walls."""
    return slots * (SLOT + SLOT_WALL)

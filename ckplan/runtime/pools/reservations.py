"""Tensors that a file makes first of all and lets go at once, so that the arena takes a region that holds the rest."""

from __future__ import annotations

from dataclasses import replace

import onnx_ir as ir

from ckplan.planner.arena.allocations import Allocations, Demand, ExpectedArena, expected_arena, written
from ckplan.planner.arena.regions import DEFAULT, UNIT
from ckplan.runtime.pools.allocations_of import allocations_of

Reservation = tuple[int, ...]
"""Bytes of tensors that a file makes first of all, one after the other; see `ckplan.writer.reservation`."""

_LARGEST_RESERVATIONS = 3
"""How many sizes are tried of a tensor that lets the arena take a large region at once, the largest ones."""


def best_reservation(executed: ir.Model, model: ir.Model) -> tuple[Reservation, int]:
    """The tensors that, made first and dead at once, let the arena write to least, and what that is.

    One of the size of the block of later runs keeps the first run and the others in one region; none is larger, see
    `ckplan.writer.reservation`. There are none where they make no difference.

    Args:
        executed: what onnxruntime executes of a file, nodes in execution order.
        model: the file.
    """
    return reservation_for(allocations_of(executed, model))


def reservation_for(asked: Allocations) -> tuple[Reservation, int]:
    """Like `best_reservation`, for what a run asks of the allocator."""
    reservations = [(), *_reservations(expected_arena(asked))]
    found = {reserved: written(_reserving(asked, reserved)) for reserved in reservations}
    reserved = min(found, key=lambda reserved: (found[reserved], sum(reserved)))
    return reserved, found[reserved]


def _reservations(expected: ExpectedArena) -> list[Reservation]:
    """Tensors to be tried: one that gets a region of twice its size, one of the block, and one before it.

    A region that is less than twice as large as the block is handed out whole for it. What later runs take beside the
    block gets one of its own then: a small one, if it is asked for first. Where the first region of all would hold it,
    one that goes beyond that region is tried as well: the first is where what is made before a step lies.
    """
    half, sizes, block = DEFAULT.first_region // 2, [], expected.block
    while half + UNIT <= block:
        sizes.append(half + UNIT)
        half *= 2
    beside = expected.needed - block
    larger = [*sizes[-1:], *([block] if block else [])]
    next_larger = DEFAULT.first_region
    while next_larger < beside:
        next_larger *= 2
    small = (beside, next_larger + UNIT) if 2 * beside > DEFAULT.first_region else ()
    twice = [(one, size) for one in small for size in larger if one <= size]
    return [*((size,) for size in sizes[-_LARGEST_RESERVATIONS:]), *((size,) for size in larger[-1:]), *twice]


def _reserving(asked: Allocations, reserved: Reservation) -> Allocations:
    """The same with tensors made first of all."""
    if not reserved:
        return asked
    new = len(asked.size)
    # What the first one waits for comes before it, and takes a small region: the loss lies there in later runs.
    first = [Demand((new, new + 1), (), 0, (new, new + 1))]
    first += [Demand((buffer,), (), 0, (buffer,)) for buffer in range(new + 2, new + 1 + len(reserved))]
    return replace(asked, size=(*asked.size, 1, *reserved), steps=(*first, *asked.steps))

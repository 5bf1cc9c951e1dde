"""The same plan in a file whose arena holds less: tensors are reserved first, or its regions are cut into pools."""

from __future__ import annotations

import math
import time
from dataclasses import replace

from ckplan.pipeline.plan_files import write_plan
from ckplan.pipeline.planned import Planned
from ckplan.planner.arena.allocations import expected_arena, held_wherever
from ckplan.planner.arena.cells import UNCUT, Layout
from ckplan.planner.arena.slots import slots_for
from ckplan.runtime.pools.allocations_of import allocations_of
from ckplan.runtime.pools.fitting_pools import fitting_pools
from ckplan.runtime.pools.reservations import best_reservation

_FITS = 4
"""How often pools are fitted to what a file with pools asks for."""

_CLOSE = 1.1
"""Ratio of what is alive up to which no second form of a file is tried for what its arena holds."""


def reserving(made: Planned, most: int) -> Planned:
    """The same plan in a file that reserves tensors first, if a process takes less then, and no more than so much."""
    reserved, expected = best_reservation(made.executed, made.model)
    if not reserved or expected > most:
        return made
    again = write_plan(made.step, made.plan, made.budget, reserved)
    return again if again.footprint.running < made.footprint.running else made


def in_pools(
    made: Planned,
    most: int | None = None,
    enough: int | None = None,
    deadline: float = math.inf,
    least: float = 0.0,
) -> Planned:
    """The same plan in a file whose arena is cut into pools, if it holds less then.

    A second buffer for a tensor, where that lies within the peak, is an address of its own: it may fit in between, or
    may be in the way. So files without are tried where those with them leave large gaps.

    Args:
        made: a plan in a file.
        most: bytes; where the arena would hold more, it is not worth writing.
        enough: bytes; where it holds no more, no smaller one is looked for.
        deadline: `time.monotonic` after which what was found is taken, and no other form of the file is tried.
        least: seconds for which cells are looked for in any case: what is written late is not refused untried.
    """
    close = int(_CLOSE * expected_arena(allocations_of(made.executed, made.model)).live) if enough is None else enough
    best = made
    for sparing in (True, False):
        found = _in_pools(made, sparing, best.footprint.held if most is None else most, enough, deadline, least)
        best = min(best, found, key=lambda made: made.footprint.held)
        if best.footprint.held <= close or time.monotonic() > deadline:
            break
    return best


def _in_pools(made: Planned, sparing: bool, most: int, enough: int | None, deadline: float, least: float) -> Planned:
    """The same plan in a file with cells, and with placeholders beside these if need be.

    Addresses depend on the order of all nodes: they run in that in which they did before. That can change which buffers
    are handed on, so a file is written first whose pools are for nothing else. What is made for places can still change
    what the pools are to fit: then others are tried, and at last such as depend less on that.

    Args:
        made: a plan in a file.
        sparing: see `ckplan.writer.emit.write`.
        most: bytes; see `in_pools`.
        enough: bytes; see `in_pools`.
        deadline: see `in_pools`.
        least: see `in_pools`.
    """
    slots = slots_for(allocations_of(made.executed, made.model))
    best, plain = made, _cut(made, made, replace(UNCUT, slots=slots), sparing)
    source, deadline = plain, max(deadline, time.monotonic() + least)
    for seed in range(_FITS + 1):
        if time.monotonic() > deadline:
            break
        pools = fitting_pools(source.executed, source.model, seed, places=seed < _FITS, deadline=deadline)
        if pools is None:
            continue
        if pools.held > min(most, best.footprint.held):
            break
        source = _cut(made, source, pools, sparing)
        if not _holds(source):
            continue
        best = min(best, source, key=lambda made: made.footprint.held)
        if source.footprint.held <= pools.held:
            break
    if enough is None or best.footprint.held > enough:
        best = _steered(made, plain, best, sparing, min(most, best.footprint.held), enough, deadline)
    return best


def _steered(
    made: Planned, source: Planned, best: Planned, sparing: bool, below: int, enough: int | None, deadline: float
) -> Planned:
    """A file with placeholders beside the cells, if it holds less than some bytes; else the best one without.

    Each takes some nodes, with shapes of their own, so they are fitted again to the file that has them.
    """
    pools = None
    for seed in range(_FITS):
        if time.monotonic() > deadline:
            break
        pools = fitting_pools(
            source.executed, source.model, seed, below=below, enough=enough, start=pools, deadline=deadline
        )
        if pools is None:
            break
        source = _cut(made, source, pools, sparing)
        if source.footprint.held < below and _holds(source):
            best, below = source, source.footprint.held
        if source.footprint.held <= pools.held:
            break
    return best


def _holds(made: Planned) -> bool:
    """Whether the arena holds what it is said to, in whatever order its regions lie."""
    return held_wherever(allocations_of(made.executed, made.model)) <= made.footprint.held


def _cut(made: Planned, source: Planned, layout: Layout, sparing: bool) -> Planned:
    """A plan in a file whose arena is cut into cells, nodes in the order in which another file of it runs."""
    order = [str(value.name) for node in source.executed.graph for value in node.outputs]
    return write_plan(made.step, made.plan, made.budget, pools=layout, order=order, sparing=sparing)

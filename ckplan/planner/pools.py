"""Pools: an arena whose regions are cut so that the tensors of a run fit into little more than what is alive.

Best fit puts a small tensor that lives long into the middle of the only large gap there is, and then a large one does
not fit on either side; and it hands out a whole gap for what is larger than half of it. So gaps take up to as much as
what is alive, where the same tensors at other addresses would leave almost none.

Two things move them there. An arena that is cut into *pools* of unlike sizes, with walls between, hands out of the
smallest pool that has room, so that small tensors and large ones keep apart by themselves (segregated storage; Wilson
et al., "Dynamic Storage Allocation: A Survey and Critical Review", IWMM 1995). And of a tensor that lives long the
*place* can be kept from the start: no gap fits it better when it is made. Places lie side by side in a region, the one
that is free last first, so that what they leave grows to one gap when the backward pass reads its activations in
reverse. Which cells serve a step is found by trying, in simulation: the step is the same in every run.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace

from ckplan.planner.allocations import Allocations, Demand, requests
from ckplan.planner.arena import UNIT
from ckplan.planner.cells import MADE, REGION, Cell, Regions, parts_of, released
from ckplan.planner.cutting import SMALLEST, Run, cut
from ckplan.planner.problem import OUTPUTS

_EFFORT = 2_000_000
"""Requests that are simulated for one size of the arena; a simulation takes a microsecond for each."""

_FEWEST, _MOST = 100, 2_000
"""Changes that are tried for one size of the arena, whatever the effort allows."""

_LEVELS = 6
"""Sizes of the arena that are tried."""

_USUAL, _LARGEST = 1.25, 2.0
"""Ratios of what is alive up to which an arena is looked for, first and then."""

_SHORT = 3
"""Steps for which a tensor has to live for its place to be kept."""


def best_pools(asked: Allocations, before: int = 0, seed: int = 0, *, places: bool = True) -> Regions | None:
    """Cells in which a run goes through that together are as small as were found; None where there are none.

    Bisection over the size of the arena; for each, hill climbing over how its regions are cut. A simulation of a run
    of n requests takes O(n log n), and there are at most some thousands of them.

    Args:
        asked: the allocations of one run.
        before: number of its steps that come before the cells are there.
        seed: of the search.
        places: whether places may be kept; else there are pools and walls only.
    """
    run = _run(asked, before, places=places)
    least = -(-max(_most_alive(made) for made, _ in run.variants) // REGION)
    rng = random.Random(seed)
    trials = min(max(_EFFORT // max(len(run.steps), 1), _FEWEST), _MOST)
    # In pairs of first regions: the first one stands, and the sum of the others is even.
    low, best = (least - 1) // 2, None
    for ratio in (_USUAL, _LARGEST):
        high = max(int(least * ratio) // 2, least // 2 + 1)
        for level in range(_LEVELS):
            if low >= high and (level or best):
                break
            middle = high if level == 0 else (low + high) // 2
            found = cut(run, _regions(2 * middle), trials, rng)
            if found is None and level == 0:
                low = middle + 1
                break
            if found is None:
                low = middle + 1
            else:
                best, high = found, middle
        if best is not None:
            break
    return None if best is None else tuple(tuple(Cell(size * UNIT, use) for size, use in parts_of(row)) for row in best)


def _run(asked: Allocations, before: int, *, places: bool) -> Run:
    size = [-(-bytes_ // UNIT) for bytes_ in asked.size]
    end = len(asked.steps)
    born, dies = [end] * len(size), [end] * len(size)
    for number, step in enumerate(asked.steps):
        for buffer in (*step.tensors, *step.outputs):
            born[buffer] = number
        for buffer in step.freed:
            dies[buffer] = number
    kept = [
        buffer
        for buffer, units in enumerate(size)
        if places and units >= SMALLEST and before <= born[buffer] < end and dies[buffer] - born[buffer] >= _SHORT
    ]
    mine = set(kept)
    usual: list[tuple[int, int]] = []
    early: list[tuple[int, int]] = []
    steps: list[int] = []
    for number, step in enumerate(asked.steps):
        first = [MADE] if number == before else []
        first += [released(buffer) for buffer in (*step.tensors, *step.outputs) if buffer in mine]
        for made, way in ((usual, step), (early, _workspace_first(step))):
            made += first
            made += [(key, -(-bytes_ // UNIT)) for key, bytes_ in requests(replace(asked, steps=(way,)))]
        steps += [number] * (len(usual) - len(steps))
    # Later regions tend to lie below earlier ones, but that is for the system to say.
    return Run(((usual, True), (usual, False), (early, True)), size, born, dies, kept, steps)


def _workspace_first(step: Demand) -> Demand:
    """The same step with what its kernel works in, and a little more, asked for before its outputs.

    Not of all kernels is it known in which order they ask, nor what they take that is too small to matter. A run has
    to find room either way: what lies a little elsewhere leaves other gaps.
    """
    if OUTPUTS in step.pieces:
        return step
    pieces = step.pieces or ((step.workspace,) if step.workspace else ())
    return replace(step, pieces=(UNIT, *pieces, OUTPUTS))


def _regions(count: int) -> list[int]:
    """Units of regions that are distinct powers of two and together as large as so many first regions, ascending."""
    return [REGION << bit for bit in range(count.bit_length()) if count >> bit & 1]


def _most_alive(made: Sequence[tuple[int, int]]) -> int:
    """Most units that are handed out at once."""
    alive: dict[int, int] = {}
    live = most = 0
    for key, size in made:
        if size < 0 or not (size or key in alive):
            continue
        live += size or -alive[key]
        alive[key] = size
        most = max(most, live)
    return most

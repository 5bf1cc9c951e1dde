"""How little an arena could hold at best, its regions being powers of two, wherever tensors lie in them.

    python -m benchmarks.arena_bound [--only resnet regnet]

Regions are unlike powers of two MiB, and no tensor lies in two of them: so at each moment of a run what is alive has to
be packed into them. The least number of MiB for which that works at every moment is a bound for any cells, placeholders
and addresses along that order of nodes. Of steps without a plan.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

from ortools.sat.python import cp_model

from benchmarks.arena import NETWORKS, opened
from ckplan.pipeline import rewrite
from ckplan.planner.arena.allocations import Allocations, expected_arena, requests
from ckplan.planner.arena.regions import DEFAULT, chunk_size
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.pools.allocations_of import allocations_of

_PATIENCE = 2.0
"""Seconds, as CP-SAT counts them, to prove that chunks cannot be packed; else they may be, which leaves a bound."""


def least_held(asked: Allocations) -> int:
    """Bytes of the smallest arena into whose regions what is alive can be packed at every moment."""
    moments = sorted(set(_moments(asked)), key=sum, reverse=True)
    count = max(-(-sum(moments[0]) // DEFAULT.first_region), 1)
    while not all(_packs(sizes, count) for sizes in moments):
        count += 1
    return count * DEFAULT.first_region


def _moments(asked: Allocations) -> Iterator[tuple[int, ...]]:
    """Sizes of what is alive, largest first, before something is given back of it."""
    alive: dict[int, int] = {}
    grown = False
    for key, size in requests(asked):
        if size:
            alive[key], grown = chunk_size(size), True
            continue
        if grown:
            yield tuple(sorted(alive.values(), reverse=True))
        grown = False
        alive.pop(key, None)
    yield tuple(sorted(alive.values(), reverse=True))


def _packs(sizes: Sequence[int], count: int) -> bool:
    """Whether chunks can be packed into regions of so many MiB in all."""
    regions = [DEFAULT.first_region << bit for bit in range(count.bit_length()) if count >> bit & 1]
    left = list(regions)
    for size in sizes:
        fitting = [region for region, room in enumerate(left) if room >= size]
        if not fitting:
            return _packs_exactly(sizes, regions)
        left[min(fitting, key=lambda region: left[region])] -= size
    return True


def _packs_exactly(sizes: Sequence[int], regions: Sequence[int]) -> bool:
    """The same by CP-SAT, and whether it could not be told."""
    model = cp_model.CpModel()
    lies = [[model.new_bool_var("") for _ in regions] for _ in sizes]
    for row in lies:
        model.add_exactly_one(row)
    for number, room in enumerate(regions):
        model.add(sum(row[number] * size for row, size in zip(lies, sizes, strict=True)) <= room)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.max_deterministic_time = _PATIENCE
    return bool(solver.solve(model) != cp_model.INFEASIBLE)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", nargs="+", choices=NETWORKS, default=NETWORKS, metavar="NETWORK")
    print("| network | live | least | to live |\n|---|---|---|---|")
    for name in parser.parse_args().only:
        with tempfile.TemporaryDirectory() as folder:
            made = rewrite(opened(name, Path(folder)), parse_strategy("none"))
            asked = allocations_of(made.executed, made.model)
            live, least = expected_arena(asked).live, least_held(asked)
            print(f"| {name} | {live / 2**20:.1f} | {least / 2**20:.0f} | {least / live:.2f} |", flush=True)


if __name__ == "__main__":
    main()

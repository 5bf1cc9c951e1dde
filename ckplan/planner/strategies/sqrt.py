"""`sqrt`: about sqrt(N) segments."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.planner.cuts import Cut, forward_cuts, kept_by_cuts
from ckplan.planner.order import best_order
from ckplan.planner.problem import Problem
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.strategies.base import Strategy


@dataclass(frozen=True)
class Sqrt(Strategy):
    """Cut the forward pass into sqrt(N) segments of equal stash and recompute them one by one.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174): N stashed activations of a
    chain need O(sqrt(N)) memory for one extra forward pass. On a graph that is no chain, each boundary moves to
    the cheapest cut near its place. O(ops). The wrong choice when the layers differ much in size (`memory` looks
    at bytes) or when there is memory to spare.

    Attributes:
        segments: number of segments; 0 means the square root of the number of stashed activations.
    """

    name: ClassVar[str] = "sqrt"
    least: ClassVar[Mapping[str, float]] = {"segments": 0}
    segments: int = 0

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """The segmented schedule, and no recomputation where that is already the smaller one."""
        order = best_order(problem)
        stash = set(problem.stashed)
        count = self.segments or round(math.sqrt(len(stash)))
        chosen = equal_segments(problem, forward_cuts(problem), stash, count)
        return [recompute_schedule(problem, kept_by_cuts(problem, chosen), order), order]


def equal_segments(problem: Problem, cuts: Sequence[Cut], stash: set[int], count: int) -> list[Cut]:
    """Choose ``count - 1`` cuts at equal numbers of stashed tensors, each the cheapest within half a segment.

    Args:
        problem: the ops and tensors.
        cuts: places at which the forward pass may be cut, with the bytes that are kept there.
        stash: the tensors that the backward pass reads.
        count: how many segments there are to be; fewer where no cut is near.
    """
    made = [0]
    for index in problem.forward:
        made.append(made[-1] + sum(tensor in stash for tensor in problem.ops[index].outputs))
    total = made[-1]
    chosen: dict[int, Cut] = {}
    count = min(count, 2 * total + 1)  # of more segments, all further ones are empty
    for part in range(1, count):
        target = total * part / count
        near = [cut for cut in cuts if abs(made[cut.position] - target) <= total / count / 2]
        if near:
            best = min(near, key=lambda cut: (cut.bytes, abs(made[cut.position] - target), cut.position))
            chosen[best.position] = best
    return list(chosen.values())

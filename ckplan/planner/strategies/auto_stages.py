"""How many schedules each stage of `auto` tries: as many as take some tenths of a second for graphs of all sizes."""

from __future__ import annotations

from dataclasses import dataclass

from ckplan.planner.problem import Problem

SMALL = 400
"""Ops of the largest graph for which the local search takes longer, and `evict` and less overhead are tried as well."""
_MOST_OPS_IN_TURNS = 900
"""Ops of the largest graph for which eviction and ruin and recreate (`ckplan.planner.ruin`) take turns: for larger ones
eviction finds less in the same time."""
_MOST_OPS_REBUILT = 2_000
"""Ops of the largest graph that is rebuilt by ruin and recreate at all."""


@dataclass(frozen=True)
class Stages:
    """How many schedules are tried, stage by stage.

    Attributes:
        improved: by eviction, from the cheapest seed, and from another strategy's schedule.
        searched: by eviction, from the cheapest of these, where a bound leaves a gap.
        rebuilt: by ruin and recreate, after that, where the gap is left.
    """

    improved: int
    searched: int
    rebuilt: int


def stages_of(problem: Problem, steps: int) -> Stages:
    """The stages for a graph.

    Args:
        problem: the ops and tensors.
        steps: how much to search; 0 for not at all.
    """
    count = len(problem.ops)
    improved, searched = steps, steps * 5_000 // max(count, 1)
    if count <= SMALL:
        improved = steps * 5 // 2  # as many as `search` tries
    if count <= _MOST_OPS_IN_TURNS:
        return Stages(improved, searched, int(steps * min(5.0, 2_000_000 / max(count, 1) ** 2)))
    if count <= _MOST_OPS_REBUILT:
        return Stages(steps // 2, 0, steps * 9 // 4)
    return Stages(improved, searched, 0)

"""Refining a choice of kept tensors: keep more wherever the peak allows it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Problem
from ckplan.planner.recompute import recompute_schedule

_TRIALS = 64
"""Schedules that are simulated, at most."""


def keep_what_fits(problem: Problem, kept: Collection[int], limit: int, order: Sequence[int] | None = None) -> set[int]:
    """Add stashed activations to a kept set, most compute saved per byte first, while the peak stays within a limit.

    A plan of segments recomputes all of each segment, also where the peak is elsewhere. What is kept in addition there
    costs nothing at the peak. Groups are tried as a whole and split when they do not fit, until the trials are spent.

    Args:
        problem: the ops and tensors.
        kept: tensors to start from; their schedule is within the limit.
        limit: bytes of activations that the peak must not exceed.
        order: see `recompute_schedule`.
    """
    chosen = set(kept)

    def fits(extra: Sequence[int]) -> bool:
        schedule = recompute_schedule(problem, chosen.union(extra), order)
        return peak_of(problem, schedule) <= limit

    def worth(root: int) -> float:
        return problem.ops[problem.producer[root]].cost / max(problem.tensors[root].bytes, 1)

    # What is as good as free to recompute is not worth a trial.
    least = problem.cost / 10_000
    dropped = [
        root for root in problem.stashed if root not in chosen and problem.ops[problem.producer[root]].cost >= least
    ]
    groups = [sorted(dropped, key=lambda root: (-worth(root), root))]
    trials = _TRIALS
    while groups and trials > 0:
        group = groups.pop()
        if not group:
            continue
        trials -= 1
        if fits(group):
            chosen.update(group)
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[middle:], group[:middle]]
    return chosen

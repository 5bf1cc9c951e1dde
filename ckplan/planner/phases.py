"""Phases: which part of the forward pass each backward op goes with.

A strategy that recomputes the forward pass in groups needs the backward pass in the same groups: all backward
ops that read what a group makes should run while that group's activations are alive.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckplan.planner.copies import Copies
from ckplan.planner.problem import Kind, Problem


def backward_phases(problem: Problem, group: Sequence[int], kept: Collection[int] = ()) -> list[int]:
    """For each op the group in whose phase it runs; phases run from the last group to the first.

    A forward op's phase is its group. A backward op runs as early as it can: not before the phase of any op whose
    gradient it reads, and not before that of the groups that hold what it reads. A forward activation is at hand
    in the phases from the last group that reads it down to the one that makes it, unless it is kept, then always.

    Args:
        problem: the ops and tensors.
        group: for each op its group; the entries of backward ops are not read.
        kept: roots of the forward tensors that are alive in all phases.

    Returns:
        For each op its phase.
    """
    root, producer = problem.view_root, problem.producer
    kept = set(kept)
    level: dict[int, int] = {}
    phases = [0] * len(problem.ops)
    for index in problem.forward:
        phases[index] = group[index]
        for tensor in (*problem.ops[index].inputs, *problem.ops[index].outputs):
            level[root[tensor]] = max(level.get(root[tensor], 0), group[index])
    last = max((group[index] for index in problem.forward), default=0)
    for index in problem.backward:
        phase = last
        for tensor in problem.ops[index].inputs:
            maker = producer[tensor]
            if maker >= 0 and problem.ops[maker].backward:
                phase = min(phase, phases[maker])
            elif maker >= 0 and root[tensor] not in kept and problem.tensors[root[tensor]].kind is Kind.ACTIVATION:
                phase = min(phase, level[root[tensor]])
        phases[index] = phase
    return phases


def phase_order(problem: Problem, phases: Sequence[int]) -> list[int]:
    """All ops once: forward ops group by group, then backward ops phase by phase, naturally ordered in each."""
    return sorted(problem.forward, key=lambda index: (phases[index], index)) + sorted(
        problem.backward, key=lambda index: (-phases[index], index)
    )


def without_dead_repeats(problem: Problem, schedule: Sequence[int]) -> list[int]:
    """The schedule without those repeats that nothing reads before the op runs again, and without what they needed."""
    copies = Copies.of(problem, tuple(schedule))
    left: list[int] = copies.ops[copies.needed()].tolist()
    return left

"""Phases: which part of the forward pass each backward op goes with.

A strategy that recomputes the forward pass in groups needs the backward pass in the same groups: all backward
ops that read what a group makes should run while that group's activations are alive.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import lru_cache

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
    kept = set(kept)
    passes = _passes(problem)
    level = [0] * len(problem.tensors)
    phases = [0] * len(problem.ops)
    for index, touched in passes.forward:
        phase = phases[index] = group[index]
        for base in touched:
            if phase > level[base]:
                level[base] = phase
    last = max((group[index] for index in problem.forward), default=0)
    for index, makers, roots in passes.backward:
        phase = last
        for maker in makers:
            if phases[maker] < phase:
                phase = phases[maker]
        for base in roots:
            if level[base] < phase and base not in kept:
                phase = level[base]
        phases[index] = phase
    return phases


@dataclass(frozen=True)
class _Passes:
    """The ops of both passes with what decides on their phases.

    Attributes:
        forward: each op, and the roots of what it reads and makes.
        backward: each op, the backward ops that it reads from, and the roots of the forward activations that it reads.
    """

    forward: list[tuple[int, tuple[int, ...]]]
    backward: list[tuple[int, tuple[int, ...], tuple[int, ...]]]


@lru_cache(maxsize=4)
def _passes(problem: Problem) -> _Passes:
    ops, root, producer, tensors = problem.ops, problem.view_root, problem.producer, problem.tensors
    passes = _Passes([], [])
    for index, op in enumerate(ops):
        if not op.backward:
            passes.forward.append((index, tuple({root[tensor] for tensor in (*op.inputs, *op.outputs)})))
            continue
        made = [tensor for tensor in op.inputs if producer[tensor] >= 0]
        makers = {producer[tensor] for tensor in made if ops[producer[tensor]].backward}
        roots = {root[tensor] for tensor in made if not ops[producer[tensor]].backward}
        activations = (base for base in roots if tensors[base].kind is Kind.ACTIVATION)
        passes.backward.append((index, tuple(makers), tuple(activations)))
    return passes


def phase_order(problem: Problem, phases: Sequence[int]) -> list[int]:
    """All ops once: forward ops group by group, then backward ops phase by phase, naturally ordered in each."""
    late = [-phase for phase in phases]
    return sorted(problem.forward, key=phases.__getitem__) + sorted(problem.backward, key=late.__getitem__)


def without_dead_repeats(problem: Problem, schedule: Sequence[int]) -> list[int]:
    """The schedule without those repeats that nothing reads before the op runs again, and without what they needed."""
    copies = Copies.of(problem, tuple(schedule))
    left: list[int] = copies.ops[copies.needed()].tolist()
    return left

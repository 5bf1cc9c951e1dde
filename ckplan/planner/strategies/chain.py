"""The forward pass as a chain of stages, with the figures that a chain planner needs; and its schedules."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ckplan.planner.cuts import Cut
from ckplan.planner.phases import backward_phases, phase_order, without_dead_repeats
from ckplan.planner.problem import Problem
from ckplan.planner.simulate import lifetimes

Array = npt.NDArray[np.float64]
Action = tuple[int, int] | int
"""``(k, l)``: run the forward ops of stages k to l - 1; a number: run the backward ops of that stage."""


@dataclass(frozen=True)
class Chain:
    """Stages between cuts: stage ``k`` lies between cut ``k`` and cut ``k + 1``, cut 0 is the beginning.

    Bytes are of activations. What stays in memory whatever the plan is counts nothing.

    Attributes:
        forward: op ids of each stage.
        backward: op ids of each stage's part of the backward pass, in order.
        advance_cost: seconds to run again what makes the cut after each stage.
        reverse_cost: seconds to run again what the backward ops of each stage need.
        record_cost: seconds to run again both.
        added: [k, l]: bytes that cross cut ``l`` beyond those that cross cut ``k``.
        gradient: bytes of gradients that are alive when the backward pass arrives at the end of each stage.
        saved: bytes beyond cut ``k`` that must be held to run the backward ops of stage ``k`` without running its
            forward ops again, its output included.
        advance: bytes beyond cut ``k`` while its forward ops run and only its output is held.
        record: the same while all is held that its backward ops read.
        reverse: bytes beyond cut ``k`` while its backward ops run.
    """

    forward: tuple[tuple[int, ...], ...]
    backward: tuple[tuple[int, ...], ...]
    advance_cost: Array
    reverse_cost: Array
    record_cost: Array
    added: Array
    gradient: Array
    saved: Array
    advance: Array
    record: Array
    reverse: Array


def make_chain(problem: Problem, cuts: Sequence[Cut]) -> Chain:
    """Divide the forward pass at some cuts, in order, and the backward pass with it.

    Memory is read off one simulated run in which nothing is recomputed and the backward ops run by stages.
    """
    bounds = [0, *(cut.position for cut in cuts), len(problem.forward)]
    forward = [problem.forward[low:high] for low, high in itertools.pairwise(bounds)]
    count = len(forward)
    root = problem.view_root
    group = [0] * len(problem.ops)
    for stage, members in enumerate(forward):
        for index in members:
            group[index] = stage
    phases = backward_phases(problem, group)
    order = phase_order(problem, phases)
    backward: list[list[int]] = [[] for _ in range(count)]
    for index in order:
        if problem.ops[index].backward:
            backward[phases[index]].append(index)

    # What cannot be recomputed is held from where it is made to where it is read last, whatever the plan is.
    pinned = {
        root[t] for index in problem.forward if not problem.ops[index].recomputable for t in problem.ops[index].outputs
    }.intersection(problem.stashed)
    stashed = set(problem.stashed) - pinned
    crossing = [set(), *(set(cut.crossing) - pinned for cut in cuts), set()]
    made = [{root[tensor] for index in members for tensor in problem.ops[index].outputs} for members in forward]

    def size(roots: Iterable[int]) -> int:
        return sum(problem.tensors[base].bytes for base in roots)

    outputs = [crossing[stage + 1] & made[stage] for stage in range(count)]
    read = [made[stage] & stashed for stage in range(count)]
    figures = _simulated(problem, order, phases, made, crossing, pinned)
    return Chain(
        forward=tuple(forward),
        backward=tuple(map(tuple, backward)),
        advance_cost=np.array([_cost_of(problem, forward[stage], outputs[stage]) for stage in range(count)]),
        reverse_cost=np.array([_cost_of(problem, forward[stage], read[stage]) for stage in range(count)]),
        record_cost=np.array(
            [_cost_of(problem, forward[stage], read[stage] | outputs[stage]) for stage in range(count)]
        ),
        added=np.array([[size(after - before) for after in crossing[:count]] for before in crossing[:count]], float),
        gradient=figures[0],
        saved=np.array([size((read[stage] | outputs[stage]) - crossing[stage]) for stage in range(count)], float),
        advance=figures[1],
        record=figures[2],
        reverse=figures[3],
    )


def _cost_of(problem: Problem, stage: Sequence[int], wanted: Collection[int]) -> float:
    """Cost of those ops of a stage that must run again to make some tensors."""
    root = problem.view_root
    needed = set(wanted)
    cost = 0.0
    for index in reversed(stage):
        op = problem.ops[index]
        if op.recomputable and any(root[tensor] in needed for tensor in op.outputs):
            cost += op.cost
            needed.update(root[tensor] for tensor in op.inputs)
    return cost


def _simulated(
    problem: Problem,
    order: Sequence[int],
    phases: Sequence[int],
    made: Sequence[set[int]],
    crossing: Sequence[set[int]],
    pinned: set[int],
) -> tuple[Array, Array, Array, Array]:
    """The figures ``gradient``, ``advance``, ``record`` and ``reverse`` of `Chain`, off a run in a given order."""
    count = len(made)
    gradient, advance, record, reverse = (np.zeros(count) for _ in range(4))
    root = problem.view_root
    all_made = set().union(*made)
    lives = lifetimes(problem, order)
    holds: list[set[int]] = [set() for _ in lives.size]  # roots that share the buffer, one after the other
    born: list[list[int]] = [[] for _ in order]
    for index, row in zip(order, lives.buffer, strict=True):
        for tensor, buffer in zip(problem.ops[index].outputs, row, strict=True):
            if buffer >= 0:
                holds[buffer].add(root[tensor])
    for buffer, step in enumerate(lives.born):
        if not lives.returned[buffer]:
            born[step].append(buffer)
    last_forward_read = {
        base: max((reader for reader in readers if not problem.ops[reader].backward), default=-1)
        for base, readers in _readers_of_memory(problem).items()
    }
    alive: set[int] = set()
    previous = count
    for step, index in enumerate(order):
        op, stage = problem.ops[index], phases[index]
        alive = {buffer for buffer in alive if lives.dies[buffer] >= step}
        if op.backward and stage < previous:
            gradient[stage:previous] = sum(lives.size[b] for b in alive if not holds[b] & all_made)
            previous = stage
        alive.update(born[step])
        touched = {root[tensor] for tensor in (*op.inputs, *op.outputs)}
        everything = in_passing = float(problem.workspaces[index])
        for buffer in alive:
            held = holds[buffer]
            if held & all_made:
                # What other stages made is either at the cut or does not exist here.
                if not held & made[stage] or held & pinned or held & crossing[stage]:
                    continue
                needed = held & touched or held & crossing[stage + 1]
                if needed or any(last_forward_read.get(base, -1) > index for base in held):
                    in_passing += lives.size[buffer]
            everything += lives.size[buffer]
        if op.backward:
            reverse[stage] = max(reverse[stage], everything)
        else:
            record[stage] = max(record[stage], everything)
            advance[stage] = max(advance[stage], in_passing)
    return gradient, advance, record, reverse


def _readers_of_memory(problem: Problem) -> dict[int, list[int]]:
    readers: dict[int, list[int]] = {}
    for tensor, those in enumerate(problem.consumers):
        readers.setdefault(problem.view_root[tensor], []).extend(those)
    return readers


def expand(problem: Problem, chain: Chain, actions: Sequence[Action]) -> list[int]:
    """The schedule of a sequence of actions, without what would run again for nothing."""
    seen: set[int] = set()
    schedule: list[int] = []
    for action in actions:
        if isinstance(action, int):
            schedule += chain.backward[action]
            continue
        for stage in range(*action):
            for index in chain.forward[stage]:
                if index not in seen or problem.ops[index].recomputable:
                    seen.add(index)
                    schedule.append(index)
    return without_dead_repeats(problem, schedule)

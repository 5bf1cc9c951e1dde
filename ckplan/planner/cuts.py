"""Cuts of the forward pass: between which ops few bytes are alive.

A cut is a position in the forward order; what crosses it are the activations made before it and read by
forward ops after it. Holding exactly those lets everything after the cut be recomputed. A cut crossed by a
single tensor is a bottleneck: all paths from the inputs to the loss pass through that tensor.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from ckplan.arguments import check_kind, check_number
from ckplan.planner.problem import Kind, Problem


@dataclass(frozen=True, slots=True)
class Cut:
    """A position in the forward pass.

    Attributes:
        position: number of forward ops before the cut.
        crossing: roots of the activations that cross it, largest first.
        bytes: their total size.
        tensors: how many of them are not tiny (see `forward_cuts`).
    """

    position: int
    crossing: tuple[int, ...]
    bytes: int
    tensors: int


def forward_cuts(problem: Problem, min_bytes: int = 0) -> list[Cut]:
    """The cut after each forward op but the last, in order.

    Args:
        problem: the ops and tensors.
        min_bytes: tensors smaller than this (masks, means, indices) do not count towards `Cut.tensors`; by default
            a thousandth of the largest stashed activation.
    """
    min_bytes = min_bytes or max((problem.tensors[root].bytes for root in problem.stashed), default=0) // 1000
    forward = problem.forward
    place = {index: position for position, index in enumerate(forward)}
    last_read: dict[int, int] = {}
    made: dict[int, int] = {}
    for position, index in enumerate(forward):
        op = problem.ops[index]
        for tensor in op.inputs:
            last_read[problem.view_root[tensor]] = position
        for tensor in op.outputs:
            root = problem.view_root[tensor]
            if problem.tensors[root].kind is Kind.ACTIVATION and problem.producer[root] in place:
                made.setdefault(root, position)
    starts: list[list[int]] = [[] for _ in range(len(forward) + 1)]
    ends: list[list[int]] = [[] for _ in range(len(forward) + 1)]
    for root, position in made.items():
        if last_read.get(root, -1) > position:
            starts[position].append(root)
            ends[last_read[root]].append(root)
    alive: list[tuple[int, int]] = []  # what crosses, as (-bytes, root), sorted
    total = tensors = 0
    cuts = []
    for position in range(len(forward) - 1):
        for roots, sign in ((starts[position], 1), (ends[position], -1)):
            for root in roots:
                size = problem.tensors[root].bytes
                total += sign * size
                tensors += sign * (size >= min_bytes)
                rank = bisect_left(alive, (-size, root))
                if sign > 0:
                    alive.insert(rank, (-size, root))
                else:
                    del alive[rank]
        cuts.append(Cut(position + 1, tuple([root for _, root in alive]), total, tensors))
    return cuts


def bottlenecks(problem: Problem, min_bytes: int = 0) -> list[int]:
    """Tensors through which all paths from the inputs to the loss pass, in forward order, each once.

    Args:
        problem: the ops and tensors.
        min_bytes: see `forward_cuts`.

    Raises:
        UsageError: one of the two is of another kind.
    """
    check_kind("the problem", problem, Problem, "make one with `ckplan.problem_of`")
    check_number("the least size of a tensor", min_bytes)
    found: dict[int, None] = {}
    for cut in forward_cuts(problem, min_bytes):
        if cut.tensors == 1:
            found.setdefault(cut.crossing[0])
    return list(found)


def kept_by_cuts(problem: Problem, cuts: Sequence[Cut]) -> set[int]:
    """What to keep so that the segments between cuts are recomputed one by one.

    The last segment is kept whole: the backward pass begins with it, while its activations are still alive.
    """
    kept = {root for cut in cuts for root in cut.crossing}
    start = max((cut.position for cut in cuts), default=0)
    for index in problem.forward[start:]:
        kept.update(problem.view_root[tensor] for tensor in problem.ops[index].outputs)
    return kept


def segment_limits(problem: Problem, count: int) -> list[float]:
    """Limits to try for `segment_cuts`: from the largest stashed activation to all of them, evenly in the logarithm."""
    sizes = [problem.tensors[root].bytes for root in problem.stashed]
    low, high = max(max(sizes, default=0), 1), max(sum(sizes), 2)
    return [low * (high / low) ** (step / count) for step in range(count)] if sizes else []


@lru_cache(maxsize=8)
def _stashed_before(problem: Problem) -> Sequence[int]:
    """Bytes that are stashed of what the forward ops before each position make."""
    stash = set(problem.stashed)
    cumulative = [0]
    for index in problem.forward:
        made = stash.intersection(problem.ops[index].outputs)
        cumulative.append(cumulative[-1] + sum(problem.tensors[root].bytes for root in made))
    return cumulative


def segment_cuts(problem: Problem, candidates: Sequence[Cut], limit: float) -> list[Cut]:
    """Cut greedily so that no segment stashes more than ``limit`` bytes, where the candidates allow it.

    Chen et al.'s algorithm 3 (arXiv:1604.06174), with the cheapest cut of the second half of the allowed
    stretch in place of the last one, and with the bytes kept so far counted against the limit: the first
    segments, whose backward pass runs when everything after them is gone, may be longer.
    """
    cumulative = _stashed_before(problem)
    made_before = [cumulative[cut.position] for cut in candidates]
    chosen: list[Cut] = []
    kept: set[int] = set()
    kept_bytes = start = 0
    index = 0
    while index < len(candidates):
        room = limit - kept_bytes
        if cumulative[-1] - cumulative[start] <= room:
            break
        end = max(bisect_right(made_before, cumulative[start] + room, index), index + 1)
        half = cumulative[start] + (made_before[end - 1] - cumulative[start]) / 2
        best = min(
            range(bisect_left(made_before, half, index, end), end),
            key=lambda i: (candidates[i].bytes, -candidates[i].position),
        )
        chosen.append(candidates[best])
        kept_bytes += sum(problem.tensors[root].bytes for root in set(candidates[best].crossing) - kept)
        kept.update(candidates[best].crossing)
        start = candidates[best].position
        index = best + 1
    return chosen

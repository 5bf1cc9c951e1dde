"""`segments`: the user's checkpoints, and segments between them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.errors import UsageError
from ckplan.planner.cuts import bottlenecks
from ckplan.planner.order import best_order
from ckplan.planner.phases import without_dead_repeats
from ckplan.planner.problem import Kind, Problem
from ckplan.planner.recompute import kept_closure
from ckplan.planner.strategies.base import Strategy
from ckplan.planner.strategies.keep_listed import KeepListed


@dataclass(frozen=True)
class Segmentation:
    """What checkpoints mean for a problem.

    Attributes:
        segments: the forward ops of each recomputed segment, in order.
        held: roots of the tensors that stay in memory until the backward pass has read them.
        crossing: names of the values that are held because they cross from a segment to later ones without being a
            checkpoint; other checkpoints might make them fewer.
    """

    segments: tuple[tuple[int, ...], ...]
    held: frozenset[int]
    crossing: tuple[str, ...]


@dataclass(frozen=True)
class Segments(Strategy):
    """Hold checkpoints and recompute the forward ops between one and the next when the backward pass arrives there.

    Paddle's recompute pass. The first segment reaches from the start to the op that makes the first checkpoint, each
    other one from there to the next checkpoint; what stands after the last checkpoint is not recomputed. Checkpoints
    may be given in any order. A value that a segment makes and later forward ops read is held even if it is
    no checkpoint, see `segmentation`. So are reserved values, and what cannot be recomputed (random ops, so that the
    backward pass sees the same numbers). A segment is run again as a whole, without ops whose results are held or are
    read by nobody, right before the first backward op that reads any of it. O(ops).

    Without checkpoints, the model's own collection is used; without that, every sqrt(N)-th of N bottlenecks, if that
    lowers the peak. The wrong choice where nobody knows the model: one bad checkpoint leaves values that cross
    segments in memory (`memory` finds cuts itself).

    Attributes:
        checkpoints: names or regular expressions (matched against the whole name), with ``;`` between them.
        reserved: values to hold besides, likewise.
        no_recompute: numbers of segments, from 0, that are kept whole; negative numbers count from the last one.
    """

    name: ClassVar[str] = "segments"
    checkpoints: tuple[str, ...] = ()
    reserved: tuple[str, ...] = ()
    no_recompute: tuple[str, ...] = ()

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """The schedule of the given checkpoints; if none are given, no recomputation as well."""
        order = best_order(problem)
        schedules = [segment_schedule(problem, self.segmentation(problem), order)]
        return schedules if self.checkpoints or problem.collection else [order, *schedules]

    def segmentation(self, problem: Problem) -> Segmentation:
        """The segments that the checkpoints make, and what is held.

        Raises:
            UsageError: a checkpoint or reserved value does not exist, or a segment number is none.
        """
        place = {index: position for position, index in enumerate(problem.forward)}
        checkpoints = self._checkpoints(problem)
        ends = sorted({place[problem.producer[tensor]] + 1 for tensor in checkpoints})
        bounds = list(zip([0, *ends], ends, strict=False))
        kept_whole = self._segment_numbers(len(bounds))
        segments = tuple(
            tuple(problem.forward[start:end]) for number, (start, end) in enumerate(bounds) if number not in kept_whole
        )
        root = problem.view_root
        held = {root[tensor] for tensor in checkpoints}
        if self.reserved:
            held.update(root[tensor] for tensor in KeepListed().matching(problem, self.reserved))
        segment_of = {index: number for number, segment in enumerate(segments) for index in segment}
        crossing: dict[int, None] = {}
        for index in problem.forward:
            for tensor in problem.ops[index].outputs:
                if index not in segment_of:
                    held.add(root[tensor])
                elif problem.tensors[root[tensor]].kind is Kind.ACTIVATION and any(
                    segment_of.get(reader) != segment_of[index] and not problem.ops[reader].backward
                    for reader in problem.consumers[tensor]
                ):
                    crossing.setdefault(root[tensor])
        crossing = {tensor: None for tensor in crossing if tensor not in held}
        names = tuple(problem.tensors[tensor].name for tensor in crossing)
        return Segmentation(segments, frozenset(held.union(crossing)), names)

    def _checkpoints(self, problem: Problem) -> set[int]:
        patterns = self.checkpoints or problem.collection
        if patterns:
            return KeepListed().matching(problem, patterns)
        found = bottlenecks(problem)
        step = max(round(math.sqrt(len(found))), 1)
        return set(found[step - 1 :: step])

    def _segment_numbers(self, count: int) -> set[int]:
        numbers = set()
        for text in self.no_recompute:
            try:
                numbers.add(range(count)[int(text)])
            except (ValueError, IndexError) as error:
                raise UsageError(
                    f"`{text}` is not the number of a segment", f"there are {count}, the first is 0"
                ) from error
        return numbers


def segment_schedule(problem: Problem, found: Segmentation, order: Sequence[int]) -> list[int]:
    """Run each segment again right before the first backward op that reads what it makes and is not held.

    An order may have backward ops before the end of a segment: of that runs again what has run by then.
    """
    ops, producer = problem.ops, problem.producer
    available = kept_closure(problem, found.held)
    segment_of = {index: number for number, segment in enumerate(found.segments) for index in segment}
    schedule: list[int] = []
    ran: set[int] = set()
    for index in order:
        if ops[index].backward:
            needed = {
                segment_of[producer[tensor]]
                for tensor in ops[index].inputs
                if tensor not in available and producer[tensor] in segment_of
            }
            for number in sorted(needed):
                left = (other for other in found.segments[number] if not available.issuperset(ops[other].outputs))
                again = [other for other in left if other in ran]
                schedule += again
                available.update(tensor for other in again for tensor in ops[other].outputs)
        schedule.append(index)
        ran.add(index)
    return without_dead_repeats(problem, schedule)

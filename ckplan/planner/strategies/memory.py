"""`memory`: keep bottleneck tensors."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.planner.cuts import Cut, forward_cuts, kept_by_cuts, segment_cuts, segment_limits
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Problem
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.refine import keep_what_fits
from ckplan.planner.strategies.monotone import MonotoneStrategy

_LIMITS = 24
"""How many segment limits are tried between the largest activation and the whole stash, evenly in their logarithm."""


@dataclass(frozen=True)
class Memory(MonotoneStrategy):
    """Keep about sqrt(N) bottleneck tensors and recompute the segments between them, for the lowest peak.

    The `memory` collection of TensorFlow's memory-saving gradients (Salimans & Bulatov, 2018,
    github.com/cybertronai/gradient-checkpointing) keeps tensors through which all paths pass. Which of them is
    decided as in Chen et al.'s algorithm 3 (arXiv:1604.06174): segments by bytes under a limit, the limit searched,
    the simulator judging. Where a graph has no bottlenecks (U-Net, Inception inside a block), small cuts of several
    tensors serve as well. O(limits x ops). The wrong choice when time matters more than memory.

    Attributes:
        min_bytes: tensors below this size (masks, means, indices) do not spoil a bottleneck; 0 means a thousandth of
            the largest stashed activation.
    """

    name: ClassVar[str] = "memory"
    least: ClassVar[Mapping[str, float]] = {"min_bytes": 0}
    retained: ClassVar[int] = 4
    min_bytes: int = 0

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, the best of segmentations at bottlenecks and at small cuts, and its refinement."""
        order = best_order(problem)
        yield order
        judged = []
        for candidate in self.segmentations(problem):
            schedule = recompute_schedule(problem, candidate, order)
            judged.append((peak_of(problem, schedule), problem.schedule_cost(schedule), sorted(candidate)))
        if judged:
            peak, _, kept = min(judged)
            for chosen in (set(kept), keep_what_fits(problem, kept, peak, order)):
                yield recompute_schedule(problem, chosen, order)

    def pool(self, problem: Problem) -> Iterable[Sequence[int]]:
        """These, and each segmentation."""
        order = best_order(problem)
        yield from self.schedules(problem)
        for candidate in self.segmentations(problem):
            yield recompute_schedule(problem, candidate, order)

    def segmentations(self, problem: Problem) -> Iterable[set[int]]:
        """Sets of kept tensors: cuts at bottlenecks and at small cuts, for a range of segment limits."""
        for chosen in self.boundaries(problem):
            yield kept_by_cuts(problem, chosen)

    def boundaries(self, problem: Problem) -> Iterator[Sequence[Cut]]:
        """The cuts between segments, for a range of segment limits; none twice."""
        cuts = [cut for cut in forward_cuts(problem, self.min_bytes) if cut.tensors]
        tried: set[tuple[int, ...]] = set()
        for candidates in ([cut for cut in cuts if cut.tensors == 1], cuts, local_minima(cuts)):
            for limit in segment_limits(problem, _LIMITS):
                chosen = segment_cuts(problem, candidates, limit)
                positions = tuple(cut.position for cut in chosen)
                if positions and positions not in tried:
                    tried.add(positions)
                    yield chosen


def local_minima(cuts: Sequence[Cut]) -> list[Cut]:
    """Cuts with no fewer bytes right before and right after them."""
    return [
        cut
        for index, cut in enumerate(cuts)
        if (index == 0 or cuts[index - 1].bytes >= cut.bytes)
        and (index + 1 == len(cuts) or cuts[index + 1].bytes >= cut.bytes)
    ]

"""`chen`: greedy segments by size, the size searched."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from ckplan.planner.cuts import Cut, forward_cuts, kept_by_cuts
from ckplan.planner.order import best_order
from ckplan.planner.problem import Kind, Problem
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.strategies.base import Strategy

_GRID = 24
"""How many segment sizes are tried between the largest and all activations, evenly in their logarithm."""
_NEAR = 6
"""How many more are tried around the square root of what the first ones keep and recompute, as the paper does."""


@dataclass(frozen=True)
class Chen(Strategy):
    """Walk through the forward pass, sum up what it makes, and keep a candidate whenever the sum exceeds a size.

    Chen et al., "Training Deep Nets with Sublinear Memory Cost" (arXiv:1604.06174), algorithm 3, with the search
    over the size b that it describes: with x bytes kept and segments of at most y bytes, the next sizes are tried
    within a factor of sqrt(2) of sqrt(x y). Candidates are the places where a single tensor crosses; without
    limit to the number of tensors when ``any_cut`` is set or there are no such places. O(sizes x ops). The
    simulator judges. With a budget, the cheapest plan found within it. The wrong choice where activations of
    different size or cost meet: the cut right after the limit is taken, however wide it is (see `memory`), and
    cheap ops are treated like expensive ones (see `lower_sets`).

    Attributes:
        segment_bytes: the size b, if it is not to be searched.
        any_cut: also cut where several tensors cross.
    """

    name: ClassVar[str] = "chen"
    least: ClassVar[Mapping[str, float]] = {"segment_bytes": 0, "any_cut": 0}
    segment_bytes: int = 0
    any_cut: int = 0

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, then a schedule for each size that gives other segments."""
        order = best_order(problem)
        yield order
        cuts = [cut for cut in forward_cuts(problem) if cut.tensors]
        single = [cut for cut in cuts if cut.tensors == 1]
        candidates = cuts if self.any_cut or not single else single
        tried: set[tuple[int, ...]] = set()
        for size in self._sizes(problem, candidates):
            chosen, _ = greedy_segments(problem, candidates, size)
            positions = tuple(cut.position for cut in chosen)
            if positions and positions not in tried:
                tried.add(positions)
                yield recompute_schedule(problem, kept_by_cuts(problem, chosen), order)

    def _sizes(self, problem: Problem, candidates: Sequence[Cut]) -> Iterator[float]:
        if self.segment_bytes:
            yield self.segment_bytes
            return
        made = [size for size in _made(problem) if size]
        if not made:
            return
        low, high = math.log(max(made)), math.log(sum(made))
        for step in range(_GRID):
            yield math.exp(low + (high - low) * step / _GRID)
        chosen, longest = greedy_segments(problem, candidates, math.exp((low + high) / 2))
        middle = math.sqrt(max(sum(cut.bytes for cut in chosen), 1) * max(longest, 1))
        for step in range(_NEAR):
            yield middle * math.sqrt(2) ** (2 * step / (_NEAR - 1) - 1)


def greedy_segments(problem: Problem, candidates: Sequence[Cut], size: float) -> tuple[list[Cut], int]:
    """The cuts of algorithm 3 and the bytes made in the longest segment between them."""
    by_position = {cut.position: cut for cut in candidates}
    chosen: list[Cut] = []
    longest = current = 0
    for position, made in enumerate(_made(problem), start=1):
        current += made
        if current > size and position in by_position:
            chosen.append(by_position[position])
            longest, current = max(longest, current), 0
    return chosen, max(longest, current)


@lru_cache(maxsize=4)
def _made(problem: Problem) -> tuple[int, ...]:
    """Bytes of activations that each forward op makes, views left out."""
    return tuple(
        sum(
            problem.tensors[tensor].bytes
            for tensor in problem.ops[index].outputs
            if problem.view_root[tensor] == tensor and problem.tensors[tensor].kind is Kind.ACTIVATION
        )
        for index in problem.forward
    )

"""`mincut`: keep what a minimum cut chooses at a price per byte."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.planner.order import best_order
from ckplan.planner.problem import Problem
from ckplan.planner.search import cut_schedules
from ckplan.planner.strategies.memory import Memory
from ckplan.planner.strategies.monotone import MonotoneStrategy, cheapest_planned

_FEW = 8
"""How many segmentations `FewCuts` takes boundaries from."""


@dataclass(frozen=True)
class MinCut(MonotoneStrategy):
    """Cut the graph between forward and backward pass where held bytes and repeated compute together cost least.

    The idea of torch's min-cut partitioner (torch/_functorch/partitioners.py), which weighs bytes only and forbids what
    is expensive to repeat. Here each op costs what it costs and each byte a price; the prices are searched, with and
    without boundaries of segments that are kept in any case, and the simulator judges the peak. Exact for its choice,
    and O(cuts) of a flow that is nearly linear in practice. The wrong choice where ops have to run more than twice.
    """

    name: ClassVar[str] = "mincut"

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, and what is cut at each price."""
        order = best_order(problem)
        boundaries = [(), *Memory().boundaries(problem)]
        return [order, *cut_schedules(problem, order, boundaries)]

    def pool(self, problem: Problem) -> Iterable[Sequence[int]]:
        """All of these."""
        return self.schedules(problem)


class FewCuts(MinCut):
    """`mincut` for who has little time: few of its boundaries, and plans for the budget alone.

    For graphs of 1,000 ops it takes less than a tenth of a second, where `mincut` takes up to one. Not a strategy that
    can be asked for: a larger budget may lead it to a dearer plan.
    """

    def pool(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, and what is cut at each price between segments of a few sizes."""
        order, boundaries = best_order(problem), list(Memory().boundaries(problem))
        few = boundaries[:: max(len(boundaries) // _FEW, 1)]
        return [order, *cut_schedules(problem, order, [(), *few])]

    def cheaper(self, problem: Problem, budget: int, most_cost: float) -> Sequence[int] | None:
        """The cheapest of these within a budget, with what there is room to retain, if it costs less than so much."""
        found = cheapest_planned(self, problem, budget)
        return None if found is None or found[0] >= most_cost else found[1]

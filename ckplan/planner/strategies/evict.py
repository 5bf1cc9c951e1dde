"""`evict`: drop what is cheapest to recompute when memory runs out, with the future known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.planner.bounds import lower_bound
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Problem
from ckplan.planner.search import evictions, within
from ckplan.planner.strategies.base import Strategy, one_more_forward


@dataclass(frozen=True)
class Evict(Strategy):
    """Run the graph within the budget, evicting what costs least to recompute for its bytes and its time unused.

    Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021, arXiv:2006.09616) made offline: the order of ops is
    known, so the time to the next use stands for the time since the last one, and a pass afterwards retains what there
    turns out to be room for. Any graph, any number of recomputations; O(n log n), some ten seconds for 100 000 ops.
    Made for a budget: without one, budgets are tried downwards, as long as no more than one more forward pass is spent.
    The wrong choice close to the lowest possible peak, where chains of recomputations evict each other (`search`).
    """

    name: ClassVar[str] = "evict"

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, then schedules of ever lower budgets."""
        order = best_order(problem)
        yield order
        most = one_more_forward(problem)
        budget, bound = peak_of(problem, order), lower_bound(problem)[0]
        while budget > bound:
            budget = max(int(budget * 0.9), bound)
            found = list(within(problem, evictions(problem, budget, order, most), budget))
            if not found:
                break
            yield from found

    def solve(self, problem: Problem, budget: int | None = None) -> Plan:
        """The cheapest plan within the budget, or the one of the lowest peak.

        Raises:
            InfeasibleError: eviction does not keep to the budget.
        """
        return self.choose(problem, self._candidates(problem, budget), budget)

    def _candidates(self, problem: Problem, budget: int | None) -> Iterator[Sequence[int]]:
        if budget is None:
            yield from self.schedules(problem)
            return
        order = best_order(problem)
        yield order
        if peak_of(problem, order) > budget:
            yield from within(problem, evictions(problem, budget, order, 3 * problem.cost), budget)

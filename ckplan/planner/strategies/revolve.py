"""`revolve`: optimal checkpointing of a chain, with any number of recomputations."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from ckplan.planner.cuts import Cut, forward_cuts
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.plan import Plan
from ckplan.planner.problem import Problem
from ckplan.planner.strategies.base import Strategy
from ckplan.planner.strategies.chain import Action, Chain, expand, make_chain
from ckplan.planner.strategies.chain_table import ChainTable
from ckplan.planner.strategies.monotone import MOST_OPS, judged_pool

_TRIED = 24
"""How many amounts of memory become schedules, of those at which the modelled cost changes."""
_STEP = 1.5
"""Ratio of the memory of one table to that of the next: from sizes that are rounded less come other schedules."""
_ABOVE = 1.25
"""How far above a budget the model is looked at: it may be off either way."""


@dataclass(frozen=True)
class Revolve(Strategy):
    """Divide the graph into a chain of stages and checkpoint the chain optimally; a stage may run many times.

    Griewank & Walther, "Algorithm 799: Revolve" (ACM TOMS 2000), for stages that differ in cost and size as in
    Beaumont et al., "Optimal Checkpointing for Heterogeneous Chains" (rotor, arXiv:1911.13214): from a cut on one
    either runs to a later cut, holds that, and returns to the first part afterwards, or runs one stage and holds
    all that its backward ops read. Dynamic programming over (first stage, last stage, memory) finds the cheapest;
    on a chain of equal steps that is Revolve's binomial schedule. Stages end where few bytes cross. Memory is
    divided into ``slots``, sizes rounded, and modelled by stages, so schedules for several amounts are judged by
    simulation, the same ones for every budget (for graphs of more than 2000 ops those near it): a larger budget is
    never dearer. O(stages^3 x slots): seconds for 200 stages.

    The wrong choice where the graph is no chain (long skips cross every cut between their ends), and where it
    pays to keep one activation of a stage and recompute the next one: stages are kept or recomputed as a whole.

    Attributes:
        max_extra: without a budget, how many forward passes of extra cost the lowest peak may take; 0 means any
            number: a chain of n equal stages can be reversed in a few states with n / 2 extra passes.
        stages: the most stages.
        slots: into how many units memory is divided.
    """

    name: ClassVar[str] = "revolve"
    least: ClassVar[Mapping[str, float]] = {"max_extra": 0, "stages": 1, "slots": 1}
    max_extra: float = 0.0
    stages: int = 120
    slots: int = 300

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, then the chain's schedules for the amounts of memory below that, within ``max_extra``."""
        order = best_order(problem)
        yield order
        yield from self._chain_schedules(problem, peak_of(problem, order))

    def solve(self, problem: Problem, budget: int | None = None) -> Plan:
        """The plan of the lowest peak, or the cheapest found within a budget.

        Raises:
            InfeasibleError: the lowest peak that was found exceeds the budget.
        """
        order: Sequence[int] = best_order(problem)
        if budget is None:
            # The first search is coarse; the second one has all its slots below what the first one found.
            coarse = self.choose(problem, self.schedules(problem), None)
            limit = coarse.predicted.peak_activations
            return self.choose(problem, [coarse.schedule, *self._chain_schedules(problem, limit)], None)
        if peak_of(problem, order) <= budget:
            return self.choose(problem, [order], budget)
        if len(problem.ops) > MOST_OPS:
            return self.choose(problem, [order, *self._near(problem, budget)], budget)
        pool = judged_pool(self, problem)
        best = min(pool, key=lambda judged: self.merit(judged[1], judged[0], budget))
        return self.choose(problem, [best[2]], budget)

    def pool(self, problem: Problem) -> Iterator[Sequence[int]]:
        """The schedules that a budget chooses among: those of tables for ever less memory, down to the lowest peak.

        They do not depend on the budget, so that what is planned for less memory is there for more as well.
        """
        order = best_order(problem)
        least, peak = replace(self, max_extra=0.0).solve(problem), peak_of(problem, order)
        yield order
        yield least.schedule
        limit, seen = peak * _ABOVE, set[tuple[Action, ...]]()
        while problem.forward and limit >= max(least.predicted.peak_activations, 1):
            chain, table = self._table(problem, int(limit))
            limit /= _STEP
            for actions in (tuple(table.actions(slot)) for slot in table.changes()):
                if actions not in seen:
                    seen.add(actions)
                    yield expand(problem, chain, actions)

    def _chain_schedules(self, problem: Problem, most: int) -> Iterator[Sequence[int]]:
        """Schedules for amounts of memory up to ``most`` bytes, more of them where those are small."""
        if not problem.forward or most <= 0:
            return
        chain, table = self._table(problem, most)
        # The lowest peak is near the least memory of the model, or elsewhere if the model is poor.
        limit = self.max_extra * sum(problem.ops[index].cost for index in problem.forward) or math.inf
        changes = [slot for slot in table.changes() if table.extra_cost(slot) <= 1.1 * limit]
        rest = changes[_TRIED:]
        for slot in (*changes[:_TRIED], *rest[:: -(-len(rest) // _TRIED) or 1]):
            schedule = expand(problem, chain, table.actions(slot))
            if problem.schedule_cost(schedule) - problem.cost <= limit * (1 + 1e-9):
                yield schedule

    def _near(self, problem: Problem, budget: int) -> Iterator[Sequence[int]]:
        """Schedules for amounts of memory around a budget."""
        if not problem.forward or budget <= 0:
            return
        chain, table = self._table(problem, int(budget * _ABOVE))
        changes = table.changes()
        low, high = 0, len(changes)
        while low < high:
            middle = (low + high) // 2
            schedule = expand(problem, chain, table.actions(changes[middle]))
            yield schedule
            if peak_of(problem, schedule) <= budget:
                low = middle + 1
            else:
                high = middle
        for slot in changes[max(low - _TRIED // 2, 0) : low + _TRIED // 2]:
            yield expand(problem, chain, table.actions(slot))

    def _table(self, problem: Problem, most: int) -> tuple[Chain, ChainTable]:
        return _chain(problem, self.stages), _table(problem, self.stages, most, self.slots)


@lru_cache(maxsize=4)
def _chain(problem: Problem, most_stages: int) -> Chain:
    """The forward pass as a chain; it is the same for every amount of memory."""
    return make_chain(problem, stage_cuts(problem, most_stages))


@lru_cache(maxsize=3)
def _table(problem: Problem, stages: int, most: int, slots: int) -> ChainTable:
    """The table up to so many bytes; that of all memory is read for the lowest peak, and again for a budget."""
    return ChainTable(_chain(problem, stages), most, slots)


def stage_cuts(problem: Problem, most_stages: int) -> list[Cut]:
    """Where stages end: the cuts with no fewer bytes right before and after, if need be the smallest of neighbours."""
    cuts = forward_cuts(problem)
    minima = [
        cut
        for index, cut in enumerate(cuts)
        if (index == 0 or cuts[index - 1].bytes >= cut.bytes)
        and (index + 1 == len(cuts) or cuts[index + 1].bytes >= cut.bytes)
    ]
    if len(minima) < most_stages:
        return minima
    cost = [0.0]
    for index in problem.forward:
        cost.append(cost[-1] + problem.ops[index].cost)
    best: dict[int, Cut] = {}
    for cut in minima:
        bucket = int(cost[cut.position] / (cost[-1] or 1.0) * (most_stages - 1))
        if bucket not in best or (cut.bytes, -cut.position) < (best[bucket].bytes, -best[bucket].position):
            best[bucket] = cut
    return list(best.values())[: most_stages - 1]

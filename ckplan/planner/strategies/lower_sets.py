"""`lower_sets`: dynamic programming over lower sets of the forward graph."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import numpy as np
import numpy.typing as npt

from ckplan.errors import UsageError
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.phases import backward_phases, phase_order
from ckplan.planner.problem import Problem
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.refine import keep_what_fits
from ckplan.planner.strategies.lower_set_graph import ForwardGraph, all_lower_sets, contract, principal_lower_sets
from ckplan.planner.strategies.monotone import MonotoneStrategy

Array = npt.NDArray[np.float64]

_STEPS = 14
"""How many limits of the memory model are tried from all activations and gradients at once downwards."""
_REFINEMENTS = 4
"""Bisections towards the smallest limit that the memory model allows."""
_AROUND = (2.5, 2.0, 1.7, 1.45, 1.25, 1.1, 1.0, 0.9)
"""Limits that are tried for a budget, in units of it: the model knows no liveness and is up to twice too high."""
_LABELS = 24
_BUDGET_LABELS = 256
"""How many trade-offs of memory against kept cost are carried on from each lower set, without and with a budget."""
_PICKED_NODES = 3_000
"""How many trade-offs of each limit become schedules, in forward ops of all of them; 6 at least, 48 at most."""
_SHARES = (0.85, 0.7, 0.55, 0.4, 0.3)
"""Shares of the peak without recomputation that plans are looked for at."""

Choice = tuple[set[int], list[int]]
"""What to keep, and an order of all ops."""


@dataclass(frozen=True)
class LowerSets(MonotoneStrategy):
    """Choose a growing sequence of lower sets of the forward graph, keep their boundaries, recompute between them.

    Kusumoto et al., "A Graph Theoretic Framework of Recomputation Algorithms for Memory-Efficient Backpropagation"
    (NeurIPS 2019, arXiv:1905.11722). A lower set holds with each op all that the op needs; its boundary is what ops
    outside read of it. The memory of a sequence is modelled as there, by the sizes of the steps between sets.
    From each limit on this model the paper takes two plans, the one that keeps most cost (time-centric) and the
    one that keeps least (memory-centric); here points between them are judged as well, each by simulation:
    the model has no liveness within a step and is up to twice too high. The last step is not recomputed.

    ``approx`` uses the O(ops) lower sets that are an op with all that it needs, ``exact`` all of them, ``auto`` all
    where they are few. O(sets^2 x labels) for each limit; graphs of more than some 600 ops are coarsened.
    The wrong choice for graphs with many parallel branches, where the approximate family is poor and the exact one too
    large, and when an op may have to be recomputed more than once to meet the budget.

    Attributes:
        family: ``auto``, ``approx`` or ``exact``.
        max_sets: the most lower sets with which the exact family is taken; 0 means six an op, or 8000 for ``exact``.
    """

    name: ClassVar[str] = "lower_sets"
    least: ClassVar[Mapping[str, float]] = {"max_sets": 0}
    retained: ClassVar[int] = 16
    family: str = "auto"
    max_sets: int = 0

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, schedules of sequences of lower sets under ever smaller limits, and the lowest refined."""
        order = best_order(problem)
        yield order
        lowest: tuple[int, float, Choice] | None = None
        for choice in self._choices(problem, order, None):
            schedule = recompute_schedule(problem, *choice)
            yield schedule
            peak, cost = peak_of(problem, schedule), problem.schedule_cost(schedule)
            if lowest is None or (peak, cost) < lowest[:2]:
                lowest = peak, cost, choice
        if lowest is not None:
            peak, _, (kept, backward_order) = lowest
            more = keep_what_fits(problem, kept, peak, backward_order)
            yield recompute_schedule(problem, more, backward_order)

    def pool(self, problem: Problem) -> Iterable[Sequence[int]]:
        """These, and those for several shares of the memory that the step takes without recomputation."""
        yield from self.schedules(problem)
        order = best_order(problem)
        for share in _SHARES:
            for choice in self._choices(problem, order, int(share * peak_of(problem, order))):
                yield recompute_schedule(problem, *choice)

    def _choices(self, problem: Problem, order: Sequence[int], budget: int | None) -> Iterator[Choice]:
        graph = contract(problem)
        if not graph.ops:
            return
        table = _Table(graph, self._lower_sets(graph))
        tried: set[bytes] = set()
        sweep = table.sweep() if budget is None else table.around(budget)
        for sequence in sweep:
            if (key := sequence.tobytes()) not in tried:
                tried.add(key)
                yield from _canonical(problem, graph, sequence, order)

    def _lower_sets(self, graph: ForwardGraph) -> npt.NDArray[np.bool_]:
        if self.family not in ("auto", "approx", "exact"):
            raise UsageError(f"strategy `{self.name}` has no family `{self.family}`", "choose auto, approx or exact")
        if self.family != "approx":
            limit = self.max_sets or (8000 if self.family == "exact" else 6 * len(graph.ops))
            found = all_lower_sets(graph, limit)
            if found is not None:
                return found
            if self.family == "exact":
                raise UsageError(f"the forward graph has more than {limit} lower sets", "use `family=approx`")
        return principal_lower_sets(graph)


class _Table:
    """The dynamic program over one family of lower sets."""

    def __init__(self, graph: ForwardGraph, sets: npt.NDArray[np.bool_]) -> None:
        self.sets = sets[np.argsort(sets.sum(1), kind="stable")]
        inside = self.sets.astype(np.float64)
        edges = graph.edges.astype(np.float64)
        boundary = ((1 - inside) @ edges.T > 0) & self.sets
        after = (inside @ edges > 0) & ~self.sets
        beside = (after.astype(np.float64) @ edges.T > 0) & ~self.sets
        size = inside @ graph.bytes
        # [i, j]: the step from set i to set j; read by columns.
        self.step_cost = np.asfortranarray(_newly(boundary * graph.cost, inside))
        self.step_held = np.asfortranarray(_newly(boundary * graph.held, inside))
        self.step_peak = np.asfortranarray(
            2 * (size[None, :] - size[:, None]) + (after @ graph.bytes + beside @ graph.bytes)[None, :]
        )
        allowed = inside @ inside.T >= inside.sum(1)[:, None] - 0.5
        np.fill_diagonal(allowed, False)
        self.step_peak[~allowed] = np.inf
        self.picked = max(6, min(48, _PICKED_NODES // len(graph.ops)))
        self.naive = 2 * float(graph.bytes.sum())

    def sweep(self) -> Iterator[npt.NDArray[np.bool_]]:
        """Sequences for limits from the highest useful one to the lowest possible one."""
        limit = high = self.naive
        infeasible = 0.0
        for _ in range(_STEPS):
            found = self.solve(limit, _LABELS)
            if not found:
                infeasible = limit
                break
            yield from found
            high = limit
            limit *= 0.8
        for _ in range(_REFINEMENTS if infeasible else 0):
            limit = (high + infeasible) / 2
            found = self.solve(limit, _LABELS)
            yield from found
            if found:
                high = limit
            else:
                infeasible = limit

    def around(self, budget: int) -> Iterator[npt.NDArray[np.bool_]]:
        """Sequences for limits that suit a budget."""
        for factor in _AROUND:
            if factor * budget <= self.naive:
                yield from self.solve(factor * budget, _BUDGET_LABELS)

    def solve(self, limit: float, labels: int) -> list[npt.NDArray[np.bool_]]:
        """Sequences within the limit from most to least kept cost, a number of them; none if there is none."""
        count = len(self.sets)
        # The labels of all sets behind each other, and where those of each set begin.
        held, kept = np.zeros(1 + count * labels), np.zeros(1 + count * labels)
        owner, came = (np.zeros(1 + count * labels, np.int64) for _ in range(2))
        least, start = np.full(count, np.inf), np.zeros(count + 1, np.int64)
        least[0], start[1] = 0.0, 1
        for target in range(1, count):
            filled = start[target + 1] = start[target]
            # A first label is the one with least memory.
            peak = self.step_peak[:target, target]
            sources = (least[:target] + peak <= limit).nonzero()[0]
            if not len(sources):
                continue
            first = start[sources[0]]
            span = slice(first, start[sources[-1] + 1])
            found = (held[span] + peak[owner[span]] <= limit).nonzero()[0] + first
            rows = owner[found]
            new_held = held[found] + self.step_held[:, target][rows]
            new_kept = kept[found] + self.step_cost[:, target][rows]
            best = _trade_offs(new_held, new_kept, limit, labels)
            own = slice(filled, filled + len(best))
            held[own], kept[own], owner[own], came[own] = new_held[best], new_kept[best], target, found[best]
            least[target], start[target + 1] = held[filled], own.stop
        ends = np.arange(start[count - 1], start[count])
        if not len(ends):
            return []
        picked = _spread(len(ends), self.picked)[::-1]
        return [self._sequence(owner, came, int(ends[pick])) for pick in picked]

    def _sequence(self, owner: npt.NDArray[np.int64], came: npt.NDArray[np.int64], label: int) -> npt.NDArray[np.bool_]:
        chosen = []
        while label > 0:
            chosen.append(int(owner[label]))
            label = int(came[label])
        return self.sets[chosen[::-1]]


def _newly(weight: Array, inside: Array) -> Array:
    """[i, j]: the weight of the boundary of set j outside of set i."""
    result: Array = weight.sum(1)[None, :] - inside @ weight.T
    return result


def _trade_offs(held: Array, kept: Array, limit: float, labels: int) -> npt.NDArray[np.int64]:
    """Entries with less held or more kept than all others, from least to most held; about evenly thinned to a number.

    Of entries that hold about the same the one that keeps most is taken, so that only few have to be sorted.
    """
    bucket = (held * (2 * labels / limit)).astype(np.int64) if limit > 0 else np.zeros(len(held), np.int64)
    most = np.full(int(bucket.max()) + 1, -np.inf)
    np.maximum.at(most, bucket, kept)
    wins = kept == most[bucket]
    wins[held.argmin()] = True
    best: npt.NDArray[np.int64] = wins.nonzero()[0]
    best = best[np.lexsort((-kept[best], held[best]))]
    gained = kept[best]
    rises = np.ones(len(best), bool)
    rises[1:] = gained[1:] > np.maximum.accumulate(gained)[:-1]
    best = best[rises]
    if len(best) > labels:
        best = best[_spread(len(best), labels)]
    return best


@lru_cache(maxsize=1024)
def _spread(count: int, number: int) -> npt.NDArray[np.int64]:
    """Evenly spread places, so many of a count, from the first to the last."""
    return np.array(sorted({round(place) for place in np.linspace(0, count - 1, number).tolist()}), np.int64)


def _canonical(
    problem: Problem, graph: ForwardGraph, sequence: npt.NDArray[np.bool_], order: Sequence[int]
) -> Iterator[Choice]:
    """The boundaries of a sequence and its last step, with the backward ops by phases, and in the given order."""
    first = np.argmax(sequence, axis=0)
    group = [0] * len(problem.ops)
    for node, ops in enumerate(graph.ops):
        for index in ops:
            group[index] = int(first[node])
    made, maker, reader = _reads_within_forward(problem)
    groups = np.array(group, np.int64)
    kept = set(made[(groups[maker] == len(sequence) - 1) | (groups[reader] > groups[maker])].tolist())
    yield kept, phase_order(problem, backward_phases(problem, group, kept))
    yield kept, list(order)


@lru_cache(maxsize=4)
def _reads_within_forward(problem: Problem) -> tuple[npt.NDArray[np.int64], ...]:
    """Of each tensor that the forward pass makes: its root, its maker, and a forward op that reads it, or the maker."""
    rows = [
        (problem.view_root[tensor], index, reader)
        for index in problem.forward
        for tensor in problem.ops[index].outputs
        for reader in (index, *(reader for reader in problem.consumers[tensor] if not problem.ops[reader].backward))
    ]
    return tuple(np.array(rows, np.int64).reshape(-1, 3).T)

"""Searching for schedules: seeds from several methods, each improved within a budget for as long as is asked.

The decoder is `ckplan.planner.eviction.evict.evict` followed by `ckplan.planner.retain.retain`: from a factor for each
tensor it makes a schedule within the budget. The search changes factors of the best schedule so far, of a stretch of
the graph or of all tensors that look alike, and keeps what is cheaper: biased random keys (Goncalves & Resende, Journal
of Heuristics 17, 2011) in a large neighbourhood.
"""

from __future__ import annotations

import math
import random
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache

from ckplan.planner.cuts import Cut, forward_cuts, kept_by_cuts, segment_cuts, segment_limits
from ckplan.planner.eviction.evict import Pass, evict, evicting
from ckplan.planner.eviction.weights import Weights
from ckplan.planner.minimum_cut import between_passes
from ckplan.planner.order import best_order, orders
from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Kind, Problem
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.retain import retain

_POWERS = ((0.1, 1.0), (0.5, 1.0), (0.5, 0.5), (0.25, 1.0), (0.25, 0.7), (0.0, 1.0), (1.0, 1.0))
"""Weights of time and of size."""

PORTFOLIO = (
    *(Weights(size_power=size_power, time_power=time_power) for time_power, size_power in _POWERS),
    Weights(time_power=0.1, ahead=True),
    Weights(time_power=0.5, ahead=True),
)
"""Weights that each win on some graph, the most often best first."""

_PRICES = tuple(10.0 ** (exponent / 4) for exponent in range(-6, 15))
"""Prices of the minimum cut, in the cost of the whole step for all of its stash."""

_KEEP = 4.0
"""How much dearer to evict a tensor on a boundary of segments is made."""

_LEEWAY = 1.15
"""How much more than is allowed a schedule may cost before repeats are dropped where there is room."""

_TARGETS = (1.0, 1.0, 0.95, 0.9, 0.8)
"""What eviction is asked to keep to, as ratios of the budget: what it evicts too much is retained again."""

_SEGMENT_SIZES = 8
"""How many sizes of segments are tried where boundaries are made dear to evict."""

_BOUNDED = 900
"""Ops of the largest graph for which all of them are tried. For larger ones no more are where those before are dear."""

_DEARER = 1.03
"""How many times the cost of the cheapest schedule that is: the cost of the cheapest of them, before retaining."""

_OTHER_ORDERS = 3
"""Along how many orders schedules are made."""

Schedule = Sequence[int]
Limit = Callable[[], float]
"""Asked for the seconds that a schedule may cost, which may become fewer as others are found."""


def tries(problem: Problem, most: int) -> int:
    """How many schedules to try: as many as asked for graphs of up to 2000 ops, fewer for larger ones, at least two."""
    return max(2, min(most, most * 2000 // max(len(problem.ops), 1)))


def other_orders(problem: Problem) -> Sequence[Schedule]:
    """The orders of the lowest peaks, without the best of those that schedules are made along anyway; none if large."""
    best = tuple(best_order(problem))
    return [order for order in orders(problem) if order != best][: tries(problem, _OTHER_ORDERS) - 1]


def within(
    problem: Problem,
    candidates: Iterable[Schedule | None],
    budget: int,
    limit: Limit = lambda: math.inf,
    cheapest: Limit = lambda: math.inf,
) -> Iterator[list[int]]:
    """Those candidates that keep to a budget and cost no more, with as little recomputation as it has room for.

    Args:
        problem: the ops and tensors.
        candidates: schedules, or None for those that were not found.
        budget: bytes of activations.
        limit: what they may cost as they are.
        cheapest: what they have to come to; more recomputation is left in those that will not.
    """
    for schedule in candidates:
        if schedule is None or problem.schedule_cost(schedule) > limit():
            continue
        if peak_of(problem, schedule) <= budget:
            yield retain(problem, schedule, budget, cheapest())


def evictions(problem: Problem, budget: int, order: Schedule, most_cost: float) -> Iterator[Schedule | None]:
    """Schedules by eviction, for several weights; None for those that find none.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        order: the order without repeats that eviction walks along.
        most_cost: seconds that a schedule must stay below.
    """
    for weights in PORTFOLIO[: tries(problem, len(PORTFOLIO))]:
        yield evict(problem, budget, order, weights, most_cost)


def segmented_schedules(
    problem: Problem, budget: int, order: Schedule, most_cost: float, limit: Limit, cheapest: Limit
) -> Iterator[Schedule | None]:
    """Schedules for segmentations of several sizes: boundaries kept, all else run again; and boundaries dear to evict.

    Without boundaries a tight budget makes eviction thrash: long chains of recomputations evict each other's results.
    The arguments are those of `evictions`, what may be less than ``most_cost`` by the time, and what the cheapest
    schedule costs by then, infinite near the lowest peak.
    """
    done: dict[float, list[tuple[frozenset[int], Pass]]] = {}
    for power in (0.5, 0.1):
        plain = evicting(problem, budget, order, Weights(time_power=power), most_cost)
        done[power] = [(frozenset(), plain)]
    least = 0.0
    for schedule, boundary in _segmentations(problem, tuple(order)):
        yield schedule
        if len(problem.ops) > _BOUNDED and least > _DEARER * cheapest():
            continue
        for power, passes in done.items():
            if any(one.is_same(boundary, instead_of=other) for other, one in passes):
                continue  # and the same schedule was given before, or is of those without boundaries
            bias = [_KEEP if tensor in boundary else 1.0 for tensor in range(len(problem.tensors))]
            found = evicting(problem, budget, order, Weights(time_power=power, bias=bias), limit())
            passes.append((boundary, found))
            if found.schedule is not None:
                least = min(least or math.inf, problem.schedule_cost(found.schedule))
            yield found.schedule


@lru_cache(maxsize=4)
def _segmentations(problem: Problem, order: tuple[int, ...]) -> tuple[tuple[Schedule, frozenset[int]], ...]:
    """For each segmentation the schedule that runs all else again, and what is on its boundaries.

    They do not depend on a budget, as `judged_cuts` do not.
    """
    boundaries: dict[frozenset[int], Schedule] = {}
    cuts = [cut for cut in forward_cuts(problem) if cut.tensors]
    for limit in segment_limits(problem, tries(problem, _SEGMENT_SIZES)):
        for candidates in ([cut for cut in cuts if cut.tensors == 1], cuts):
            chosen = segment_cuts(problem, candidates, limit)
            boundary = frozenset(base for cut in chosen for base in cut.crossing)
            if boundary and boundary not in boundaries:
                boundaries[boundary] = recompute_schedule(problem, kept_by_cuts(problem, chosen), order)
    return tuple((schedule, boundary) for boundary, schedule in boundaries.items())


@lru_cache(maxsize=4)
def judged_cuts(problem: Problem) -> tuple[tuple[float, int, Schedule], ...]:
    """What the minimum cut gives at each price, as ``(seconds, peak, schedule)``, the cheapest first.

    They do not depend on a budget, so that a graph is cut once however many budgets it is planned for.
    """
    schedules = cut_schedules(problem, list(best_order(problem)))
    judged = [(problem.schedule_cost(schedule), peak_of(problem, schedule), schedule) for schedule in schedules]
    return tuple(sorted(judged, key=lambda entry: entry[:2]))


def cuts_within(problem: Problem, budget: int, most: int = 4) -> Iterator[Schedule]:
    """The cheapest schedules of minimum cuts that keep to a budget."""
    yield from [schedule for _, peak, schedule in judged_cuts(problem) if peak <= budget][:most]


def cut_schedules(problem: Problem, order: Schedule, boundaries: Sequence[Sequence[Cut]] = ((),)) -> Iterator[Schedule]:
    """Schedules that keep what a minimum cut chooses, for a range of prices and given boundaries of segments."""
    network = between_passes(problem)
    stash = sum(problem.tensors[base].bytes for base in problem.stashed)
    tried: set[frozenset[int]] = set()
    for cuts in boundaries:
        forced = {base for cut in cuts for base in cut.crossing}
        for factor in _PRICES:
            kept = frozenset(network.solve(factor * problem.cost / max(stash, 1), forced)[0])
            if kept not in tried:
                tried.add(kept)
                yield recompute_schedule(problem, kept, order)


def improve(
    problem: Problem,
    schedule: Schedule,
    budget: int,
    order: Schedule,
    steps: int,
    seed: int = 0,
    deadline: float = float("inf"),
    found: Callable[[list[int]], None] = lambda schedule: None,
    hopeless: int = 0,
) -> list[int]:
    """A schedule at most as dear as a given one, within the same budget.

    Args:
        problem: the ops and tensors.
        schedule: where to start; its peak is within the budget.
        budget: bytes of activations.
        order: all ops once, in the order that schedules are made along.
        steps: how many schedules to try. The result depends on the seed and the steps alone, unless the deadline comes
            before.
        seed: of the random choices.
        deadline: `time.monotonic` after which no other schedule is tried.
        found: called with each better schedule; it survives an interruption.
        hopeless: how often eviction may fail at a target below the budget, and never succeed, until that is left out;
            0 for ever.
    """
    best, cost = list(schedule), problem.schedule_cost(schedule)
    moves = _Moves(problem, seed)
    targets, failed = list(_TARGETS), dict.fromkeys(_TARGETS, 0)
    for _ in range(steps if moves.evictable else 0):
        if cost <= problem.cost or time.monotonic() > deadline:
            break
        weights = moves.weights(best)
        target = moves.rng.choice(targets)
        candidate = evict(problem, int(budget * target), order, weights, cost * 1.1)
        if candidate is None or peak_of(problem, candidate) > budget:
            failed[target] += 1
            if failed[target] == hopeless and target < 1:
                targets.remove(target)
            continue
        failed[target] = -steps  # it is not hopeless
        candidate = retain(problem, candidate, budget, cost)
        if (total := problem.schedule_cost(candidate)) < cost:
            best, cost = candidate, total
            found(best)
    return best


def squeeze(
    problem: Problem,
    schedule: Schedule,
    most_cost: float,
    order: Schedule,
    steps: int,
    seed: int = 0,
    deadline: float = float("inf"),
) -> list[int]:
    """A schedule whose peak is at most that of a given one, and which costs no more than is allowed.

    Args:
        problem: the ops and tensors.
        schedule: where to start; it costs no more than ``most_cost``.
        most_cost: seconds that the schedule must not exceed.
        order: all ops once, in the order that schedules are made along.
        steps: how many schedules to try, as for `improve`.
        seed: of the random choices.
        deadline: `time.monotonic` after which no other schedule is tried.
    """
    best, peak = list(schedule), peak_of(problem, schedule)
    moves = _Moves(problem, seed)
    for _ in range(steps if moves.evictable else 0):
        if time.monotonic() > deadline:
            break
        weights = moves.weights(best)
        target = int(peak * moves.rng.choice((0.99, 0.98, 0.97, 0.95, 0.93, 0.9)))
        candidate = evict(problem, target, order, weights, most_cost * _LEEWAY)
        if candidate is None or peak_of(problem, candidate) >= peak:
            continue
        candidate = retain(problem, candidate, peak - 1, most_cost)
        if problem.schedule_cost(candidate) <= most_cost:
            best, peak = candidate, peak_of(problem, candidate)
    return best


class _Moves:
    """Random changes to what is evicted first."""

    def __init__(self, problem: Problem, seed: int) -> None:
        self.problem = problem
        self.rng = random.Random(seed)
        self.evictable = [
            tensor
            for index in problem.forward
            for tensor in problem.ops[index].outputs
            if problem.view_root[tensor] == tensor and problem.tensors[tensor].kind is Kind.ACTIVATION
        ]
        alike: dict[tuple[int, float, int], list[int]] = {}
        for tensor in self.evictable:
            maker = problem.ops[problem.producer[tensor]]
            key = problem.tensors[tensor].bytes, maker.cost, len(problem.consumers[tensor])
            alike.setdefault(key, []).append(tensor)
        self.groups = list(alike.values())

    def weights(self, schedule: Schedule) -> Weights:
        """Weights of eviction that lead back to a schedule, with the factors of some tensors changed."""
        return Weights(bias=self._bias(schedule), time_power=self.rng.choice((0.0, 0.1, 0.25, 0.5, 1.0)))

    def _bias(self, schedule: Schedule) -> list[float]:
        """Factors that lead back to a schedule, those of some tensors changed."""
        rng, evictable = self.rng, self.evictable
        runs = Counter(schedule)
        strength = rng.choice((3.0, 10.0, 100.0))
        bias = [1.0] * len(self.problem.tensors)
        for tensor in evictable:
            bias[tensor] = 1 / strength if runs[self.problem.producer[tensor]] > 1 else strength
        kind = rng.random()
        if kind < 0.35:  # a stretch of the graph
            width = max(3, int(len(evictable) * rng.choice((0.02, 0.05, 0.1, 0.2, 0.4))))
            start = rng.randrange(max(1, len(evictable) - width))
            for tensor in evictable[start : start + width]:
                bias[tensor] = rng.choice((1.0, 1.0, 0.1, 10.0))
        elif kind < 0.7:  # tensors that look alike, such as the same place in identical blocks
            for group in rng.sample(self.groups, min(len(self.groups), rng.choice((1, 2, 3)))):
                first, last = sorted((rng.randrange(len(group)), rng.randrange(len(group))))
                factor = rng.choice((0.01, 1.0, 100.0))
                for tensor in group[first : last + 1]:
                    bias[tensor] = factor
        else:
            for tensor in evictable:
                if rng.random() < 0.1:
                    bias[tensor] = rng.choice((0.01, 0.1, 1.0, 10.0, 100.0))
        return bias

"""The frontier of peak against overhead: cheapest within a budget, lowest peak within a cost, the knee between."""

from __future__ import annotations

import itertools
import logging
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Generic, TypeVar

from ckplan.planner.bounds import lower_bound
from ckplan.planner.eviction.evict import evict
from ckplan.planner.order import best_order, orders, searched_orders
from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Problem
from ckplan.planner.search import (
    PORTFOLIO,
    Limit,
    Schedule,
    cuts_within,
    evictions,
    improve,
    other_orders,
    segmented_schedules,
    squeeze,
    tries,
    within,
)
from ckplan.planner.shave import shave
from ckplan.units import format_bytes

_log = logging.getLogger(__name__)

Item = TypeVar("Item")

_RUNGS = 10
"""How many budgets the frontier is looked for at."""
_QUICK = 3
"""How many weights of eviction are tried at each of them."""
_STEP = 0.93
"""Ratio of one budget to the next on the way down to the lowest peak."""

_LEEWAY = 1.4
"""How many times the cost of the cheapest seed a schedule may cost before as much is retained as there is room for."""
_PROMISING = 1.05
"""How many times the cost of the cheapest seed one in another order may cost for more to be made in that order."""
_TIGHT = 1.2
"""The cost of the cheapest seed, in that of the step, above which neither counts: near the lowest peak it is open what
comes of a schedule. With these three no seed was dearer than with all of them made, for 619 graphs and budgets."""

_SQUEEZES = 8
"""How many schedules are tried to lower the peak for one that is tried to lower the cost."""


@dataclass
class Effort:
    """How much to search.

    Attributes:
        steps: schedules that are tried to improve the best one.
        seed: of the random choices.
        deadline: `time.monotonic` after which nothing new is tried.
        interrupted: set when the user interrupted the search; what was found until then stands.
    """

    steps: int = 40
    seed: int = 0
    deadline: float = math.inf
    interrupted: bool = field(default=False, init=False)

    @classmethod
    def lasting(cls, seconds: float, steps: int, seed: int) -> Effort:
        """An effort that ends some seconds from now; 0 means that it does not."""
        return cls(steps, seed, time.monotonic() + seconds if seconds else math.inf)

    @property
    def over(self) -> bool:
        """Whether to stop."""
        return self.interrupted or time.monotonic() > self.deadline


def cheapest(
    problem: Problem, budget: int, effort: Effort, start: Schedule | None = None, most_cost: float = math.inf
) -> list[int] | None:
    """The cheapest schedule found within a budget, or None if none was.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        effort: how much to search.
        start: a schedule within the budget to improve as well.
        most_cost: seconds that the schedule must not exceed.
    """
    order = list(best_order(problem))
    lean = order if peak_of(problem, order) <= budget else list(orders(problem)[0])
    if peak_of(problem, lean) <= budget:
        _log.info("an order without any recomputation stays within %s", format_bytes(budget))
        return lean
    best = None if start is None or problem.schedule_cost(start) > most_cost else list(start)

    def note(schedule: list[int]) -> None:
        nonlocal best
        if problem.schedule_cost(schedule) <= most_cost and (
            best is None or problem.schedule_cost(schedule) < problem.schedule_cost(best)
        ):
            best = schedule
            _say_best(problem, best)

    costs: dict[str, list[float]] = {name: [] for name in _METHODS}
    try:
        for searched in searched_orders(problem):
            for method, schedule in _seeds(problem, budget, searched, most_cost):
                costs[method].append(problem.schedule_cost(schedule))
                note(schedule)
                if effort.over:
                    break
            if best is not None or effort.over:
                break
        _tell(problem, budget, costs)
        if best is not None and not effort.over:
            along = order if _runs_along(best, order) else list(dict.fromkeys(best))
            improve(problem, best, budget, along, effort.steps, effort.seed, effort.deadline, note)
    except KeyboardInterrupt:
        effort.interrupted = True
    if best is not None and (found := [cost for some in costs.values() for cost in some]):
        _log.info(
            "local search: %s, from %s", _extra(problem, problem.schedule_cost(best)), _extra(problem, min(found))
        )
    return best


def _runs_along(schedule: Schedule, order: Schedule) -> bool:
    """Whether the first runs of a schedule are in an order."""
    return list(dict.fromkeys(schedule)) == list(order)


_METHODS = ("eviction", "minimum cuts", "eviction by segments", "shaving of peaks", "eviction in other orders")


def _tell(problem: Problem, budget: int, costs: dict[str, list[float]]) -> None:
    """Log what each method came to."""
    for method, found in costs.items():
        if found:
            _log.info(
                "%s: %d within %s, the cheapest %s",
                method,
                len(found),
                format_bytes(budget),
                _extra(problem, min(found)),
            )
        else:
            _log.info("%s: no plan within %s", method, format_bytes(budget))


def _say_best(problem: Problem, schedule: Schedule) -> None:
    """Tell whoever listens what an interruption would leave."""
    if _log.isEnabledFor(logging.DEBUG):
        told = f"{format_bytes(peak_of(problem, schedule))}, {_extra(problem, problem.schedule_cost(schedule))}"
        _log.debug("best so far: %s", told, extra={"best": told})


def _extra(problem: Problem, cost: float) -> str:
    """A cost as people read it: what comes on top of the step."""
    return f"{100 * (cost / problem.cost - 1):+.1f} % of compute" if problem.cost else "no compute"


def seeds(problem: Problem, budget: int, order: Schedule, most_cost: float) -> Iterator[list[int]]:
    """Schedules within a budget from every method, the quickest method first.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        order: an order without repeats to begin with.
        most_cost: seconds that a schedule must stay below, those of three steps at most.
    """
    yield from (schedule for _, schedule in _seeds(problem, budget, order, most_cost))


def _seeds(problem: Problem, budget: int, order: Schedule, most_cost: float) -> Iterator[tuple[str, list[int]]]:
    """The same with the name of the method."""
    return iter(_kept_seeds(problem, budget, tuple(order), min(most_cost, 3 * problem.cost)))


@lru_cache(maxsize=8)
def _kept_seeds(problem: Problem, budget: int, order: tuple[int, ...], most: float) -> Kept[tuple[str, list[int]]]:
    """Seeds as far as anybody asked for them: `auto` of little effort asks for those of `auto` of much."""
    return Kept(lambda: _made_seeds(problem, budget, order, most))


class Kept(Generic[Item]):
    """What an iterator gives, kept as far as it was gone through."""

    def __init__(self, start: Callable[[], Iterator[Item]]) -> None:
        self._start, self._left = start, start()
        self._found: list[Item] = []

    def __iter__(self) -> Iterator[Item]:
        for place in itertools.count():
            while place >= len(self._found):
                try:
                    self._found.append(next(self._left))
                except StopIteration:
                    return
                except BaseException:  # an interruption ends the iterator: whoever asks next begins anew
                    self._found, self._left = [], self._start()
                    raise
            yield self._found[place]


def _made_seeds(problem: Problem, budget: int, order: Schedule, most: float) -> Iterator[tuple[str, list[int]]]:
    cheapest = math.inf

    def limit() -> float:
        """Seconds from which a schedule is given up before it is known what there is room to retain of it."""
        return most if is_tight() else min(most, cheapest * _LEEWAY)

    def is_tight() -> bool:
        return cheapest > _TIGHT * problem.cost

    def useful() -> float:
        """Seconds that a schedule has to stay below with what there is room to retain of it."""
        return math.inf if is_tight() else cheapest

    for name, candidates in _methods(problem, budget, order, most, limit, useful):
        for schedule in within(problem, candidates, budget, limit, useful):
            cost = problem.schedule_cost(schedule)
            cheapest = min(cheapest, cost)
            yield name, schedule
            if name == _METHODS[-1] and cost > cheapest * _PROMISING and not is_tight():
                break


def _methods(
    problem: Problem, budget: int, order: Schedule, most: float, limit: Limit, useful: Limit
) -> Iterator[tuple[str, Iterator[Schedule | None]]]:
    """The methods by name, the last one once for each other order."""
    eviction, cuts, by_segments, shaving, elsewhere = _METHODS
    yield eviction, evictions(problem, budget, order, most)
    yield cuts, cuts_within(problem, budget)
    yield by_segments, segmented_schedules(problem, budget, order, most, limit, useful)
    others = other_orders(problem)
    yield shaving, (shave(problem, other, budget, limit()) for other in (order, *others))
    for other in others:
        yield elsewhere, _evictions_along(problem, budget, other, limit)


def _evictions_along(problem: Problem, budget: int, order: Schedule, limit: Limit) -> Iterator[Schedule | None]:
    """Schedules by eviction along another order; None for those that are given up."""
    for weights in PORTFOLIO[: tries(problem, _QUICK)]:
        yield evict(problem, budget, order, weights, limit())


def lowest(problem: Problem, most_cost: float, effort: Effort) -> list[int]:
    """The schedule of the lowest peak found within a cost.

    Budgets are tried downwards until one fails; the first schedule found is good enough for the next one.
    The last one is searched from. What was found without an interruption is kept: whoever refuses several budgets asks
    for it each time.
    """
    best: Sequence[int] = best_order(problem)
    for order in searched_orders(problem) if not effort.interrupted else ():
        try:
            found = _lowest(problem, tuple(order), most_cost, effort.steps, effort.seed, effort.deadline)
        except _InterruptedError as error:
            found, effort.interrupted = error.best, True
        best = min(best, found, key=lambda schedule: peak_of(problem, schedule))
        if effort.interrupted:
            break
    bound = format_bytes(lower_bound(problem)[0])
    told = format_bytes(peak_of(problem, best)), _extra(problem, problem.schedule_cost(best)), bound
    _log.info("the lowest peak found is %s, at %s; no schedule has less than %s", *told)
    return list(best)


class _InterruptedError(Exception):
    """The user interrupted a search; ``best`` is the schedule that it had come to."""

    def __init__(self, best: Sequence[int]) -> None:
        super().__init__()
        self.best = best


@lru_cache(maxsize=8)
def _lowest(
    problem: Problem, order: tuple[int, ...], most_cost: float, steps: int, seed: int, deadline: float
) -> Sequence[int]:
    """The same along one order; arguments as those of `Effort`."""
    best = list(_descended(problem, order, most_cost, deadline))
    try:
        if time.monotonic() <= deadline:
            most_tries = tries(problem, steps * _SQUEEZES) if steps else 0
            best = squeeze(problem, best, most_cost, order, most_tries, seed, deadline)
    except KeyboardInterrupt:
        raise _InterruptedError(best) from None
    return best


@lru_cache(maxsize=8)
def _descended(problem: Problem, order: tuple[int, ...], most_cost: float, deadline: float) -> Sequence[int]:
    """The schedule of the lowest budget, tried downwards, at which seeds were found; kept, however much is searched."""
    effort = Effort(0, deadline=deadline)
    best: Sequence[int] = order
    bound = lower_bound(problem)[0]
    budget = peak_of(problem, best)
    try:
        while budget > bound and not effort.over:
            budget = max(int(budget * _STEP), bound)
            found = seeds(problem, budget, order, most_cost)
            schedule = next((one for one in found if problem.schedule_cost(one) <= most_cost), None)
            if schedule is None:
                break  # where every method fails, it fails for less: no rung below was ever reached on real networks
            best = schedule
            _say_best(problem, best)
            budget = min(budget, peak_of(problem, schedule))
    except KeyboardInterrupt:
        raise _InterruptedError(best) from None
    return best


def frontier(
    problem: Problem, effort: Effort, most_cost: float, progress: Callable[[int, int], None] = lambda done, of: None
) -> list[list[int]]:
    """Schedules from the cheapest to the lowest peak; each costs less than the next and needs more.

    Args:
        problem: the ops and tensors.
        effort: how much to search, at each budget.
        most_cost: seconds that no schedule may exceed.
        progress: called with budgets done and budgets in all.
    """
    order = list(best_order(problem))
    low = lowest(problem, most_cost, effort)
    high_peak, low_peak = peak_of(problem, order), peak_of(problem, low)
    found = [order, low]
    try:
        for rung in range(1, _RUNGS):
            progress(rung, _RUNGS)
            if effort.over:
                break
            budget = int(low_peak * (high_peak / max(low_peak, 1)) ** (rung / _RUNGS))
            found += [s for s in _quick(problem, budget, most_cost) if problem.schedule_cost(s) <= most_cost]
            if effort.steps and len(found) > 2:
                best = min((s for s in found if peak_of(problem, s) <= budget), key=problem.schedule_cost)
                found.append(improve(problem, best, budget, order, effort.steps, effort.seed, effort.deadline))
    except KeyboardInterrupt:
        effort.interrupted = True
    return undominated(problem, found)


@lru_cache(maxsize=2 * _RUNGS)
def _quick(problem: Problem, budget: int, most_cost: float) -> tuple[list[int], ...]:
    """A few good schedules within a budget."""
    order = best_order(problem)
    evicted = (evict(problem, budget, order, weights, most_cost) for weights in PORTFOLIO[:_QUICK])
    found = within(problem, evicted, budget), within(problem, cuts_within(problem, budget, 1), budget)
    return tuple(itertools.chain(*found))


def undominated(problem: Problem, schedules: Sequence[Schedule]) -> list[list[int]]:
    """Those schedules that no other beats in peak and cost at once, the cheapest first."""
    judged = sorted((problem.schedule_cost(s), peak_of(problem, s), number) for number, s in enumerate(schedules))
    left: list[list[int]] = []
    lowest_peak: float = math.inf
    for _, peak, number in judged:
        if peak < lowest_peak:
            left.append(list(schedules[number]))
            lowest_peak = peak
    return left


def knee(problem: Problem, schedules: Sequence[Schedule]) -> list[int]:
    """The schedule of a frontier that lies furthest below the line from its one end to the other.

    Satopaa et al., "Finding a 'Kneedle' in a Haystack" (ICDCS Workshops 2011), both axes scaled to one.
    """
    points = [(problem.schedule_cost(schedule), peak_of(problem, schedule)) for schedule in schedules]
    costs, peaks = zip(*points, strict=True)
    width, height = max(costs) - min(costs) or 1, max(peaks) - min(peaks) or 1
    position = min(
        range(len(points)),
        key=lambda i: ((costs[i] - min(costs)) / width + (peaks[i] - min(peaks)) / height, costs[i]),
    )
    return list(schedules[position])

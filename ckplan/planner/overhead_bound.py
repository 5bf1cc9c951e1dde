"""A bound on overhead from minimum cuts: what any schedule within a budget has to run again.

While an op runs for the first time, the activations that are alive beside its working set fit into what the budget
leaves. All that its descendants read, they or what is computed from them have to provide: any other op on which the
moment depends runs again. For each price per byte, the minimum cut less the price of the room is a lower bound
(Lagrange). It is concave in the price and made of straight lines, one for each choice of what to hold, so that its
highest place is found by going to where two lines meet until no choice lies below (Kelley, "The cutting-plane method
for solving convex programs", SIAM Journal 8, 1960).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from ckplan.planner.bounds import working_sets
from ckplan.planner.minimum_cut import MinimumCut, arcs_of
from ckplan.planner.problem import Kind, Problem

_Flags = npt.NDArray[np.bool_]

_NEGLIGIBLE = 1e-4
"""The gap between a bound and a schedule, in the cost of a step, that is not worth closing."""
_PRICES = (1e-3, 10**4.5)
"""Prices per byte between which a bound is looked for, in ratio to one in proportion to the problem."""
_STEP = 10.0
"""By how much the price rises as long as it is too low."""
_CLOSE = 1e-8
"""How much higher a bound may be than what was found, in the cost of a step."""
_CUTS = 60
"""Of how many cuts one bound is made at most."""
_CURVE = 4
"""Of how many moments `bound_curve` is made."""
_WORK = 0.05
"""What constraint programming may do for one moment, in its own deterministic units of about a second."""
_TOGETHER = 62
"""How many moments are told apart by the bits of one number."""


def least_overhead(problem: Problem, budget: int, moments: int = 24) -> float:
    """Seconds of recomputation that no schedule within a budget can avoid.

    The largest bound of several moments. It holds for any order and any number of recomputations, but looks at one
    moment at a time.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        moments: about how many ops are tried.
    """
    return _highest_moment(problem, budget, moments)[0]


@lru_cache(maxsize=8)
def _highest_moment(problem: Problem, budget: int, moments: int = 24) -> tuple[float, int | None]:
    """The largest bound of several moments, and the op it is of; see `least_overhead`.

    Kept: before, between and after its searches, `auto` asks for that of one budget several times.
    """
    own = working_sets(problem)
    tried = [index for index in _moments(problem, moments) if budget >= own[index]]
    best, price, highest = 0.0, 1.0, None
    for index, (before, after) in zip(tried, _dependence(problem, tried), strict=True):
        cut = _cut_at(problem, index, before, after)
        found, price = _highest(problem, cut, budget - own[index], best, price)
        if found > best:
            best, highest = found, index
    return best, highest


def bound_at(problem: Problem, moment: int, room: int) -> float:
    """The bound from one moment, with so many bytes beside the working set of its op; see `least_overhead`."""
    ((before, after),) = _dependence(problem, [moment])
    return _highest(problem, _cut_at(problem, moment, before, after), room)[0]


def is_closed(problem: Problem, bound: float, overhead: float) -> bool:
    """Whether the gap between a bound and what a schedule costs beyond the step is not worth closing.

    Args:
        problem: the ops and tensors.
        bound: seconds that no schedule goes below.
        overhead: seconds of recomputation of the schedule.
    """
    return overhead <= bound + _NEGLIGIBLE * problem.cost


def bound_beside(problem: Problem, moment: int, room: int, given: Collection[int], work: float = 0.0) -> float:
    """The bound from one moment at which other activations are there at no price than those of its op.

    Args:
        problem: the ops and tensors.
        moment: an op.
        room: bytes for all else.
        given: these activations.
        work: what constraint programming may do, in its own units, where activations are held whole or not at all.
    """
    ((before, after),) = _dependence(problem, [moment])
    cut = _cut_at(problem, moment, before, after, given)
    found = _highest(problem, cut, room)[0]
    return max(found, cut.least(room, work)) if work and found else found


def whole_overhead(problem: Problem, budget: int, others: Sequence[int] = ()) -> float:
    """The same where an activation is held whole or not at all, as nothing else is: never less than `least_overhead`.

    Constraint programming proves it for single moments, in some hundredths of a second each.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        others: ops to look at beside the one at which `least_overhead` is highest.
    """
    best, highest = _highest_moment(problem, budget)
    chosen = [*([] if highest is None else [highest]), *(index for index in others if index != highest)]
    for index, (before, after) in zip(chosen, _dependence(problem, chosen), strict=True):
        cut = _cut_at(problem, index, before, after)
        best = max(best, cut.least(budget - working_sets(problem)[index], _WORK))
    return best


@lru_cache(maxsize=4)
def bound_curve(problem: Problem) -> tuple[tuple[float, float, int], ...]:
    """Lines whose upper envelope over budgets bounds the overhead, as `least_overhead` does, from a few moments.

    Returns:
        For each line its value, its price per byte, and the working set: ``value - price * (budget - working set)``.
    """
    lines = []
    chosen = _moments(problem, _CURVE)[:_CURVE]
    for moment, (before, after) in zip(chosen, _dependence(problem, chosen), strict=True):
        cut, scale = _cut_at(problem, moment, before, after), _scale(problem)
        own = working_sets(problem)[moment]
        prices = [scale * 10.0**exponent for exponent in np.linspace(-3, 4, 15)]
        lines += [(cut.value(price), price, own) for price in prices]
    return tuple(lines)


def _highest(
    problem: Problem, cut: MinimumCut, room: int, floor: float = 0.0, start: float = 1.0
) -> tuple[float, float]:
    """The highest bound of a moment over all prices, and the price where it is, in ratio to one in proportion.

    Args:
        problem: the ops and tensors.
        cut: the choice at the moment.
        room: bytes beside the working set of its op.
        floor: a bound that is known already; one that is certain to be no higher is not looked for.
        start: the ratio to begin with.
    """
    if cut.wanted <= room:
        return 0.0, start
    scale = _scale(problem)
    low, high = (scale * ratio for ratio in _PRICES)
    # A line is the bound at no price, and by how much it rises with the price: what is held beyond the room.
    rising: tuple[float, float] = 0.0, cut.wanted - room
    falling: tuple[float, float] | None = None
    best, best_price, price = 0.0, scale * start, scale * start
    for _ in range(_CUTS):
        value, seconds, held = cut.parts(price)
        if value - price * room > best:
            best, best_price = value - price * room, price
        if held > room:
            rising = seconds, held - room
        else:
            falling = seconds, held - room
        if falling is None:
            following = min(price * _STEP, high)
        elif rising[1] == falling[1]:
            break
        else:
            following = (falling[0] - rising[0]) / (rising[1] - falling[1])
            if rising[0] + rising[1] * following <= max(floor, best + _CLOSE * problem.cost):
                break
            following = min(max(following, low), high)
        if following == price:
            break
        price = following
    return best, best_price / scale


@lru_cache(maxsize=8)
def _scale(problem: Problem) -> float:
    """A price per byte that is in proportion to the problem."""
    activations = sum(tensor.bytes for tensor in problem.tensors if tensor.kind is Kind.ACTIVATION)
    return problem.cost / max(problem.resident + activations, 1)


def _moments(problem: Problem, count: int) -> list[int]:
    """Ops of the middle of the step, where most is alive: evenly spread ones, and those that need most themselves."""
    own = working_sets(problem)
    depth = [0] * len(problem.ops)
    for index in reversed(problem.backward):
        readers = {reader for tensor in problem.ops[index].outputs for reader in problem.consumers[tensor]}
        depth[index] = 1 + max((depth[reader] for reader in readers), default=0)
    deepest = max(depth, default=0)
    path = sorted((index for index in problem.backward if depth[index] > deepest / 2), key=lambda i: (-depth[i], i))
    # Of ops at the same depth the one that needs most while it runs.
    by_depth: dict[int, int] = {}
    for index in path:
        other = by_depth.setdefault(depth[index], index)
        if own[index] > own[other]:
            by_depth[depth[index]] = index
    spread = list(by_depth.values())
    near = [*problem.forward[len(problem.forward) // 2 :], *spread]
    greedy = sorted(near, key=lambda index: (-own[index], index))
    return list(dict.fromkeys([*spread[:: max(1, len(spread) // count)], *greedy[: count // 3]]))


def _cut_at(
    problem: Problem, moment: int, before: _Flags, after: _Flags, given: Collection[int] | None = None
) -> MinimumCut:
    """The cut at one moment, from the ops on which it depends, those that depend on it, and what is there at no price.

    By default that is what its op reads and makes.
    """
    root, arcs, op = problem.view_root, arcs_of(problem), problem.ops[moment]
    # An op that the moment does not depend on may run for the first time afterwards.
    repeatable = np.where(before, arcs.cost, 0.0)
    repeatable[after] = repeatable[moment] = -1.0
    needed = arcs.read[after[arcs.reader]]
    if given is None:
        given = {root[tensor] for tensor in (*op.inputs, *op.outputs)}
    return MinimumCut(problem, repeatable, needed, given)


def _dependence(problem: Problem, moments: Sequence[int]) -> list[tuple[_Flags, _Flags]]:
    """For each of some ops which ops it depends on, and which depend on it; in one pass for many of them."""
    found: list[tuple[_Flags, _Flags]] = []
    for start in range(0, len(moments), _TOGETHER):
        some = moments[start : start + _TOGETHER]
        own = [0] * len(problem.ops)
        for place, moment in enumerate(some):
            own[moment] = 1 << place
        before, after = own.copy(), own.copy()
        for index in range(len(problem.ops) - 1, -1, -1):
            if reached := before[index]:
                for maker in problem.predecessors[index]:
                    before[maker] |= reached
        for index, makers in enumerate(problem.predecessors):
            for maker in makers:
                after[index] |= after[maker]
        by_op = np.array([before, after], np.int64)
        by_op &= ~np.array(own, np.int64)
        for place in range(len(some)):
            flags = (by_op >> place & 1).astype(bool)
            found.append((flags[0], flags[1]))
    return found

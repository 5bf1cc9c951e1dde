"""What to keep for the backward pass at a price per byte, as a minimum cut; and a bound on overhead from the same cuts.

For each op whose result may be recomputed there is the choice of running it again, at its cost; for each activation
the choice of holding it, at its bytes times a price; what is needed later has to be held or recomputed, and what is
recomputed needs its inputs. That is a project-selection problem, which a minimum cut solves exactly (Picard, "Maximal
closure of a graph and applications to combinatorial problems", Management Science 22, 1976). torch's min-cut
partitioner (torch/_functorch/partitioners.py) poses it without the cost of running ops again and without a price.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ckplan.planner.bounds import working_set
from ckplan.planner.problem import Kind, Problem

if TYPE_CHECKING:
    from ortools.graph.python.max_flow import SimpleMaxFlow

_Integers = npt.NDArray[np.int64]

_SCALE = 1e10
"""What the cost of all ops together is in the integers that the flow is computed with."""
_INFINITE = 1 << 42
"""A capacity that no cut can pay; thousands of them add up without an overflow."""
_PRICES = (-6, 8)
"""Prices per byte between which a bound is largest, as half powers of ten of one in proportion to the problem."""
_CURVE = 4
"""Of how many moments `bound_curve` is made."""


@dataclass(frozen=True)
class _Arcs:
    """The graph of a problem as arrays, of which each network takes a part.

    Attributes:
        held: the activations that ops make, views left out.
        maker: the op that makes each of these.
        reader: an op for each of them that it reads, itself or a view.
        read: these, as tensors.
        bytes: bytes of each tensor.
        cost: seconds that it takes to run each op again; infinite where it must not.
    """

    held: _Integers
    maker: _Integers
    reader: _Integers
    read: _Integers
    bytes: npt.NDArray[np.float64]
    cost: npt.NDArray[np.float64]


@lru_cache(maxsize=4)
def _arcs(problem: Problem) -> _Arcs:
    root, tensors, ops = problem.view_root, problem.tensors, problem.ops
    counted = [
        maker >= 0 and root[t] == t and tensors[t].kind is Kind.ACTIVATION for t, maker in enumerate(problem.producer)
    ]
    held = np.flatnonzero(counted)
    pairs = [(index, base) for index, op in enumerate(ops) for base in {root[t] for t in op.inputs} if counted[base]]
    reader, read = np.array(pairs, np.int64).reshape(-1, 2).T
    return _Arcs(
        held,
        np.array(problem.producer, np.int64)[held],
        reader,
        read,
        np.array([tensor.bytes for tensor in tensors], np.float64),
        np.array([op.cost if op.recomputable else math.inf for op in ops], np.float64),
    )


class MinimumCut:
    """The network of one choice: which ops of the first part of a step to run again for the second part.

    Args:
        problem: the ops and tensors.
        repeatable: for each op the seconds that it costs to run it in the second part; infinite if that is barred, less
            than none if it does not belong to the first.
        needed: roots of activations that the second part reads.
        given: roots that are there in the second part at no price.
    """

    def __init__(
        self,
        problem: Problem,
        repeatable: npt.NDArray[np.float64],
        needed: Iterable[int],
        given: Iterable[int] = (),
    ) -> None:
        from ortools.graph.python.max_flow import SimpleMaxFlow  # a tenth of a second

        self._network, self._tensors = SimpleMaxFlow, len(problem.tensors)
        arcs = _arcs(problem)
        self.unit = _SCALE / max(problem.cost, 1e-30)
        ops = np.flatnonzero(repeatable >= 0)
        number = np.zeros(len(problem.ops), np.int32)  # of each op as a node
        number[ops] = np.arange(2, 2 + len(ops))
        part = number[arcs.maker] > 0
        self.held, self._makers = arcs.held[part], number[arcs.maker[part]]
        """The activations that may be held or recomputed."""
        self._count = 2 + len(ops) + len(self.held)
        self._nodes = np.arange(2 + len(ops), self._count, dtype=np.int32)
        nodes = np.zeros(len(problem.tensors), np.int32)
        nodes[self.held] = self._nodes
        # On the source's side is what runs again or is needed: an op pays its cost; a tensor whose op does not run, its
        # price.
        within = (number[arcs.reader] > 0) & (nodes[arcs.read] > 0)
        wanted = np.zeros(len(problem.tensors), bool)
        wanted[list(needed)] = True
        wanted = nodes[wanted & (nodes > 0)]
        costs = np.minimum(repeatable[ops] * self.unit, _INFINITE).astype(np.int64)
        self._fixed = np.append(costs, np.full(int(within.sum()) + len(wanted), _INFINITE))
        tails = number[ops], number[arcs.reader[within]], np.zeros(len(wanted), np.int32), self._nodes
        heads = np.ones(len(ops), np.int32), nodes[arcs.read[within]], wanted, self._makers
        self._tails, self._heads = np.concatenate(tails), np.concatenate(heads)
        self._bytes = arcs.bytes.copy()
        self._bytes[list(given)] = 0
        self._bytes = self._bytes[self.held]

    def solve(self, price: float, free: Collection[int] = ()) -> tuple[set[int], float]:
        """The cheapest choice.

        Args:
            price: seconds per byte of holding an activation.
            free: activations that are held in any case.

        Returns:
            The activations to hold (``free`` included), and the seconds that the choice costs: of ops that run again,
            and of bytes held times the price.
        """
        flow = self._flow(price, free)
        chosen = np.zeros(self._count, bool)
        chosen[flow.get_source_side_min_cut()] = True
        kept = self.held[chosen[self._nodes] & ~chosen[self._makers]]
        return {*kept.tolist(), *free}, flow.optimal_flow() / self.unit

    def value(self, price: float) -> float:
        """The seconds that the cheapest choice costs; see `solve`."""
        return float(self._flow(price).optimal_flow() / self.unit)

    def _flow(self, price: float, free: Collection[int] = ()) -> SimpleMaxFlow:
        prices = self._bytes * (price * self.unit)
        if free:
            at_no_price = np.zeros(self._tensors, bool)
            at_no_price[list(free)] = True
            prices[at_no_price[self.held]] = 0
        capacities = np.concatenate([self._fixed, np.minimum(prices, _INFINITE).astype(np.int64)])
        flow = self._network()
        flow.add_arcs_with_capacity(self._tails, self._heads, capacities)
        if flow.solve(0, 1) != flow.OPTIMAL:
            raise RuntimeError("the minimum cut was not found")
        return flow


def between_passes(problem: Problem) -> MinimumCut:
    """The choice between forward and backward pass: what to stash and what to run again."""
    repeatable = np.full(len(problem.ops), -1.0)
    forward = list(problem.forward)
    repeatable[forward] = _arcs(problem).cost[forward]
    return MinimumCut(problem, repeatable, problem.stashed)


def least_overhead(problem: Problem, budget: int, moments: int = 24) -> float:
    """Seconds of recomputation that no schedule within a budget can avoid.

    While an op runs for the first time, the activations that are alive beside its working set fit into what the budget
    leaves. All that its descendants read, they or what is computed from them have to provide: any other op on which the
    moment depends runs again. For each price, the minimum cut less the price of the room is a lower bound (Lagrange);
    the largest over prices and moments is returned. It holds for any order and any number of recomputations, but looks
    at one moment at a time.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
        moments: about how many ops are tried.
    """
    best = 0.0
    for index in _moments(problem, moments):
        room = budget - working_set(problem, index)
        if room >= 0:
            best = max(best, bound_at(problem, index, room))
    return best


def _moments(problem: Problem, count: int) -> list[int]:
    """Ops of the middle of the step, where most is alive: evenly spread ones, and those that need most themselves."""
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
        if working_set(problem, index) > working_set(problem, other):
            by_depth[depth[index]] = index
    spread = list(by_depth.values())
    near = [*problem.forward[len(problem.forward) // 2 :], *spread]
    greedy = sorted(near, key=lambda index: (-working_set(problem, index), index))
    return list(dict.fromkeys([*spread[:: max(1, len(spread) // count)], *greedy[: count // 3]]))


@lru_cache(maxsize=4)
def bound_curve(problem: Problem) -> tuple[tuple[float, float, int], ...]:
    """Lines whose upper envelope over budgets bounds the overhead, as `least_overhead` does, from a few moments.

    Returns:
        For each line its value, its price per byte, and the working set: ``value - price * (budget - working set)``.
    """
    lines = []
    for moment in _moments(problem, _CURVE)[:_CURVE]:
        cut, scale = _cut_at(problem, moment)
        own = working_set(problem, moment)
        prices = [scale * 10.0**exponent for exponent in np.linspace(-3, 4, 15)]
        lines += [(cut.value(price), price, own) for price in prices]
    return tuple(lines)


def _cut_at(problem: Problem, moment: int) -> tuple[MinimumCut, float]:
    """The cut at one moment, and a price per byte that is in proportion to the problem."""
    ops, root, arcs = problem.ops, problem.view_root, _arcs(problem)
    before, after = _before(problem, moment), _after(problem, moment)
    # An op that the moment does not depend on may run for the first time afterwards.
    repeatable = np.where(before, arcs.cost, 0.0)
    repeatable[after] = repeatable[moment] = -1.0
    needed = arcs.read[after[arcs.reader]]
    given = {root[tensor] for tensor in (*ops[moment].inputs, *ops[moment].outputs)}
    cut = MinimumCut(problem, repeatable, needed, given)
    scale = sum(tensor.bytes for tensor in problem.tensors if tensor.kind is Kind.ACTIVATION)
    return cut, problem.cost / max(problem.resident + scale, 1)


def _before(problem: Problem, moment: int) -> npt.NDArray[np.bool_]:
    """The ops on which an op depends."""
    found, stack = bytearray(len(problem.ops)), [moment]
    while stack:
        for maker in problem.predecessors[stack.pop()]:
            if not found[maker]:
                found[maker] = True
                stack.append(maker)
    return np.frombuffer(found, np.bool_)


def _after(problem: Problem, moment: int) -> npt.NDArray[np.bool_]:
    """The ops that depend on an op."""
    found, stack = bytearray(len(problem.ops)), [moment]
    while stack:
        for tensor in problem.ops[stack.pop()].outputs:
            for reader in problem.consumers[tensor]:
                if not found[reader]:
                    found[reader] = True
                    stack.append(reader)
    return np.frombuffer(found, np.bool_)


def bound_at(problem: Problem, moment: int, room: int) -> float:
    """The bound from one moment, with so many bytes beside the working set of its op; see `least_overhead`.

    It is concave in the price, so that it rises to one place and falls behind it.
    """
    cut, scale = _cut_at(problem, moment)

    @cache
    def bound(step: float) -> float:
        price: float = scale * 10.0 ** (step / 2)
        return cut.value(price) - price * room

    low, high = _PRICES
    while low < high:
        middle = (low + high) // 2
        if bound(middle) >= bound(middle + 1):
            high = middle
        else:
            low = middle + 1
    best: float = low
    for width in (0.5, 0.25, 0.125):
        best = max((best, best - width, best + width), key=bound)
    return bound(best)

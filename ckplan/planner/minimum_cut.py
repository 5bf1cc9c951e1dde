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
from functools import cache, lru_cache
from typing import TYPE_CHECKING

import numpy as np

from ckplan.planner.bounds import working_set
from ckplan.planner.problem import Kind, Problem

if TYPE_CHECKING:
    from ortools.graph.python.max_flow import SimpleMaxFlow

_SCALE = 1e10
"""What the cost of all ops together is in the integers that the flow is computed with."""
_INFINITE = 1 << 42
"""A capacity that no cut can pay; thousands of them add up without an overflow."""
_PRICES = (-6, 8)
"""Prices per byte between which a bound is largest, as half powers of ten of one in proportion to the problem."""
_CURVE = 4
"""Of how many moments `bound_curve` is made."""


class MinimumCut:
    """The network of one choice: which ops of the first part of a step to run again for the second part.

    Args:
        problem: the ops and tensors.
        repeatable: ops of the first part, with the seconds that it costs to run them in the second; infinite if barred.
        needed: roots of activations that the second part reads.
        given: roots that are there in the second part at no price.
    """

    def __init__(
        self, problem: Problem, repeatable: dict[int, float], needed: Iterable[int], given: Collection[int] = ()
    ) -> None:
        self.problem = problem
        root, tensors = problem.view_root, problem.tensors
        self.unit = _SCALE / max(problem.cost, 1e-30)
        ops = {index: number for number, index in enumerate(repeatable, start=2)}
        self.held = [
            tensor
            for index in repeatable
            for tensor in problem.ops[index].outputs
            if root[tensor] == tensor and tensors[tensor].kind is Kind.ACTIVATION
        ]
        """The activations that may be held or recomputed."""
        nodes = {tensor: number for number, tensor in enumerate(self.held, start=2 + len(ops))}
        # On the source's side is what runs again or is needed: an op pays its cost; a tensor whose op does not run, its
        # price.
        arcs: list[tuple[int, int, int]] = []
        for index, seconds in repeatable.items():
            op = problem.ops[index]
            arcs.append((ops[index], 1, int(min(seconds * self.unit, _INFINITE))))
            arcs += [(ops[index], nodes[base], _INFINITE) for base in {root[t] for t in op.inputs} if base in nodes]
        arcs += [(0, nodes[base], _INFINITE) for base in set(needed) if base in nodes]
        self._fixed = np.array([capacity for _, _, capacity in arcs], dtype=np.int64)
        makers = [ops[problem.producer[tensor]] for tensor in self.held]
        self._tails = np.array([tail for tail, _, _ in arcs] + [nodes[t] for t in self.held], dtype=np.int32)
        self._heads = np.array([head for _, head, _ in arcs] + makers, dtype=np.int32)
        self._makers = makers
        self._nodes = [nodes[tensor] for tensor in self.held]
        self._bytes = np.array([0 if t in given else tensors[t].bytes for t in self.held], dtype=np.float64)

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
        chosen = set(flow.get_source_side_min_cut())
        kept = {
            tensor
            for tensor, node, maker in zip(self.held, self._nodes, self._makers, strict=True)
            if node in chosen and maker not in chosen
        }
        return kept | set(free), flow.optimal_flow() / self.unit

    def value(self, price: float) -> float:
        """The seconds that the cheapest choice costs; see `solve`."""
        return float(self._flow(price).optimal_flow() / self.unit)

    def _flow(self, price: float, free: Collection[int] = ()) -> SimpleMaxFlow:
        from ortools.graph.python import max_flow  # a tenth of a second

        prices = self._bytes * (price * self.unit)
        for number, tensor in enumerate(self.held if free else ()):
            if tensor in free:
                prices[number] = 0
        capacities = np.concatenate([self._fixed, np.minimum(prices, _INFINITE).astype(np.int64)])
        flow = max_flow.SimpleMaxFlow()
        flow.add_arcs_with_capacity(self._tails, self._heads, capacities)
        if flow.solve(0, 1) != flow.OPTIMAL:
            raise RuntimeError("the minimum cut was not found")
        return flow


def _cost_again(problem: Problem, index: int) -> float:
    return problem.ops[index].cost if problem.ops[index].recomputable else math.inf


def between_passes(problem: Problem) -> MinimumCut:
    """The choice between forward and backward pass: what to stash and what to run again."""
    return MinimumCut(problem, {index: _cost_again(problem, index) for index in problem.forward}, problem.stashed)


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
    ops, root = problem.ops, problem.view_root
    after = {moment}
    made = set(ops[moment].outputs)
    for index in range(moment + 1, len(ops)):
        if not made.isdisjoint(ops[index].inputs):
            after.add(index)
            made.update(ops[index].outputs)
    before: set[int] = set()
    wanted = set(ops[moment].inputs)
    for index in range(moment - 1, -1, -1):
        if not wanted.isdisjoint(ops[index].outputs):
            before.add(index)
            wanted.update(ops[index].inputs)
    # An op that the moment does not depend on may run for the first time afterwards.
    repeatable = {i: _cost_again(problem, i) if i in before else 0.0 for i in range(len(ops)) if i not in after}
    needed = {root[tensor] for index in after - {moment} for tensor in ops[index].inputs}
    given = {root[tensor] for tensor in (*ops[moment].inputs, *ops[moment].outputs)}
    cut = MinimumCut(problem, repeatable, needed, given)
    scale = sum(tensor.bytes for tensor in problem.tensors if tensor.kind is Kind.ACTIVATION)
    return cut, problem.cost / max(problem.resident + scale, 1)


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

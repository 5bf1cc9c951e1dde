"""What to keep for the backward pass at a price per byte, as a minimum cut.

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
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from ckplan.planner.problem import Kind, Problem

if TYPE_CHECKING:
    from ortools.graph.python.max_flow import SimpleMaxFlow

_Integers = npt.NDArray[np.int64]

_SCALE = 1e10
"""What the cost of all ops together is in the integers that the flow is computed with."""
_INFINITE = 1 << 42
"""A capacity that no cut can pay; thousands of them add up without an overflow."""


@dataclass(frozen=True)
class Arcs:
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
def arcs_of(problem: Problem) -> Arcs:
    """The graph of a problem as arrays."""
    root, tensors, ops = problem.view_root, problem.tensors, problem.ops
    counted = [
        maker >= 0 and root[t] == t and tensors[t].kind is Kind.ACTIVATION for t, maker in enumerate(problem.producer)
    ]
    held = np.flatnonzero(counted)
    pairs = [(index, base) for index, op in enumerate(ops) for base in {root[t] for t in op.inputs} if counted[base]]
    reader, read = np.array(pairs, np.int64).reshape(-1, 2).T
    return Arcs(
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
        arcs = arcs_of(problem)
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
        self.wanted = float(self._bytes[wanted - (2 + len(ops))].sum())
        """Bytes of all that the second part reads: what it takes to run nothing again."""

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

    def parts(self, price: float) -> tuple[float, float, float]:
        """Seconds that the cheapest choice costs, those of them for running again, and the bytes that it holds."""
        flow = self._flow(price)
        chosen = np.zeros(self._count, bool)
        chosen[flow.get_source_side_min_cut()] = True
        runs = chosen[2 : self._count - len(self.held)]
        holds = chosen[self._nodes] & ~chosen[self._makers]
        seconds = float(self._fixed[: len(runs)][runs].sum())
        return flow.optimal_flow() / self.unit, seconds / self.unit, float(self._bytes[holds].sum())

    def least(self, room: int, work: float) -> float:
        """Seconds of running ops again that no choice avoids which holds no more than there is room for.

        A price on bytes proves less: it lets a part of an activation be held where the rest has no room.

        Args:
            room: bytes for all activations that are held at a price.
            work: what the solver may do, in its own deterministic units of about a second.
        """
        from ortools.sat.python import cp_model  # half a second

        model, first = cp_model.CpModel(), self._count - len(self.held)
        costs = self._fixed[: first - 2].tolist()
        runs = [model.new_bool_var("") for _ in costs]
        holds = [model.new_bool_var("") for _ in self.held]
        for run, cost in zip(runs, costs, strict=True):
            if cost >= _INFINITE:
                model.add(run == 0)
        arcs = slice(len(costs), len(self._fixed))
        for tail, head in zip(self._tails[arcs].tolist(), self._heads[arcs].tolist(), strict=True):
            there = [holds[head - first], runs[int(self._makers[head - first]) - 2]]
            model.add_bool_or([*there, ~runs[tail - 2]] if tail else there)
        model.add(sum(int(size) * hold for size, hold in zip(self._bytes, holds, strict=True)) <= room)
        model.minimize(sum(cost * run for cost, run in zip(costs, runs, strict=True) if cost < _INFINITE))
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.max_deterministic_time = work
        status = solver.solve(model)
        known = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
        return max(solver.best_objective_bound, 0.0) / self.unit if known else 0.0

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
    repeatable[forward] = arcs_of(problem).cost[forward]
    return MinimumCut(problem, repeatable, problem.stashed)

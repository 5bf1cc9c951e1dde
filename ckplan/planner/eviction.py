"""Eviction with the future known: a schedule that stays within a budget, made in one pass over the graph.

The ops run in a given order. Before an op allocates, tensors are evicted until it fits; before it runs, what it reads
and is gone is recomputed, with what that needs. Which tensor goes is decided as in Dynamic Tensor Rematerialization
(Kirisame et al., ICLR 2021, arXiv:2006.09616): the one that costs least to recompute, ancestors that are gone
included, for its bytes and for how long it is not needed. DTR works online and takes the time since the last use for
how long; here the order is known, so that it is the time to the next use, as in Belady's optimal page replacement.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ckplan.planner.problem import Kind, Op, Problem

_ANCESTORS = 48
"""How many ancestors that are gone count towards the cost of recomputing a tensor."""

_FORESIGHTS = 8
"""How often on the way it is asked what has to run again for what is gone by then."""
_FEWEST = 16
"""Ops of the order between two of these questions at least."""
_ROUNDING = 1 + 1e-9
"""By how much sums of seconds may differ that are added up in another order."""


@dataclass(frozen=True)
class Weights:
    """What an eviction is judged by: ``bias * cost ** cost_power / (bytes ** size_power * time ** time_power)``.

    Attributes:
        cost_power: weight of the seconds it takes to recompute the tensor.
        size_power: weight of its bytes.
        time_power: weight of the seconds until it is read next.
        ahead: whether the seconds to recompute are those at the time when it is read next, when more of its ancestors
            have died, instead of those now.
        bias: a factor for each tensor, by id; empty for none.
    """

    cost_power: float = 1.0
    size_power: float = 1.0
    time_power: float = 0.5
    ahead: bool = False
    bias: Sequence[float] = field(default=())


def evict(
    problem: Problem,
    budget: int,
    order: Sequence[int],
    weights: Weights = Weights(),
    most_cost: float = float("inf"),
) -> list[int] | None:
    """A schedule that keeps to a budget where eviction can do that.

    O(n log n) for n reads, times the recomputations.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations. Where what an op needs at once is more, the schedule goes on above it; so may
            chains of recomputations that hold each other's inputs. Judge it with `ckplan.planner.peak.peak_of`.
        order: all ops once, in a topological order.
        weights: what to evict first.
        most_cost: give up when the schedule costs more seconds than this, as soon as that is certain: of what is still
            to come the ops that have not run yet are known, and those that made what is gone and is read again.

    Returns:
        Op ids in execution order, or None if it was given up.
    """
    return _Eviction(_along(problem, tuple(order)), budget, weights, most_cost).run()


class _Graph:
    """What every pass over a problem along one order reads; a buffer is known by the tensor its views lead to."""

    def __init__(self, problem: Problem, order: tuple[int, ...]) -> None:
        self.problem, self.order = problem, order
        self.root, self.producer = problem.view_root, problem.producer
        root, producer, tensors = self.root, self.producer, problem.tensors
        self.size = [tensor.bytes for tensor in tensors]
        self.counted = [t.kind is Kind.ACTIVATION and producer[i] >= 0 for i, t in enumerate(tensors)]
        """Whether a root takes memory that can be given back."""
        self.evictable = [
            held and not problem.ops[producer[tensor]].backward and problem.ops[producer[tensor]].recomputable
            for tensor, held in enumerate(self.counted)
        ]
        self.cost = [op.cost for op in problem.ops]
        self.workspace = [op.workspace for op in problem.ops]
        self.reads: list[tuple[tuple[int, int], ...]] = []
        """For each op the tensors that ops make and it reads, each once and with its root."""
        self.bases: list[tuple[int, ...]] = []
        """The roots of these, each once."""
        self.touched: list[tuple[int, ...]] = []
        """The counted roots of what an op reads and makes, each once."""
        self.outputs: list[tuple[tuple[int, int], ...]] = []
        self.fresh: list[tuple[tuple[int, int, tuple[int, ...]], ...]] = []
        """What an op allocates: tensor, bytes, and the roots whose memory it may take."""
        self.held: list[tuple[int, ...]] = []
        """What an op makes a view of that cannot be made anew, so that it stays."""
        self.heirs: list[list[int]] = [[] for _ in tensors]
        """The counted roots that ops which may run again make of a root or a view of it."""
        for op in problem.ops:
            reads = tuple((t, root[t]) for t in dict.fromkeys(op.inputs) if producer[t] >= 0)
            self.reads.append(reads)
            self.bases.append(tuple({base for _, base in reads}))
            touched = {base for _, base in reads} | {root[t] for t in op.outputs}
            self.touched.append(tuple(base for base in touched if self.counted[base]))
            self.outputs.append(tuple((t, root[t]) for t in op.outputs))
            self.fresh.append(tuple(self._allocation(op, t) for t in op.outputs if root[t] == t and self.counted[t]))
            lasting = op.backward or not op.recomputable
            viewed = (base for t, base in self.outputs[-1] if base != t and producer[base] >= 0)
            self.held.append(tuple(viewed) if lasting else ())
            made = [] if op.backward else [base for _, base in self.outputs[-1] if self.counted[base]]
            for base in self.bases[-1] if made else ():
                self.heirs[base] += made
        self.price = [self.cost[maker] if maker >= 0 else 0.0 for maker in producer]
        """Seconds of the op that makes a tensor."""
        self.parents = [self.bases[maker] if maker >= 0 else () for maker in producer]
        """The roots that this op reads."""
        self.repeatable = [tensor for tensor, evictable in enumerate(self.evictable) if evictable]
        """The roots that may be made again."""
        self._weights: dict[float, list[float]] = {}
        self.clock = [0.0]
        """Seconds before each position of the order."""
        for index in order:
            self.clock.append(self.clock[-1] + self.cost[index])
        self.uses: list[list[int]] = [[] for _ in tensors]
        """Positions in the order where a root is read, the first one last."""
        for position in range(len(order) - 1, -1, -1):
            for base in self.bases[order[position]]:
                self.uses[base].append(position)

    def weights_of_bytes(self, power: float) -> list[float]:
        """For each tensor its bytes to a power."""
        if power not in self._weights:
            self._weights[power] = [max(size, 1) ** power for size in self.size]
        return self._weights[power]

    def _allocation(self, op: Op, tensor: int) -> tuple[int, int, tuple[int, ...]]:
        sources = [self.root[source] for source in op.inplace.get(tensor, ())]
        fitting = (held for held in sources if self.counted[held] and self.size[held] == self.size[tensor])
        return tensor, self.size[tensor], tuple(fitting)


@lru_cache(maxsize=4)
def _along(problem: Problem, order: tuple[int, ...]) -> _Graph:
    return _Graph(problem, order)


class _Eviction:
    """The state of one pass."""

    def __init__(self, graph: _Graph, budget: int, weights: Weights, most_cost: float) -> None:
        self.graph, self.budget, self.weights, self.most_cost = graph, budget, weights, most_cost
        count = len(graph.size)
        self.evictable = graph.evictable.copy()
        self.live = [not held for held in graph.counted]
        self.version = [0] * count
        """How often a root was made."""
        self.made_from = [-1] * count
        """The version of its root that a tensor stands for."""
        self.pins = [0] * count
        """How many reads of ops that are under way are of a root."""
        self.uses = [positions.copy() for positions in graph.uses]
        """Positions in the order where a root is still to be read, the next one last."""
        self.now = 0
        self.total = 0
        self.cost = 0.0
        self.schedule: list[int] = []
        self.short = False
        """Whether memory ever ran out; what may be evicted is not judged before."""
        self.heap: list[tuple[float, int, int]] = []
        self.stamp = [0] * count
        self.weight = graph.weights_of_bytes(weights.size_power)

    def run(self) -> list[int] | None:
        graph, pins, uses = self.graph, self.pins, self.uses
        step = max(len(graph.order) // _FORESIGHTS, _FEWEST)
        for position, index in enumerate(graph.order):
            self.now = position
            if self.short and position % step == 0 and self._is_too_dear(self._owed()):
                return None
            reads = graph.reads[index]
            for _, base in reads:
                pins[base] += 1
            while (missing := self._missing(reads)) >= 0:
                if not self._make(missing):
                    return None
            self._execute(index)
            for _, base in reads:
                pins[base] -= 1
            for base in graph.bases[index]:
                uses[base].pop()
            self._settle(graph.touched[index])
        return None if self.cost > self.most_cost else self.schedule

    def _is_too_dear(self, owed: float = 0.0) -> bool:
        """Whether the schedule will cost too much, with what is left of the order and what else has to run again."""
        clock = self.graph.clock
        return self.cost + clock[-1] - clock[self.now] + owed > self.most_cost * _ROUNDING

    def _owed(self) -> float:
        """Seconds of the ops that have to run again for what is gone and still to be read, each once."""
        graph, live = self.graph, self.live
        uses, version = self.uses, self.version
        gone = [base for base in graph.repeatable if uses[base] and not live[base] and version[base]]
        makers: set[int] = set()
        while gone:
            maker = graph.producer[gone.pop()]
            if maker not in makers:
                makers.add(maker)
                gone += [read for read in graph.bases[maker] if not live[read] and version[read]]
        return sum(graph.cost[maker] for maker in makers)

    def _make(self, index: int) -> bool:
        """Run an op again, and before it what makes its missing inputs; whether that is within the cost."""
        graph, pins = self.graph, self.pins
        stack = [index]
        for _, base in graph.reads[index]:
            pins[base] += 1
        while stack:
            index = stack[-1]
            reads = graph.reads[index]
            missing = self._missing(reads)
            if missing >= 0:
                stack.append(missing)
                for _, base in graph.reads[missing]:
                    pins[base] += 1
                continue
            stack.pop()
            self._execute(index)
            if self._is_too_dear():
                return False
            for _, base in reads:
                pins[base] -= 1
            self._settle(graph.touched[index])
        return True

    def _missing(self, reads: Sequence[tuple[int, int]]) -> int:
        """The op to run for the first tensor that is not there; of a view whose memory is gone, what makes that."""
        live, version, made_from = self.live, self.version, self.made_from
        for tensor, base in reads:
            if not live[base]:
                return self.graph.producer[base]
            if made_from[tensor] != version[base]:
                return self.graph.producer[tensor]
        return -1

    def _execute(self, index: int) -> None:
        graph, live, version = self.graph, self.live, self.version
        need = graph.workspace[index]
        overwritten: tuple[int, ...] = ()
        fresh = graph.fresh[index]
        for tensor, size, sources in fresh:
            for held in sources:
                if held not in overwritten and self.pins[held] == 1 and self._is_last_use(held, index):
                    overwritten = (*overwritten, held)
                    if not self.evictable[held]:
                        self._hold(tensor)  # nothing can recompute what this is made from
                    break
            else:
                need += size
        if self.total + need > self.budget:
            self._evict(need)
        for held in overwritten:
            self._free(held)
        for tensor, size, _ in fresh:
            if self.evictable[tensor] or not live[tensor]:
                version[tensor] += 1  # else a view that cannot be recomputed holds the old one
            if not live[tensor]:
                live[tensor] = True
                self.total += size
        for tensor, base in graph.outputs[index]:
            self.made_from[tensor] = version[base]
        for base in graph.held[index]:
            self._hold(base)
        self.schedule.append(index)
        self.cost += graph.cost[index]

    def _is_last_use(self, base: int, index: int) -> bool:
        """Whether nothing reads a root after the op that runs now, nor needs it for being recomputed."""
        uses = self.uses[base]
        if uses and not (len(uses) == 1 and uses[0] == self.now and self.graph.order[self.now] == index):
            return False
        return self.evictable[base] or not self._keeps_others(base)

    def _settle(self, bases: Sequence[int]) -> None:
        """Free what nothing reads any more; let the rest be evicted."""
        live, pins, uses, evictable, stamp = self.live, self.pins, self.uses, self.evictable, self.stamp
        for base in bases:
            if not live[base] or pins[base]:
                continue
            if not uses[base]:
                if evictable[base] or not self._keeps_others(base):
                    self._free(base)
            elif self.short and evictable[base]:
                stamp[base] += 1
                heapq.heappush(self.heap, (self._score(base), base, stamp[base]))

    def _keeps_others(self, base: int) -> bool:
        """Say whether something that was evicted needs a root that cannot be recomputed and is read no more.

        If nothing does, what is alive and was made from the root must not be evicted from now on.
        """
        heirs, live = self.graph.heirs, self.live
        if not heirs[base]:
            return False
        stay: list[int] = []
        stack, seen = [base], {base}
        while stack:
            for made in heirs[stack.pop()]:
                if made in seen:
                    continue
                seen.add(made)
                if live[made]:
                    stay.append(made)
                elif self.uses[made] and self.version[made]:
                    return True
                else:
                    stack.append(made)
        for made in stay:
            self._hold(made)
        return False

    def _hold(self, base: int) -> None:
        """Never evict a root again, nor what is made together with it."""
        for sibling, _ in self.graph.outputs[self.graph.producer[base]]:
            self.evictable[sibling] = False
            self.stamp[sibling] += 1

    def _free(self, base: int) -> None:
        if self.live[base]:
            self.live[base] = False
            self.total -= self.graph.size[base]
            self.stamp[base] += 1

    def _evict(self, need: int) -> None:
        """Evict until there is room, or nothing is left to evict.

        Scores only grow as time passes and as ancestors go, so the least of the old ones that is still least when
        judged anew is the least of all.
        """
        if not self.short:
            self.short = True
            for base, evictable in enumerate(self.evictable):
                if evictable and self.live[base]:
                    self.stamp[base] += 1
                    heapq.heappush(self.heap, (self._score(base), base, self.stamp[base]))
        heap, pinned = self.heap, []
        while self.total + need > self.budget and heap:
            _, base, stamp = heapq.heappop(heap)
            if stamp != self.stamp[base] or not self.live[base]:
                continue
            if self.pins[base]:
                pinned.append(base)
                continue
            score = self._score(base)
            if heap and score > heap[0][0]:
                heapq.heappush(heap, (score, base, stamp))
            else:
                self._free(base)
        for base in pinned:
            heapq.heappush(heap, (self._score(base), base, self.stamp[base]))

    def _score(self, base: int) -> float:
        weights, clock, uses = self.weights, self.graph.clock, self.uses[base]
        time = clock[uses[-1]] - clock[self.now] if uses else 0.0
        cost = self._cost_ahead(base, uses[-1]) if weights.ahead and uses else self._cost_again(base)
        score: float = cost if weights.cost_power == 1 else cost**weights.cost_power
        score /= self.weight[base] * max(time, 1e-12) ** weights.time_power
        return score * weights.bias[base] if weights.bias else score

    def _cost_again(self, base: int) -> float:
        """Seconds to recompute a root, with those of its ancestors that are gone."""
        parents, price, live = self.graph.parents, self.graph.price, self.live
        cost, gone = price[base], []
        for read in parents[base]:
            if not live[read]:
                gone.append(read)
        if not gone:
            return cost
        seen = {base, *gone}
        while gone and len(seen) <= _ANCESTORS:
            made = gone.pop()
            cost += price[made]
            for ancestor in parents[made]:
                if not live[ancestor] and ancestor not in seen:
                    seen.add(ancestor)
                    gone.append(ancestor)
        return cost

    def _cost_ahead(self, base: int, until: int) -> float:
        """Seconds to recompute a root at a position, with those of its ancestors that will be gone, as far as known."""
        parents, price, live, uses, evictable = (
            self.graph.parents,
            self.graph.price,
            self.live,
            self.uses,
            self.evictable,
        )
        cost, seen, gone = 0.0, {base}, [base]
        while gone and len(seen) <= _ANCESTORS:
            made = gone.pop()
            cost += price[made]
            for ancestor in parents[made]:
                if ancestor not in seen and (
                    not live[ancestor] or (evictable[ancestor] and (not uses[ancestor] or uses[ancestor][0] < until))
                ):
                    seen.add(ancestor)
                    gone.append(ancestor)
        return cost

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

from ckplan.planner.problem import Kind, Problem

_ANCESTORS = 48
"""How many ancestors that are gone count towards the cost of recomputing a tensor."""


@dataclass(frozen=True)
class Weights:
    """What an eviction is judged by: ``bias * cost ** cost_power / (bytes ** size_power * time ** time_power)``.

    Attributes:
        cost_power: weight of the seconds it takes to recompute the tensor.
        size_power: weight of its bytes.
        time_power: weight of the seconds until it is read next.
        bias: a factor for each tensor, by id; empty for none.
    """

    cost_power: float = 1.0
    size_power: float = 1.0
    time_power: float = 0.5
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
        most_cost: give up when the schedule costs more seconds than this.

    Returns:
        Op ids in execution order, or None if it was given up.
    """
    return _Eviction(problem, budget, order, weights, most_cost).run()


class _Eviction:
    """The state of one pass. A buffer is known by the tensor that its views lead to, its root."""

    def __init__(self, problem: Problem, budget: int, order: Sequence[int], weights: Weights, most_cost: float) -> None:
        self.problem = problem
        self.ops = problem.ops
        self.root = problem.view_root
        self.producer = problem.producer
        self.size = [tensor.bytes for tensor in problem.tensors]
        self.budget = budget
        self.order = order
        self.weights = weights
        self.most_cost = most_cost
        tensors = problem.tensors
        count = len(tensors)
        self.counted = [t.kind is Kind.ACTIVATION and self.producer[i] >= 0 for i, t in enumerate(tensors)]
        """Whether a root takes memory that can be given back."""
        self.evictable = [
            held and not self.ops[self.producer[tensor]].backward and self.ops[self.producer[tensor]].recomputable
            for tensor, held in enumerate(self.counted)
        ]
        self.reads = [tuple(dict.fromkeys(t for t in op.inputs if self.producer[t] >= 0)) for op in self.ops]
        self.readers: list[list[int]] = [[] for _ in range(count)]
        """Ops that read a root or a view of it."""
        for index in range(len(self.ops)):
            for base in {self.root[tensor] for tensor in self.reads[index]}:
                self.readers[base].append(index)
        self.live = [not held for held in self.counted]
        self.version = [0] * count
        """How often a root was made."""
        self.made_from = [-1] * count
        """The version of its root that a tensor stands for."""
        self.pins = [0] * count
        """How many ops that are under way read a root."""
        self.uses: list[list[int]] = [[] for _ in range(count)]
        """Positions in the order where a root is read, the next one last."""
        self.now = 0
        self.clock = [0.0]
        self.total = 0
        self.cost = 0.0
        self.schedule: list[int] = []
        self.short = False
        """Whether memory ever ran out; what may be evicted is not judged before."""
        self.heap: list[tuple[float, int, int]] = []
        self.stamp = [0] * count
        for index in order:
            self.clock.append(self.clock[-1] + self.ops[index].cost)
        for position in range(len(order) - 1, -1, -1):
            for base in {self.root[tensor] for tensor in self.reads[order[position]]}:
                self.uses[base].append(position)

    def run(self) -> list[int] | None:
        for position, index in enumerate(self.order):
            self.now = position
            if not self._make(index):
                return None
        return self.schedule

    def _make(self, index: int) -> bool:
        """Run an op of the order, and before it what makes its missing inputs."""
        stack = [(index, False)]
        base = index
        while stack:
            index, entered = stack[-1]
            reads = self.reads[index]
            if not entered:
                stack[-1] = (index, True)
                for tensor in reads:
                    self.pins[self.root[tensor]] += 1
            missing = next((tensor for tensor in reads if not self._available(tensor)), None)
            if missing is not None:
                stack.append((self._maker(missing), False))
                continue
            stack.pop()
            self._execute(index)
            if self.cost > self.most_cost:
                return False
            for tensor in reads:
                self.pins[self.root[tensor]] -= 1
            if not stack:
                for bases in {self.root[tensor] for tensor in reads}:
                    self.uses[bases].pop()
            for held in {self.root[tensor] for tensor in (*reads, *self.ops[index].outputs)}:
                self._settle(held)
        assert self.schedule[-1] == base
        return True

    def _available(self, tensor: int) -> bool:
        base = self.root[tensor]
        return self.live[base] and self.made_from[tensor] == self.version[base]

    def _maker(self, tensor: int) -> int:
        """The op to run for a tensor that is not there; of a view whose memory is gone, first what makes that."""
        base = self.root[tensor]
        return self.producer[tensor if self.live[base] else base]

    def _execute(self, index: int) -> None:
        op = self.ops[index]
        need = op.workspace
        fresh = []
        overwritten: set[int] = set()
        for tensor in op.outputs:
            if self.root[tensor] != tensor or not self.counted[tensor]:
                continue
            fresh.append(tensor)
            for source in op.inplace.get(tensor, ()):
                held = self.root[source]
                if (
                    held not in overwritten
                    and self.counted[held]
                    and self.size[held] == self.size[tensor]
                    and self.pins[held] == self.reads[index].count(source)
                    and self._next_use(held, index) is None
                    and (self.evictable[held] or not self._keeps_others(held))
                ):
                    overwritten.add(held)
                    if not self.evictable[held]:
                        self._hold(tensor)  # nothing can recompute what this is made from
                    break
            else:
                need += self.size[tensor]
        if self.total + need > self.budget:
            self._evict(need)
        for held in overwritten:
            self._free(held)
        for tensor in fresh:
            if self.evictable[tensor] or not self.live[tensor]:
                self.version[tensor] += 1  # else a view that cannot be recomputed holds the old one
            if not self.live[tensor]:
                self.live[tensor] = True
                self.total += self.size[tensor]
        for tensor in op.outputs:
            base = self.root[tensor]
            self.made_from[tensor] = self.version[base]
            if base != tensor and self.producer[base] >= 0 and (op.backward or not op.recomputable):
                # This view cannot be recomputed, so what it is a view of stays.
                self._hold(base)
        self.schedule.append(index)
        self.cost += op.cost

    def _next_use(self, base: int, index: int) -> int | None:
        """Where in the order a root is read next, after the op that runs now."""
        uses = self.uses[base]
        after = len(uses) - 1
        if after >= 0 and uses[after] == self.now and self.order[self.now] == index:
            after -= 1
        return uses[after] if after >= 0 else None

    def _settle(self, base: int) -> None:
        """Free a root that nothing reads any more; else let it be evicted."""
        if self.counted[base] and self.live[base] and not self.pins[base]:
            if not self.uses[base]:
                if self.evictable[base] or not self._keeps_others(base):
                    self._free(base)
            elif self.evictable[base] and self.short:
                self.stamp[base] += 1
                heapq.heappush(self.heap, (self._score(base), base, self.stamp[base]))

    def _keeps_others(self, base: int) -> bool:
        """Say whether something that was evicted needs a root that cannot be recomputed and is read no more.

        If nothing does, what is alive and was made from the root must not be evicted from now on.
        """
        stay: list[int] = []
        stack, seen = [base], {base}
        while stack:
            for reader in self.readers[stack.pop()]:
                for tensor in self.ops[reader].outputs:
                    made = self.root[tensor]
                    if made in seen or self.ops[reader].backward or not self.counted[made]:
                        continue
                    seen.add(made)
                    if self.live[made]:
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
        for sibling in self.ops[self.producer[base]].outputs:
            self.evictable[sibling] = False
            self.stamp[sibling] += 1

    def _free(self, base: int) -> None:
        if self.live[base]:
            self.live[base] = False
            self.total -= self.size[base]
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
        weights = self.weights
        time = self.clock[self.uses[base][-1]] - self.clock[self.now] if self.uses[base] else 0.0
        score: float = self._cost_again(base) ** weights.cost_power
        score /= max(self.size[base], 1) ** weights.size_power * max(time, 1e-12) ** weights.time_power
        return score * weights.bias[base] if weights.bias else score

    def _cost_again(self, base: int) -> float:
        """Seconds to recompute a root, with those of its ancestors that are gone."""
        cost = 0.0
        stack, seen = [base], {base}
        while stack and len(seen) <= _ANCESTORS:
            maker = self.producer[stack.pop()]
            cost += self.ops[maker].cost
            for tensor in self.reads[maker]:
                ancestor = self.root[tensor]
                if not self.live[ancestor] and ancestor not in seen:
                    seen.add(ancestor)
                    stack.append(ancestor)
        return cost

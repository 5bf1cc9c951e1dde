"""What decides which tensor is evicted first.

As in Dynamic Tensor Rematerialization (Kirisame et al., ICLR 2021, arXiv:2006.09616): the one that costs least to
recompute, ancestors that are gone included, for its bytes and for how long it is not needed. DTR works online and takes
the time since the last use for how long; here the order is known, so that it is the time to the next use, as in
Belady's optimal page replacement.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from ckplan.planner.eviction.buffer_graph import BufferGraph, Course

_ANCESTORS = 48
"""How many ancestors that are gone count towards the cost of recomputing a tensor."""


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


PLAIN = Weights()
"""What an eviction is judged by where nothing else is asked for."""


class Moment(Protocol):
    """Where a pass of eviction is, which goes on from one moment to the next.

    Attributes:
        graph: what ops do with buffers.
        course: when buffers are read along the order.
        live: by tensor, whether it is in memory.
        next_use: by root, the next position in the order where it is read, or -1.
        evictable: by root, whether it may be evicted.
        now: the position in the order.
    """

    graph: BufferGraph
    course: Course
    live: list[bool]
    next_use: list[int]
    evictable: list[bool]
    now: int


def judge(state: Moment, weights: Weights) -> Callable[[int], float]:
    """What decides which root goes first, the lowest first, at any moment of a pass; it is asked most of all."""
    graph, live, next_use, evictable = state.graph, state.live, state.next_use, state.evictable
    parents, price, clock, last_use = graph.parents, graph.price, state.course.clock, state.course.last_use
    size, bias = graph.weights_of_bytes(weights.size_power), weights.bias
    cost_power, time_power, ahead = weights.cost_power, weights.time_power, weights.ahead

    def cost_again(base: int) -> float:
        """Seconds to recompute a root, with those of its ancestors that are gone."""
        cost, seen, gone = 0.0, {base}, [base]
        while gone and len(seen) <= _ANCESTORS:
            made = gone.pop()
            cost += price[made]
            for ancestor in parents[made]:
                if not live[ancestor] and ancestor not in seen:
                    seen.add(ancestor)
                    gone.append(ancestor)
        return cost

    def cost_ahead(base: int, until: int) -> float:
        """Seconds to recompute a root at a position, with those of its ancestors that will be gone, as far as known."""
        cost, seen, gone = 0.0, {base}, [base]
        while gone and len(seen) <= _ANCESTORS:
            made = gone.pop()
            cost += price[made]
            for ancestor in parents[made]:
                if ancestor not in seen and (
                    not live[ancestor]
                    or (evictable[ancestor] and (next_use[ancestor] < 0 or last_use[ancestor] < until))
                ):
                    seen.add(ancestor)
                    gone.append(ancestor)
        return cost

    def score(base: int) -> float:
        following = next_use[base]
        time = clock[following] - clock[state.now] if following >= 0 else 0.0
        if ahead and following >= 0:
            cost = cost_ahead(base, following)
        else:
            cost = price[base]
            for read in parents[base]:
                if not live[read]:
                    cost = cost_again(base)
                    break
        if cost_power != 1:
            cost = cost**cost_power
        judged: float = cost / (size[base] * (time if time > 1e-12 else 1e-12) ** time_power)
        return judged * bias[base] if bias else judged

    return score

"""`mirror`: recompute cheap ops from the outputs of expensive ones."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

from ckplan.planner.order import best_order
from ckplan.planner.problem import Problem
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.strategies.base import Strategy


@dataclass(frozen=True)
class Mirror(Strategy):
    """Mirror cheap ops into the backward pass wherever that needs less storage than keeping their outputs.

    Backward mirroring as in MXNet (``MXNET_BACKWARD_DO_MIRROR``), which took it from Zheng et al., "Echo:
    Compiler-based GPU Memory Footprint Reduction for LSTM RNN Training" (ISCA 2020). Expensive ops (convolutions,
    matrix products) and what cannot be recomputed are never mirrored. The cheap ops between them are looked at in
    subgraphs: all that lead to one expensive op, and, over shared inputs, to others. In a subgraph, from its
    inputs on, ops that read the same values are judged together: if keeping their outputs lets go of at least as
    many bytes of inputs, they leave the mirror path and are kept, else they and what follows from them are
    mirrored. Parameters and inputs of the file weigh nothing, for they stay in memory either way. What an expensive
    op's gradient reads (its inputs) is recomputed too if it is mirrored. O(ops x depth of a subgraph).

    One forward pass of cheap ops at most is repeated, so it costs little time; it saves no more than cheap ops
    make, nothing on a chain of expensive ops, and knows no budget: then it is the wrong choice.
    """

    name: ClassVar[str] = "mirror"

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """No recomputation, and the mirrored schedule."""
        order = best_order(problem)
        mirrored = mirrored_ops(problem)
        kept = {tensor for index in problem.forward if index not in mirrored for tensor in problem.ops[index].outputs}
        return [order, recompute_schedule(problem, kept, order)]


def mirrored_ops(problem: Problem) -> set[int]:
    """The forward ops that are run again in the backward pass."""
    graph = _Graph(problem)
    mirrored: dict[int, bool] = {}
    outputs = [
        index
        for index in problem.forward
        if not any(graph.readers_forward[tensor] for tensor in problem.ops[index].outputs)
    ]
    waiting = deque(outputs)
    while waiting:
        item = waiting.popleft()
        if item not in mirrored:
            members, heads = graph.subgraph(item)
            waiting.extend(heads)
            _decide(graph, members, mirrored)
    return {index for index, chosen in mirrored.items() if chosen}


class _Graph:
    """The forward graph as mirroring sees it; views are the memory that they are a view of."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem

    @cached_property
    def cheap(self) -> frozenset[int]:
        """The ops that may be mirrored."""
        ops = self.problem.ops
        return frozenset(index for index in self.problem.forward if ops[index].recomputable and not ops[index].heavy)

    @cached_property
    def readers_forward(self) -> tuple[tuple[int, ...], ...]:
        """For each tensor the forward ops that read it."""
        return tuple(
            tuple(reader for reader in readers if not self.problem.ops[reader].backward)
            for readers in self.problem.consumers
        )

    @cached_property
    def reads_of_memory(self) -> dict[int, set[int]]:
        """For each root the ops, forward and backward, that read its memory."""
        reads: dict[int, set[int]] = {}
        for index, op in enumerate(self.problem.ops):
            for tensor in op.inputs:
                reads.setdefault(self.problem.view_root[tensor], set()).add(index)
        return reads

    def sources(self, index: int) -> list[int]:
        """The ops that make what an op reads."""
        makers = (self.problem.producer[tensor] for tensor in self.problem.ops[index].inputs)
        return [maker for maker in dict.fromkeys(makers) if maker >= 0]

    def subgraph(self, item: int) -> tuple[list[int], list[int]]:
        """The ops judged together with an op, and the expensive ops and outputs where other subgraphs begin."""
        members: dict[int, None] = {}
        heads: list[int] = []

        def grow_back(start: int) -> None:
            stack = [start]
            while stack:
                index = stack.pop()
                if index in members:
                    continue
                members[index] = None
                for source in self.sources(index):
                    (stack if source in self.cheap else heads).append(source)

        grow_back(item)
        checked: set[int] = set()
        fresh = list(members)
        while fresh:
            known = len(members)
            for member in fresh:
                for tensor in self.problem.ops[member].inputs:
                    if tensor in checked:
                        continue
                    checked.add(tensor)
                    for reader in self.readers_forward[tensor]:
                        if reader not in members:
                            for head in self._heads_from(reader, members):
                                grow_back(head)
            fresh = list(members)[known:]
        return list(members), heads

    def _heads_from(self, index: int, members: dict[int, None]) -> list[int]:
        """The expensive ops and outputs to which cheap ops lead from an op."""
        heads, seen, stack = [], {index}, [index]
        while stack:
            current = stack.pop()
            followers = [
                reader for tensor in self.problem.ops[current].outputs for reader in self.readers_forward[tensor]
            ]
            if current not in self.cheap or not followers:
                heads.append(current)
                continue
            for follower in followers:
                if follower not in seen and follower not in members:
                    seen.add(follower)
                    stack.append(follower)
        return [*heads, index]


def _decide(graph: _Graph, members: Sequence[int], mirrored: dict[int, bool]) -> None:
    """Decide for each member whether it is mirrored; earlier decisions stand."""
    for member in members:
        if member not in graph.cheap:
            mirrored[member] = False
    left = [member for member in sorted(members) if member not in mirrored]
    changed = True
    while changed:
        changed = False
        frontier = {
            member
            for member in left
            if member not in mirrored
            and all(source not in graph.cheap or mirrored.get(source) is False for source in graph.sources(member))
        }
        grouped: set[int] = set()
        for member in sorted(frontier):
            if member in grouped:
                continue
            group = _sharing_inputs(graph, member, frontier)
            grouped |= group
            if _keeping_pays(graph, group, frontier):
                mirrored.update(dict.fromkeys(group, False))
                frontier -= group
                changed = True
    mirrored.update(dict.fromkeys((member for member in left if member not in mirrored), True))


def _sharing_inputs(graph: _Graph, member: int, frontier: set[int]) -> set[int]:
    """A frontier op and those that read what it reads, and so on."""
    group, stack = {member}, [member]
    while stack:
        for tensor in graph.problem.ops[stack.pop()].inputs:
            for reader in graph.readers_forward[tensor]:
                if reader in frontier and reader not in group:
                    group.add(reader)
                    stack.append(reader)
    return group


def _keeping_pays(graph: _Graph, group: set[int], frontier: set[int]) -> bool:
    """Whether keeping what a group makes releases at least as much storage as it takes."""
    problem, root = graph.problem, graph.problem.view_root
    taken: set[int] = set()
    released: set[int] = set()
    for index in group:
        op = problem.ops[index]
        taken.update(root[tensor] for tensor in op.outputs if problem.consumers[tensor])
        for base in {root[tensor] for tensor in op.inputs}:
            (released if graph.reads_of_memory[base] <= frontier else taken).add(base)

    return problem.activation_bytes(released) >= problem.activation_bytes(taken)

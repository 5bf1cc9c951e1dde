"""The order in which the backward pass begins as soon as it can: the forward pass runs as far as it is asked for."""

from __future__ import annotations

from collections.abc import Sequence
from heapq import heappop, heappush

from ckplan.planner.problem import Op, Problem


def demanded_order(problem: Problem) -> list[int]:
    """The natural order of the backward pass, begun with no more of the forward pass than that takes.

    Where the backward pass can begin with a part of the forward pass alone, as it may in blocks of a batch, that part
    is over in both passes before the next one begins. The last part goes first, as in the natural order: sums over
    parts follow that. Almost linear in the number of reads.
    """
    demand = _Demand(problem)
    for index in problem.backward:
        demand.consider(index)
    while demand.ready or demand.waiting:
        if not demand.ready or demand.begun == len(problem.ops):
            demand.begin()
        demand.look_again()
        if demand.ready:
            demand.run(heappop(demand.ready))
    for index in problem.forward:
        demand.run(index)
    return demand.order


class _Demand:
    """The state of one walk: what ran, and which backward ops can run without a part that is not begun."""

    def __init__(self, problem: Problem) -> None:
        ops, predecessors = problem.ops, problem.predecessors
        self._ops, self._predecessors = ops, predecessors
        self._readers = [
            sorted({reader for tensor in op.outputs for reader in problem.consumers[tensor]}) for op in ops
        ]
        self._left = [len(makers) for makers in predecessors]
        self._backward_left = [sum(ops[maker].backward for maker in makers) for makers in predecessors]
        self._part = _parts(predecessors)
        self._wanted = _wanted(ops, self._readers)
        self._done = [False] * len(ops)
        self.order: list[int] = []
        self.ready: list[int] = []
        self.waiting: list[tuple[int, int]] = []
        """Backward ops that read of parts that are not begun, those of the last part first."""
        self.begun = len(ops)
        """The first of the parts that are begun."""

    def consider(self, index: int) -> None:
        """Note a backward op of which everything in the backward pass that it reads is made."""
        if not self._backward_left[index] and self._ops[index].backward:
            makers = (maker for maker in self._predecessors[index] if not self._done[maker])
            missing = max((self._part[maker] for maker in makers), default=self.begun)
            if missing >= self.begun:
                heappush(self.ready, index)
            else:
                heappush(self.waiting, (-missing, index))

    def begin(self) -> None:
        """Begin the part that the first of the waiting ops reads of."""
        self.begun = min(self.begun, -self.waiting[0][0] if self.waiting else 0)

    def look_again(self) -> None:
        """Consider the ops that wait for parts that are begun: what they need may have been made for others."""
        while self.waiting and -self.waiting[0][0] >= self.begun:
            self.consider(heappop(self.waiting)[1])

    def run(self, index: int) -> None:
        """Run an op, and before it what it needs of the forward pass."""
        stack = [index]
        while stack:
            if missing := [maker for maker in reversed(self._predecessors[stack[-1]]) if not self._done[maker]]:
                stack += missing
                continue
            index = stack.pop()
            if not self._done[index]:
                stack += self._finish(index)

    def _finish(self, index: int) -> list[int]:
        """Note that an op ran; return the ops that only let go of memory and can run now."""
        self._done[index] = True
        self.order.append(index)
        idle = []
        for reader in self._readers[index]:
            self._left[reader] -= 1
            self._backward_left[reader] -= self._ops[index].backward
            if not self._left[reader] and not self._wanted[reader]:
                idle.append(reader)
            elif self._ops[index].backward or not self._left[reader]:
                self.consider(reader)
        return idle


def _parts(predecessors: Sequence[Sequence[int]]) -> list[int]:
    """For each op the last of the ops without a maker that it depends on."""
    part = list(range(len(predecessors)))
    for index, makers in enumerate(predecessors):
        part[index] = max((part[maker] for maker in makers), default=index)
    return part


def _wanted(ops: Sequence[Op], readers: Sequence[Sequence[int]]) -> list[bool]:
    """Whether the backward pass needs an op; one that it does not, such as a loss, only lets go of memory."""
    wanted = [op.backward for op in ops]
    for index in reversed(range(len(ops))):
        wanted[index] |= any(wanted[reader] for reader in readers[index])
    return wanted

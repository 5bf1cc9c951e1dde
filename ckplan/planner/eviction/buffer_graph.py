"""What ops do with buffers, and when buffers are read along an order: what every pass of eviction goes by."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ckplan.planner.problem import Kind, Op, Problem


class BufferGraph:
    """What ops do with buffers, as lists; a buffer is known by the tensor its views lead to.

    Args:
        problem: the ops and tensors.
    """

    def __init__(self, problem: Problem) -> None:
        self.root, self.producer = problem.view_root, problem.producer
        root, producer, tensors = self.root, self.producer, problem.tensors
        self.size = [tensor.bytes for tensor in tensors]
        self.counted = [t.kind is Kind.ACTIVATION and producer[i] >= 0 for i, t in enumerate(tensors)]
        """Whether a root takes memory that can be given back."""
        self.evictable = [held and problem.ops[producer[t]].repeatable for t, held in enumerate(self.counted)]
        self.cost = [op.cost for op in problem.ops]
        self.reads: list[tuple[tuple[int, int], ...]] = []
        """For each op the tensors that ops make and it reads, each once and with its root."""
        self.bases: list[tuple[int, ...]] = []
        """The roots of these, each once."""
        self.sources: list[tuple[int, ...]] = []
        """The same in the order in which the op reads them."""
        self.views: list[bool] = []
        """Whether one of them is a view: memory that is there may hold another copy than the view stands for."""
        self.touched: list[tuple[int, ...]] = []
        """The counted roots of what an op reads and makes, each once."""
        self.outputs: list[tuple[tuple[int, int], ...]] = []
        self.viewed: list[tuple[tuple[int, int], ...]] = []
        """The views that an op makes, each with its root."""
        self.makes_views: list[bool] = []
        """Whether there are any."""
        self.views_of: list[list[int]] = [[] for _ in tensors]
        """The views of a root."""
        self.fresh: list[tuple[tuple[int, int, tuple[int, ...]], ...]] = []
        """What an op allocates: tensor, bytes, and the roots whose memory it may take."""
        self.need: list[int] = []
        """Bytes that an op takes, workspace included, where it takes nobody's memory."""
        self.overwrites: list[bool] = []
        """Whether it may take somebody's memory."""
        self.held: list[tuple[int, ...]] = []
        """What an op makes a view of that cannot be made anew, so that it stays."""
        self.heirs: list[list[int]] = [[] for _ in tensors]
        """The counted roots that ops which may run again make of a root or a view of it."""
        for index, op in enumerate(problem.ops):
            reads = tuple([(t, root[t]) for t in dict.fromkeys(op.inputs) if producer[t] >= 0])
            sources, outputs = [base for _, base in reads], tuple([(t, root[t]) for t in op.outputs])
            bases, viewed = tuple(set(sources)), tuple([(t, base) for t, base in outputs if t != base])
            touched = {*bases, *[base for _, base in outputs]}
            self.reads.append(reads)
            self.bases.append(bases)
            self.sources.append(tuple(dict.fromkeys(sources)))
            self.views.append(any(tensor != base for tensor, base in reads))
            self.touched.append(tuple([base for base in touched if self.counted[base]]))
            self.outputs.append(outputs)
            self.viewed.append(viewed)
            self.makes_views.append(bool(viewed))
            for tensor, base in viewed:
                self.views_of[base].append(tensor)
            allocated = [t for t, base in outputs if base == t and self.counted[t]]
            fresh = tuple([(t, self.size[t], self._overwritten(op, t, sources)) for t in allocated])
            self.fresh.append(fresh)
            self.need.append(problem.workspaces[index] + sum([size for _, size, _ in fresh]))
            self.overwrites.append(any(held for _, _, held in fresh))
            kept = [] if op.repeatable else [base for _, base in viewed if producer[base] >= 0]
            self.held.append(tuple(kept))
            made = [] if op.backward else [base for _, base in outputs if self.counted[base]]
            for base in bases if made else ():
                self.heirs[base] += made
        self.price = [self.cost[maker] if maker >= 0 else 0.0 for maker in producer]
        """Seconds of the op that makes a tensor."""
        self.parents = [self.bases[maker] if maker >= 0 else () for maker in producer]
        """The roots that this op reads."""
        self.repeatable = [tensor for tensor, evictable in enumerate(self.evictable) if evictable]
        """The roots that may be made again."""
        self.most_owed = sum(op.cost for op in problem.ops if not op.backward)
        """Seconds of all ops that may have to run again."""
        self._weights: dict[float, list[float]] = {}

    def weights_of_bytes(self, power: float) -> list[float]:
        """For each tensor its bytes to a power."""
        if power not in self._weights:
            self._weights[power] = [max(size, 1) ** power for size in self.size]
        return self._weights[power]

    def _overwritten(self, op: Op, tensor: int, sources: Sequence[int]) -> tuple[int, ...]:
        """The roots whose memory a tensor may take, given those of what the op reads."""
        found = [self.root[source] for source in op.inplace.get(tensor, ())] if op.inplace else []
        fitting = (base for base in found if self.counted[base] and self.size[base] == self.size[tensor])
        return tuple([base for base in fitting if sources.count(base) == 1])


@lru_cache(maxsize=4)
def buffer_graph(problem: Problem) -> BufferGraph:
    """The buffers of a problem."""
    return BufferGraph(problem)


class Course:
    """When buffers are read where all ops run once in an order.

    Args:
        graph: the buffers.
        order: all ops once, in a topological order.
    """

    def __init__(self, graph: BufferGraph, order: tuple[int, ...]) -> None:
        self.graph, self.order = graph, order
        self.clock = [0.0]
        """Seconds before each position of the order."""
        for index in order:
            self.clock.append(self.clock[-1] + graph.cost[index])
        self.first_use = [-1] * len(graph.size)
        """The first position in the order where a root is read, -1 if it is not."""
        self.last_use = [-1] * len(graph.size)
        """The last one."""
        self.next_uses: list[tuple[tuple[int, int], ...]] = [()] * len(order)
        """For each position the roots that are read there, with the next position that reads them, or -1."""
        for position in range(len(order) - 1, -1, -1):
            bases = graph.bases[order[position]]
            self.next_uses[position] = tuple((base, self.first_use[base]) for base in bases)
            for base in bases:
                self.first_use[base] = position
                if self.last_use[base] < 0:
                    self.last_use[base] = position

"""Orders without repeats for graphs that have no backward pass: which branch runs first.

Two ready branches may run in either order, and what one of them leaves behind is alive while the other works. Finding
the order of the lowest peak is NP-hard on general graphs (Sethi, "Complete register allocation problems", SIAM Journal
on Computing 4, 1975).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ckplan.planner.problem import Kind, Problem

_WIDTH = 48
"""How many partial orders are carried along in small graphs."""

_EFFORT = 24_000
"""Ops times partial orders: larger graphs are searched with fewer of them."""

_LARGEST = 20_000
"""Ops of the largest graph that is searched; sets of ops are bits of one number."""


def forward_orders(problem: Problem) -> Iterator[list[int]]:
    """Topological orders that tend to need little memory, none of them the natural one."""
    yield depth_first_order(problem)
    if len(problem.ops) <= _LARGEST:
        yield beam_order(problem, 1)
        if (width := min(_WIDTH, _EFFORT // max(len(problem.ops), 1))) > 1:
            yield beam_order(problem, width)


def depth_first_order(problem: Problem) -> list[int]:
    """What each op needs right before it, the input that takes most beyond its own bytes first.

    The order of Sethi and Ullman (Journal of the ACM 17, 1970) for expression trees, where it is optimal; what several
    ops share is made for the first of them. Linear in the number of reads, but for sorting.
    """
    tensors, producer = problem.tensors, problem.producer
    need = [0] * len(problem.ops)  # bytes that an op takes with all that it needs, were the graph a tree
    left = [0] * len(problem.ops)  # bytes that stay when it is done
    inputs: list[list[int]] = []
    for index, op in enumerate(problem.ops):
        made = sum(t.bytes for t in map(tensors.__getitem__, op.outputs) if t.kind is Kind.ACTIVATION)
        makers = list(dict.fromkeys(producer[t] for t in op.inputs if producer[t] >= 0))
        makers.sort(key=lambda maker: (left[maker] - need[maker], maker))
        held = highest = 0
        for maker in makers:
            highest = max(highest, held + need[maker])
            held += left[maker]
        need[index] = max(highest, held + made + problem.workspaces[index])
        left[index] = held if op.views else made
        inputs.append(makers)
    order: list[int] = []
    done = [False] * len(problem.ops)
    for last in _leaves(problem):
        stack = [(last, iter(inputs[last]))]
        while stack:
            index, waiting = stack[-1]
            following = next((maker for maker in waiting if not done[maker]), None)
            if following is not None:
                stack.append((following, iter(inputs[following])))
                continue
            stack.pop()
            if not done[index]:
                done[index] = True
                order.append(index)
    return order


def _leaves(problem: Problem) -> list[int]:
    """Ops whose outputs no op reads, in natural order."""
    return [i for i, op in enumerate(problem.ops) if not any(problem.consumers[tensor] for tensor in op.outputs)]


@dataclass(frozen=True, slots=True)
class _State:
    """A partial order: which ops have run, which can run now, and what it cost.

    Attributes:
        done: a bit for each op that has run.
        ready: ops that can run.
        live: bytes of activations alive now.
        peak: the most that were alive so far.
        op: the op that ran last, -1 at the start.
        before: the state before it ran.
    """

    done: int
    ready: tuple[int, ...]
    live: int
    peak: int
    op: int
    before: _State | None


def beam_order(problem: Problem, width: int) -> list[int]:
    """The best order that a beam search over sets of ops finds.

    Orders of the same ops leave the same tensors alive, so that only the one of the lowest peak is worth keeping: the
    dynamic programme of SERENITY (Ahn et al., "Ordering Chaos: Memory-Aware Scheduling of Irregularly Wired Neural
    Networks for Edge Devices", MLSys 2020), with only the best sets of each size kept. Exact where no more than
    ``width`` sets of a size can be reached; greedy list scheduling, by bytes freed minus bytes made, with width 1.
    O(ops x width x ready ops).

    Args:
        problem: the ops and tensors.
        width: how many sets of each size are kept.
    """
    graph = _Masks(problem)
    beam = [_State(0, tuple(i for i, needed in enumerate(graph.needed) if not needed), 0, 0, -1, None)]
    for _ in problem.ops:
        best: dict[int, _State] = {}
        for state in beam:
            for index in state.ready:
                done = state.done | 1 << index
                working, after = graph.run(index, done, state.live)
                peak = max(state.peak, working)
                other = best.get(done)
                if other is None or peak < other.peak:
                    # What can run is worked out for the states that are kept.
                    best[done] = _State(done, (), after, peak, index, state)
        kept = sorted(best.values(), key=lambda state: (state.peak, state.live, state.op))[:width]
        beam = [graph.advanced(state) for state in kept]
    order = []
    last: _State | None = beam[0]
    while last is not None and last.op >= 0:
        order.append(last.op)
        last = last.before
    return order[::-1]


class _Masks:
    """Who needs and reads what, as bits of ops."""

    def __init__(self, problem: Problem) -> None:
        tensors, root, producer = problem.tensors, problem.view_root, problem.producer
        self.needed = [0] * len(problem.ops)
        """For each op those that must have run."""
        self.followers: list[tuple[int, ...]] = []
        self._readers: dict[int, int] = {}
        self._held: list[tuple[int, ...]] = []
        self._made: list[int] = []
        allocated: list[list[int]] = []
        self._sources: list[tuple[tuple[int, int], ...]] = []
        self._bytes = [tensor.bytes for tensor in tensors]
        self._workspace = problem.workspaces
        for index, op in enumerate(problem.ops):
            bases = {root[tensor] for tensor in op.inputs}
            held = tuple(base for base in bases if producer[base] >= 0 and tensors[base].kind is Kind.ACTIVATION)
            for tensor in op.inputs:
                if producer[tensor] >= 0:
                    self.needed[index] |= 1 << producer[tensor]
            for base in held:
                self._readers[base] = self._readers.get(base, 0) | 1 << index
            new = [t for t in op.outputs if root[t] == t and tensors[t].kind is Kind.ACTIVATION]
            self._held.append(held)
            self._made.append(sum(self._bytes[tensor] for tensor in new))
            overwritable = ((t, root[s]) for t in new for s in op.inplace.get(t, ()))
            self._sources.append(
                tuple((base, self._bytes[t]) for t, base in overwritable if self._bytes[base] == self._bytes[t])
            )
            self.followers.append(tuple(dict.fromkeys(i for t in op.outputs for i in problem.consumers[t])))

            allocated.append(new)
        self._unread = [sum(self._bytes[t] for t in new if t not in self._readers) for new in allocated]
        """Bytes that an op makes and nothing reads: they are alive while it runs."""

    def run(self, index: int, done: int, live: int) -> tuple[int, int]:
        """Bytes alive while an op runs and after it, given the ops that have run then, itself included."""
        gone = [base for base in self._held[index] if not self._readers[base] & ~done]
        made = self._made[index]
        after = live + made - self._unread[index] - sum(self._bytes[base] for base in gone)
        overwritten = {base: size for base, size in self._sources[index] if base in gone}
        return live + made + self._workspace[index] - sum(overwritten.values()), after

    def advanced(self, state: _State) -> _State:
        """The state with the ops that can run."""
        assert state.before is not None
        ready = [index for index in state.before.ready if index != state.op]
        ready += [index for index in self.followers[state.op] if not self.needed[index] & ~state.done]
        return _State(state.done, tuple(ready), state.live, state.peak, state.op, state.before)

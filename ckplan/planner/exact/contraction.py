"""A smaller problem of which no schedule costs more: what bounds are proven on that hold for the problem itself.

- Activations of less than a two-hundredth of the budget weigh nothing. An op that makes only such ones and reads one
  other at most runs as soon as that one is made; what reads the op has to wait for that alone.
- An op that runs once and makes one activation, for one op that runs once, runs right before that one if what it reads
  weighs no more than what it makes: until then that is held in its place. Most of a layer's backward pass, such as the
  transposed operands of a weight gradient, becomes one op.
- An op that reads one activation alone, is its only reader and makes no more runs right after what makes it: a
  normalisation and a ReLU run with their convolution.

Any schedule of the problem, changed like this, is one of the contraction that holds no more at any time and recomputes
no more. What an op works in is that of one of the ops that it stands for, which is less than all of them need.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from graphlib import TopologicalSorter
from typing import Final

from ckplan.planner.bounds import working_sets
from ckplan.planner.problem import Kind, Op, Problem, Tensor

_TINY: Final = 200
"""Activations weigh nothing of which so many fit into the budget."""


@dataclass(frozen=True, slots=True)
class ContractedOp:
    """An op of the contraction: some ops of the problem as one. Sets of ops and activations are bits of a number.

    Attributes:
        reads: activations that have to be held when it begins.
        beside: those of them that its working set does not count: it takes their place, so that what is held of them
            afterwards is held beside it.
        makes: activations that it makes.
        after: ops that have to have run before it for the first time, beside those that make what it reads.
        own: bytes that it needs while it runs.
        cost: seconds to run it again.
        again: whether it may run again.
    """

    reads: int
    beside: int
    makes: int
    after: int
    own: int
    cost: float
    again: bool


@dataclass(frozen=True, slots=True)
class Contraction:
    """The ops in a topological order, and the bytes of each activation."""

    ops: tuple[ContractedOp, ...]
    sizes: tuple[int, ...]

    def problem(self) -> Problem:
        """The same as a problem for minimum cuts: without working sets, with an activation of no size for each op."""
        count = len(self.sizes)
        ops = [
            Op(
                f"op {index}",
                (*bits(op.reads), *(count + maker for maker in bits(op.after))),
                (*bits(op.makes), count + index),
                cost=op.cost,
                backward=not op.again,
                recomputable=op.again,
            )
            for index, op in enumerate(self.ops)
        ]
        sizes = (*self.sizes, *(0 for _ in ops))
        return Problem(tuple(ops), tuple(Tensor(f"activation {place}", size) for place, size in enumerate(sizes)))


def bits(members: int) -> Iterator[int]:
    """The members of a set that is the bits of a number, ascending."""
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest


def dependence(small: Contraction) -> list[int]:
    """For each op those on which it depends, and itself."""
    before: list[int] = []
    maker = {place: index for index, op in enumerate(small.ops) for place in bits(op.makes)}
    for index, op in enumerate(small.ops):
        reached = 1 << index
        for other in (*bits(op.after), *(maker[place] for place in bits(op.reads))):
            reached |= before[other]
        before.append(reached)
    return before


@dataclass(slots=True)
class _Node:
    """An op on the way to a `ContractedOp`, with sets of op ids and tensors."""

    reads: set[int]
    beside: set[int]
    makes: set[int]
    after: set[int]
    own: int
    cost: float
    again: bool


def contraction(problem: Problem, budget: int) -> Contraction:
    """The contraction of a problem for one budget.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.
    """
    tensors, root = problem.tensors, problem.view_root
    weight = {
        tensor: tensors[tensor].bytes
        for tensor, maker in enumerate(problem.producer)
        if maker >= 0
        and root[tensor] == tensor
        and tensors[tensor].kind is Kind.ACTIVATION
        and tensors[tensor].bytes * _TINY >= max(budget, 1)
    }
    nodes = _nodes(problem, weight, budget)
    joined = True
    while joined:
        joined = False
        for index in list(nodes):
            joined |= _join(nodes, weight, index)
    return _numbered(nodes, weight)


def _nodes(problem: Problem, weight: dict[int, int], budget: int) -> dict[int, _Node]:
    """The ops that make something that weighs, or read several such; each waits for what the others stood for."""
    root, own = problem.view_root, working_sets(problem)
    nodes: dict[int, _Node] = {}
    stands_for: list[set[int]] = []
    for index, op in enumerate(problem.ops):
        reads = {root[tensor] for tensor in op.inputs} & weight.keys()
        makes = weight.keys() & op.outputs
        after: set[int] = set()
        for tensor in op.inputs:
            if problem.producer[tensor] >= 0 and tensor not in weight:
                after |= stands_for[problem.producer[tensor]]
        if not makes and len(reads) <= 1 and problem.workspaces[index] * _TINY < budget:
            stands_for.append(after | {problem.producer[tensor] for tensor in reads})
            continue
        stands_for.append({index})
        beside = _overwritten(problem, op, weight) & reads
        nodes[index] = _Node(reads, beside, set(makes), after, own[index], op.cost, op.repeatable)
    return nodes


def _overwritten(problem: Problem, op: Op, weight: dict[int, int]) -> set[int]:
    """What an op overwrites if nothing else reads it, where there is no choice which of several that is."""
    found: set[int] = set()
    for tensor, sources in op.inplace.items():
        if tensor in weight and tensor not in op.views and tensor in op.outputs:
            bases = {problem.view_root[source] for source in sources}
            if len(bases) == 1 and all(weight.get(base) == weight[tensor] for base in bases):
                found |= bases
    return found


def _join(nodes: dict[int, _Node], weight: dict[int, int], index: int) -> bool:
    """Join an op with the only reader of the only activation that it makes, if that is sound; whether it was."""
    if index not in nodes or len(nodes[index].makes) != 1:
        return False
    (made,) = nodes[index].makes
    readers = [reader for reader, other in nodes.items() if made in other.reads]
    if len(readers) != 1:
        return False
    node, reader = nodes[index], nodes[readers[0]]
    waiting = {number for number, other in nodes.items() if index in other.after}
    more = node.reads - reader.reads
    once = not node.again and not reader.again
    if once and waiting <= {readers[0]} and sum(weight[tensor] for tensor in more) <= weight[made]:
        reader.reads = (reader.reads - {made}) | more
        reader.beside = (reader.beside - {made}) | more
        reader.after = (reader.after - {index}) | node.after
        del nodes[index]
        return True
    alike = reader.again == node.again and reader.reads == {made} and not reader.after
    # Where others wait for it, it may run for them, and again before its reader runs at all: one repeat too many.
    sound = alike and not (node.again and waiting)
    if sound and sum(weight[tensor] for tensor in reader.makes) <= weight[made]:
        node.makes = reader.makes
        node.cost += reader.cost
        for other in nodes.values():
            if readers[0] in other.after:
                other.after = (other.after - {readers[0]}) | {index}
        del nodes[readers[0]]
        return True
    return False


def _numbered(nodes: dict[int, _Node], weight: dict[int, int]) -> Contraction:
    maker = {tensor: index for index, node in nodes.items() for tensor in node.makes}
    before = {index: {*node.after, *(maker[tensor] for tensor in node.reads)} for index, node in nodes.items()}
    order = list(TopologicalSorter(before).static_order())
    number = {index: place for place, index in enumerate(order)}
    place = {tensor: at for at, tensor in enumerate(tensor for index in order for tensor in sorted(nodes[index].makes))}

    def activations(tensors: Iterable[int]) -> int:
        return sum(1 << place[tensor] for tensor in tensors)

    ops = []
    for node in (nodes[index] for index in order):
        after = sum(1 << number[other] for other in node.after)
        reads, beside, makes = (activations(some) for some in (node.reads, node.beside, node.makes))
        ops.append(ContractedOp(reads, beside, makes, after, node.own, node.cost, node.again))
    return Contraction(tuple(ops), tuple(weight[tensor] for tensor in place))

"""Orders without repeats: of graphs that have no backward pass, and of batches in blocks."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckplan.planner import Op, Problem, Tensor
from ckplan.planner.beam_order import beam_order, depth_first_order, forward_orders
from ckplan.planner.demanded_order import demanded_order
from ckplan.planner.frontier import Effort, lowest
from ckplan.planner.order import best_order, searched_orders
from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Kind
from ckplan.planner.strategies.base import one_more_forward
from tests.planner.problems import ProblemBuilder, chain, problems


def forward_problem(sizes: list[int], reads: list[list[int]]) -> Problem:
    """One op a size, each with one output; ``reads`` names earlier ops."""
    ops = tuple(
        Op(f"op{i}", tuple(dict.fromkeys(r % i for r in read)) if i else (), (i,)) for i, read in enumerate(reads)
    )
    return Problem(ops, tuple(Tensor(f"t{i}", size) for i, size in enumerate(sizes)))


@st.composite
def forward_problems(draw: st.DrawFn, most: int = 6) -> Problem:
    count = draw(st.integers(1, most))
    sizes = draw(st.lists(st.integers(1, 20), min_size=count, max_size=count))
    reads = draw(st.lists(st.lists(st.integers(0, 50), max_size=2), min_size=count, max_size=count))
    return forward_problem(sizes, reads)


def is_valid(problem: Problem, order: list[int]) -> bool:
    place = {index: position for position, index in enumerate(order)}
    return sorted(order) == list(range(len(problem.ops))) and all(
        place[maker] < place[index] for index, makers in enumerate(problem.predecessors) for maker in makers
    )


def branches(count: int) -> Problem:
    """Branches that swell from one tensor and shrink again, written layer by layer; a last op reads all of them."""
    ops = [Op("stem", (), (0,))]
    tensors = [Tensor("stem", 1)]
    layer = [0] * count
    for depth, size in enumerate((100, 100, 1)):
        for branch in range(count):
            tensors.append(Tensor(f"b{branch}.{depth}", size))
            ops.append(Op(f"b{branch}.{depth}", (layer[branch],), (len(tensors) - 1,)))
            layer[branch] = len(tensors) - 1
    tensors.append(Tensor("sum", 1))
    ops.append(Op("sum", tuple(layer), (len(tensors) - 1,)))
    return Problem(tuple(ops), tuple(tensors))


def test_branches_run_one_after_the_other() -> None:
    problem = branches(5)
    assert peak_of(problem, range(len(problem.ops))) > 500
    for order in forward_orders(problem):
        assert peak_of(problem, order) <= 200 + 5
    assert peak_of(problem, best_order(problem)) <= 200 + 5


def test_the_branch_that_leaves_least_runs_last() -> None:
    # A tree: evaluating the deep subtree first is what Sethi and Ullman's order does, whatever the file's order is.
    ops = (
        Op("small", (), (0,)),
        Op("large", (), (1,)),
        Op("shrink", (1,), (2,)),
        Op("join", (0, 2), (3,)),
    )
    problem = Problem(ops, tuple(Tensor(f"t{i}", size) for i, size in enumerate((50, 100, 10, 1))))
    assert depth_first_order(problem) == [1, 2, 0, 3]
    assert peak_of(problem, best_order(problem)) == 110


@settings(max_examples=60)
@given(forward_problems())
def test_a_wide_beam_is_exact(problem: Problem) -> None:
    orders = (list(order) for order in itertools.permutations(range(len(problem.ops))))
    best = min((peak_of(problem, order) for order in orders if is_valid(problem, order)), default=0)
    assert peak_of(problem, beam_order(problem, 10**6)) == best


@settings(max_examples=80)
@given(forward_problems(most=40), st.integers(1, 4))
def test_orders_are_topological(problem: Problem, width: int) -> None:
    assert is_valid(problem, beam_order(problem, width))
    assert is_valid(problem, depth_first_order(problem))
    assert peak_of(problem, best_order(problem)) <= peak_of(problem, range(len(problem.ops)))


def blocks(count: int, layers: int, *, joined: bool = False, weight: int = 10) -> Problem:
    """A chain for each block of a batch, and gradients of weights that are summed from the last block to the first.

    The loss reads all blocks. The gradient that each block begins with reads its last activation, or, where it is
    joined, those of all blocks.
    """
    build, values = ProblemBuilder(), []
    for block in range(count):
        values.append([build.tensor(1, Kind.INPUT)])
        for layer in range(layers):
            values[block].append(build.tensor(100))
            build.op(values[block][-2:-1], values[block][-1:], name=f"block{block}.{layer}")
    ends = [chain[-1] for chain in values]
    build.op(ends, [build.tensor(1, Kind.OUTPUT)], name="loss")
    seeds = [build.tensor(100) for _ in range(count)]
    for block, seed in enumerate(seeds):
        build.op(ends if joined else [ends[block]], [seed], backward=True)
    sums: dict[int, int] = {}
    for block in reversed(range(count)):
        arriving = seeds[block]
        for layer in reversed(range(layers)):
            gradient = build.tensor(weight)
            build.op([arriving, values[block][layer]], [gradient], backward=True)
            if layer in sums:
                total = build.tensor(weight, Kind.ACTIVATION if block else Kind.OUTPUT)
                build.op([sums[layer], gradient], [total], backward=True)
                gradient = total
            sums[layer] = gradient
            if layer:
                made = build.tensor(100)
                build.op([arriving], [made], backward=True)
                arriving = made
    return build.build()


@pytest.mark.parametrize("count", [2, 5])
def test_a_block_is_over_in_both_passes_before_the_next_one_begins(count: int) -> None:
    problem = blocks(count, 8)
    order = demanded_order(problem)
    assert is_valid(problem, order)
    begun = [order.index(index) for index, op in enumerate(problem.ops) if op.name.endswith(".0")]
    assert begun == sorted(begun, reverse=True)
    # All layers of a block, two gradients, and two sums; the end of each block, which the loss reads.
    assert peak_of(problem, best_order(problem)) <= 100 * (8 + 2 + count) + 2 * 8 * 10
    assert peak_of(problem, range(len(problem.ops))) > 100 * 8 * count


def test_the_lowest_peak_may_be_that_of_blocks_which_all_run_forward_first() -> None:
    problem = blocks(3, 12, weight=100)
    demanded, usual = (peak_of(problem, order) for order in searched_orders(problem))
    assert demanded < usual
    # Along the first of these orders alone it is 1,900.
    assert peak_of(problem, lowest(problem, one_more_forward(problem), Effort(0))) <= 1800


def test_blocks_wait_for_each_other_where_they_are_joined() -> None:
    problem = blocks(3, 4, joined=True)
    assert is_valid(problem, demanded_order(problem))
    assert peak_of(problem, best_order(problem)) >= 100 * 4 * 3


def test_the_natural_order_is_demanded_of_a_chain() -> None:
    problem = chain(6)
    first = next(index for index in problem.backward if not problem.predecessors[index])
    assert demanded_order(problem) == [first, *(index for index in range(len(problem.ops)) if index != first)]


@given(problems(max_forward=16))
def test_demanded_orders_are_topological(problem: Problem) -> None:
    assert is_valid(problem, demanded_order(problem))

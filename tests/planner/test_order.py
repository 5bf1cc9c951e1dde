"""Orders without repeats of graphs that have no backward pass."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from ckplan.planner import Op, Problem, Tensor
from ckplan.planner.beam_order import beam_order, depth_first_order, forward_orders
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of


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
        place[problem.producer[tensor]] < place[index] for index, op in enumerate(problem.ops) for tensor in op.inputs
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

"""Dynamic programming over lower sets."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings

from ckplan.errors import UsageError
from ckplan.planner import Problem
from ckplan.planner.instances import forward_overhead, naive_bytes, parse_kusumoto
from ckplan.planner.strategies.lower_set_graph import all_lower_sets, contract, principal_lower_sets
from ckplan.planner.strategies.lower_sets import LowerSets
from tests.planner.budgets import check_budgets
from tests.planner.networks import resnet50, small_unet, vgg19
from tests.planner.problems import chain, problems


@settings(deadline=None, max_examples=40)
@given(problems())
def test_budgets(problem: Problem) -> None:
    check_budgets(LowerSets(), problem)


@settings(deadline=None, max_examples=60)
@given(problems(max_forward=8))
def test_lower_sets_are_those_that_hold_what_they_need(problem: Problem) -> None:
    graph = contract(problem)
    count = len(graph.ops)

    def closed(members: tuple[bool, ...]) -> bool:
        return all(not members[j] or members[i] for i, j in zip(*np.nonzero(graph.edges), strict=True))

    expected = {members for members in product((False, True), repeat=count) if closed(members)}
    found = all_lower_sets(graph, 2**count)
    assert found is not None
    assert {tuple(map(bool, row)) for row in found} == expected
    assert len(expected) == 1 or all_lower_sets(graph, len(expected) - 1) is None
    principal = {tuple(map(bool, row)) for row in principal_lower_sets(graph)}
    assert principal <= expected
    assert len(principal) <= count + 2


def test_large_graphs_are_coarsened() -> None:
    problem = chain(50)
    graph = contract(problem, most_nodes=20)
    assert len(graph.ops) <= 20
    assert [index for ops in graph.ops for index in ops] == list(problem.forward)
    # Half of the activations are overwritten in place and take no memory of their own.
    assert graph.bytes.sum() == 50 * 100


# What the authors' own solvers reach on these graphs, the better of the exact and the approximate one: overhead
# with 0.3 and 0.2 of naive, and the lowest peak (time- or memory-centric).
@pytest.mark.parametrize(
    ("network", "overheads", "peak"),
    [(vgg19, {0.3: 0.195}, 0.250), (resnet50, {0.3: 0.110, 0.2: 0.193}, 0.109)],
)
def test_at_least_as_good_as_the_reference(network: type, overheads: dict[float, float], peak: float) -> None:
    problem = parse_kusumoto(network().text())
    naive = naive_bytes(problem)
    for fraction, overhead in overheads.items():
        plan = LowerSets().solve(problem, int(fraction * naive))
        assert plan.predicted.peak_activations <= fraction * naive
        assert forward_overhead(problem, plan.schedule) <= overhead
    assert LowerSets().solve(problem).predicted.peak_activations <= peak * naive


def test_an_ample_budget_recomputes_nothing() -> None:
    problem = parse_kusumoto(vgg19().text())
    assert LowerSets().solve(problem, naive_bytes(problem) // 2).recomputed == 0


def test_families() -> None:
    problem = parse_kusumoto(small_unet().text())
    exact, approximate = (LowerSets(family=family).solve(problem) for family in ("exact", "approx"))
    assert exact.predicted.peak_activations <= approximate.predicted.peak_activations
    with pytest.raises(UsageError, match="more than 5 lower sets"):
        LowerSets(family="exact", max_sets=5).solve(problem)
    with pytest.raises(UsageError, match="no family `all`"):
        LowerSets(family="all").solve(problem)

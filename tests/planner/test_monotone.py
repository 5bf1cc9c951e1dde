"""A plan for less is a plan for more: a larger budget never leads to a dearer plan or to a refusal."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import assume, example, given, settings
from hypothesis import strategies as st

from ckplan.errors import InfeasibleError
from ckplan.planner import Problem
from ckplan.planner.bounds import lower_bound
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.strategies import STRATEGIES, Strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.evict import Evict
from ckplan.planner.strategies.exact import Exact
from ckplan.planner.strategies.keep_listed import KeepListed
from ckplan.planner.strategies.monotone import bound_below
from ckplan.planner.strategies.revolve import Revolve
from ckplan.planner.strategies.search import Search
from tests.planner.problems import problems, uneven_chain

SEARCHING = (Search, Exact, Auto)
"""Whose local search goes by the budget alone."""
MONOTONE = [kind() for kind in STRATEGIES if kind not in (KeepListed, *SEARCHING)]


@pytest.mark.parametrize("strategy", MONOTONE, ids=str)
@settings(max_examples=10)
@given(problem=problems(max_forward=14))
def test_more_room_never_costs_more(strategy: Strategy, problem: Problem) -> None:
    low, high = lower_bound(problem)[0], peak_of(problem, best_order(problem))
    costs = []
    for step in range(9):
        try:
            costs.append(strategy.solve(problem, low + (high - low) * step // 8).cost)
        except InfeasibleError:
            costs.append(float("inf"))
    # Seconds are summed up in the order of the schedule.
    assert all(more <= less * (1 + 1e-12) for less, more in pairwise(costs)), costs


@settings(max_examples=20)
@given(layers=st.integers(15, 30), seed=st.integers(0, 1000))
@example(layers=20, seed=38)  # a search for each budget by itself is dearer at 0.7 of the peak than at 0.65
def test_checkpoints_of_an_uneven_chain_are_no_dearer_with_more_room(layers: int, seed: int) -> None:
    problem = uneven_chain(layers, seed)
    peak = peak_of(problem, best_order(problem))
    costs = []
    for share in range(10, 20):
        try:
            costs.append(Revolve().solve(problem, peak * share // 20).cost)
        except InfeasibleError:
            costs.append(float("inf"))
    assert all(more <= less * (1 + 1e-12) for less, more in pairwise(costs)), costs


@settings(max_examples=20)
@given(problem=problems(max_forward=14), share=st.floats(0.4, 1))
def test_eviction_finds_what_is_cheaper_and_nothing_else(problem: Problem, share: float) -> None:
    order = best_order(problem)
    budget = int(share * peak_of(problem, order))
    assume(budget < peak_of(problem, order))
    try:
        cost = Evict().solve(problem, budget).cost
    except InfeasibleError:
        assert Evict().cheaper(problem, budget, float("inf")) is None
        return
    for most_cost in (float("inf"), cost * 1.001):
        found = Evict().cheaper(problem, budget, most_cost)
        assert found is not None
        assert peak_of(problem, found) <= budget
        assert problem.schedule_cost(found) <= cost * (1 + 1e-12)
    assert Evict().cheaper(problem, budget, cost * (1 - 1e-9)) is None


@settings(max_examples=30)
@given(problem=problems(max_forward=14))
def test_the_bound_of_less_memory_is_no_lower(problem: Problem) -> None:
    high = peak_of(problem, best_order(problem))
    bounds = [bound_below(problem, high * share // 10) for share in range(5, 11)]
    # Below a moment's own working set nothing follows from it, and no plan exists.
    least = lower_bound(problem)[0]
    known = [bound for share, bound in zip(range(5, 11), bounds, strict=True) if high * share // 10 >= least]
    assert all(more <= less + 1e-9 for less, more in pairwise(known))

"""The bound of several moments of a contraction, against the optimum."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from benchmarks.plan_quality import model_problem
from ckplan.planner import Problem
from ckplan.planner.bounds import lower_bound
from ckplan.planner.exact import TooLargeError, optimum
from ckplan.planner.exact.contracted_bound import contracted_overhead
from ckplan.planner.exact.contracted_stages import _Stages
from ckplan.planner.exact.contraction import Contraction, contraction, dependence
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from sample_models.catalogue import BUILDERS
from tests.planner.test_contracted_bound import Builder


def some_path(small: Contraction, rng: random.Random) -> list[int]:
    """Up to five ops, each of which depends on the one before."""
    before = dependence(small)
    path = [rng.randrange(len(small.ops))]
    while later := [index for index in range(path[-1] + 1, len(small.ops)) if before[index] >> path[-1] & 1]:
        path.append(rng.choice(later))
    return sorted(rng.sample(path, min(len(path), rng.randint(1, 5))))


def extra(problem: Problem, budget: int) -> float | None:
    """Seconds of recomputation of the cheapest schedule, if it is found."""
    try:
        found = optimum(problem, budget)
    except TooLargeError:
        return None
    return None if found is None else problem.schedule_cost(found) - problem.cost


@settings(max_examples=150)
@given(seed=st.integers(0, 10**9), share=st.floats(0, 0.8))
def test_no_path_proves_more_than_the_optimum_costs(seed: int, share: float) -> None:
    problem, rng = Builder(seed).build(), random.Random(seed)
    low, high = lower_bound(problem)[0], peak_of(problem, best_order(problem))
    budget = int(low + share * (high - low))
    true = extra(problem, budget)
    assume(true is not None)
    assert true is not None
    small = contraction(problem, budget)
    for _ in range(3):
        assert _Stages(small, budget, some_path(small, rng)).bound(5.0, 60.0) <= true + 1e-6 * problem.cost


# Some of these graphs show a slip: what is overwritten counted beside what takes its place; made in a stage and taken
# for held through it; the op aside kept from running after the last moment, or taken for run where it does not.
@pytest.mark.parametrize("seed", [*range(60), 163, 164, 166, 171, 620, 635, 748, 763, 764, 1089, 1156])
def test_so_it_is_for_many_small_graphs(seed: int) -> None:
    problem, rng = Builder(seed).build(), random.Random(seed)
    low, high = lower_bound(problem)[0], peak_of(problem, best_order(problem))
    budget = (3 * low + high) // 4
    true = extra(problem, budget)
    if true:
        small = contraction(problem, budget)
        assert _Stages(small, budget, some_path(small, rng)).bound(5.0, 60.0) <= true + 1e-6 * problem.cost


def test_moments_together_prove_most_of_what_a_unet_of_two_levels_costs(tmp_path: Path) -> None:
    model = BUILDERS["unet"](image=32, width=4, levels=2, channels=1)
    problem = model_problem(model, tmp_path)
    base = peak_of(problem, best_order(problem))
    # The best cut proves 8.5 and 5.7 %; without an op aside it is 10.2 and 5.7.
    for share, known, proven in ((0.5, 0.167, 0.12), (0.6, 0.085, 0.06)):
        assert proven < contracted_overhead(problem, int(share * base), work=0.0) / problem.cost <= known

"""Greedy segments by size."""

from __future__ import annotations

import pytest
from hypothesis import given, settings

from ckplan.planner import Problem, forward_cuts, simulate
from ckplan.planner.instances import forward_overhead, naive_bytes, parse_kusumoto
from ckplan.planner.strategies.chen import Chen, greedy_segments
from tests.planner.budgets import check_budgets
from tests.planner.networks import vgg19
from tests.planner.problems import chain, problems


@settings(deadline=None, max_examples=60)
@given(problems())
def test_budgets(problem: Problem) -> None:
    check_budgets(Chen(), problem)


def test_a_tensor_is_kept_as_soon_as_the_sum_exceeds_the_size() -> None:
    # Two activations of 100 bytes a layer: the fifth one is the first to exceed 400.
    problem = chain(9)
    chosen, longest = greedy_segments(problem, forward_cuts(problem), 400)
    assert [cut.position for cut in chosen] == [5, 10, 15]
    assert longest == 500


def test_the_size_can_be_given_and_any_cut_be_used() -> None:
    problem = parse_kusumoto(vgg19().text())
    _, schedule = Chen(segment_bytes=naive_bytes(problem) // 8).schedules(problem)
    assert 0 < forward_overhead(problem, schedule) < 1
    assert (
        Chen(any_cut=1).solve(problem).predicted.peak_activations
        < simulate(problem, range(len(problem.ops))).peak_activations
    )


@pytest.mark.parametrize("layers", [16, 64, 256])
def test_a_chain_needs_about_the_square_root(layers: int) -> None:
    plan = Chen().solve(chain(layers))
    assert plan.predicted.peak_activations <= (2 * layers**0.5 + 4) * 100
    assert forward_overhead(chain(layers), plan.schedule) < 1

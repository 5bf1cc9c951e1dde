"""`auto` is no dearer than any other strategy, and plans whatever another one plans."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ckplan
from benchmarks.strategies_compared import random_graph, uneven_graph
from ckplan.errors import CkplanError
from ckplan.planner import Problem
from ckplan.planner.frontier import Effort, cheapest
from ckplan.planner.instances.problem_json import problem_from_json
from ckplan.planner.order import best_order, orders
from ckplan.planner.peak import ALIKE, peak_of
from ckplan.planner.search import within
from ckplan.planner.shave import shave
from ckplan.planner.strategies import STRATEGIES, auto
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.auto_stages import stages_of
from ckplan.planner.strategies.exact import Exact
from ckplan.planner.strategies.mincut import FewCuts
from tests.planner.problems import problems, uneven_chain

GPT = Path(__file__).parents[2] / "sample_models" / "gpt_tiny.onnx"


def cost(problem: Problem, name: str, budget: int) -> float:
    """Seconds of a strategy's plan; infinite if it has none."""
    (kind,) = (kind for kind in STRATEGIES if kind.name == name)
    try:
        return kind().solve(problem, budget).cost
    except CkplanError:  # also where a strategy has to be told what to keep
        return float("inf")


@pytest.mark.parametrize("share", [0.45, 0.5])
def test_minimum_cuts_are_no_cheaper_for_a_thousand_ops(share: float) -> None:
    step = ckplan.open_model(GPT, dims={"batch": 16})
    budget = int(share * step.baseline.peak_activations)
    assert cost(step.problem, "auto", budget) <= cost(step.problem, "mincut", budget) * (1 + 1e-9)


def test_what_lower_sets_alone_plans_of_a_hundred_ops_is_planned() -> None:
    """A random layered graph, of which minimum cuts and eviction find nothing at nine tenths of its peak."""
    text = (Path(__file__).parent / "layered_102.json").read_text(encoding="utf-8")
    problem = problem_from_json(json.loads(text))
    budget = int(0.9 * peak_of(problem, best_order(problem)))
    assert cost(problem, "auto", budget) <= cost(problem, "lower_sets", budget) * (1 + 1e-9) < float("inf")


def test_more_is_tried_where_a_bound_leaves_a_thousandth_of_a_step() -> None:
    problem = uneven_graph(29, 700)
    plan = Auto().solve(problem, int(0.35 * peak_of(problem, best_order(problem))))
    assert plan.overhead < 0.0138  # 1.404 % where half a percent was left


def test_few_cuts_keep_to_the_budget_and_cost_less_than_asked() -> None:
    step = ckplan.open_model(GPT, dims={"batch": 16})
    problem, budget = step.problem, int(0.5 * step.baseline.peak_activations)
    found = FewCuts().cheaper(problem, budget, 3 * problem.cost)
    assert found is not None
    assert peak_of(problem, found) <= budget
    assert FewCuts().cheaper(problem, budget, problem.schedule_cost(found)) is None


@settings(max_examples=10)
@given(problem=problems(max_forward=16), share=st.floats(0.4, 1))
def test_no_other_strategy_is_cheaper(problem: Problem, share: float) -> None:
    budget = int(share * peak_of(problem, best_order(problem)))
    ours = cost(problem, "auto", budget)
    others = {kind.name: cost(problem, kind.name, budget) for kind in STRATEGIES if kind not in (Auto, Exact)}
    assert ours <= min(others.values()) * (1 + 1e-9), others


def test_more_is_tried_where_a_bound_leaves_a_gap(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_graph(322, most=500)
    budget = int(0.6 * peak_of(problem, best_order(problem)))
    monkeypatch.setattr(auto, "stages_of", lambda *asked: replace(stages_of(*asked), rebuilt=0))
    found = cost(problem, "auto", budget)
    monkeypatch.setattr(auto, "stages_of", lambda *asked: replace(stages_of(*asked), searched=0, rebuilt=0))
    assert found < cost(problem, "auto", budget)


@pytest.mark.parametrize(
    ("seed", "less", "more"),
    [
        (161, 0.455, 0.46),  # +18.3 % and +19.6 % where the solver's work is over before the larger one's proof
        (161, 0.505, 0.51),  # +14.0 % and +15.1 % where no op may run a third time that does not do so in the seed
        (170, 0.47, 0.475),  # +25.8 % and +36.7 % near the lowest peak, with what is found for the budget alone
        (170, 0.55, 0.58),
        (169, 0.525, 0.53),  # +22.3 % and +24.6 % where several attempts at the larger budget end before a proof
        (172, 0.515, 0.52),  # +39.9 % and +41.0 % where what is found for less memory is not gone on with
    ],
)
def test_more_room_costs_no_more_on_small_graphs(seed: int, less: float, more: float) -> None:
    problem = random_graph(seed, most=138)
    peak = peak_of(problem, best_order(problem))
    costs = [Auto().solve(problem, int(share * peak)).cost for share in (less, more)]
    assert costs[1] <= costs[0] * (1 + 1e-9)


@pytest.mark.parametrize(
    ("seed", "less", "more"),
    [
        (169, 0.29, 0.30),  # 1.9 % more bytes where the search for the lowest peak goes by the larger overhead alone
        (172, 0.30, 0.31),  # 2.7 %
    ],
)
def test_more_overhead_needs_no_more_memory(seed: int, less: float, more: float) -> None:
    problem = random_graph(seed, most=138)
    peaks = [Auto(overhead=extra).solve(problem).predicted.peak_activations for extra in (less, more)]
    assert peaks[1] <= peaks[0]


def test_the_only_plan_that_is_found_for_a_budget_is_finished() -> None:
    problem = random_graph(172, most=138)
    peak = peak_of(problem, best_order(problem))
    # Only the search for the lowest peak comes below this budget, for +75.6 %.
    assert Auto().solve(problem, int(0.51 * peak)).overhead < 0.5


def test_the_plan_of_a_few_hundred_ops_is_finished_by_two_searches() -> None:
    problem = random_graph(408, most=450)
    peak = peak_of(problem, best_order(problem))
    # +6.03 % where gradients are variables; +5.91 % where only the simplified model is searched.
    assert Auto().solve(problem, int(0.65 * peak)).overhead < 0.058


@given(problem=problems(max_forward=16), share=st.floats(0.3, 1))
def test_shaving_keeps_the_budget_and_runs_every_op(problem: Problem, share: float) -> None:
    for order in orders(problem):
        assert sorted(order) == list(range(len(problem.ops)))
        budget = int(share * peak_of(problem, order))
        schedule = shave(problem, order, budget)
        if schedule is not None:
            assert peak_of(problem, schedule) <= budget
            assert list(dict.fromkeys(schedule)) == list(order)


def test_tensors_give_way_together_though_their_pauses_overlap() -> None:
    problem = random_graph(509, most=250)
    order = best_order(problem)
    schedule = shave(problem, order, int(0.75 * peak_of(problem, order)))
    # +26.2 % where only those give way together whose pauses do not overlap.
    assert schedule is not None
    assert problem.schedule_cost(schedule) < 1.2 * problem.cost


@pytest.mark.parametrize(
    ("seed", "share", "most"),
    # Dearer where an order is left after a schedule that fails (+47.3 %), or that costs far more (+46.4 and +24.5 %).
    [(504, 0.5, 1.3), (502, 0.5, 1.42), (529, 0.45, 1.21)],
)
def test_near_the_lowest_peak_other_orders_are_not_left_too_soon(seed: int, share: float, most: float) -> None:
    problem = random_graph(seed, most=250)
    found = cheapest(problem, int(share * peak_of(problem, best_order(problem))), Effort(0))
    assert found is not None
    assert problem.schedule_cost(found) < most * problem.cost


def test_as_much_is_retained_only_of_what_does_not_cost_too_much() -> None:
    problem = uneven_chain(16, seed=12)
    order = list(best_order(problem))
    peak, dear = peak_of(problem, order), [*order[:2], *order[1:]]
    assert list(within(problem, [dear, None], peak)) == [order]
    assert not list(within(problem, [dear], peak, lambda: problem.cost))


def test_a_few_bytes_less_are_worth_no_seconds() -> None:
    """Where the last bytes of the lowest peak would cost seconds, it is the plan of a peak alike."""
    problem, rng = uneven_chain(16, seed=12), random.Random(12)
    even, uneven = (
        replace(problem, tensors=tuple(replace(tensor, bytes=size(tensor.bytes)) for tensor in problem.tensors))
        for size in (lambda size: 100_000 * size, lambda size: 100_000 * size + rng.randrange(8))
    )
    first, second = (Auto(overhead=0.3).solve(one) for one in (even, uneven))
    assert second.overhead <= first.overhead + 1e-9
    assert second.predicted.peak_activations <= (1 + ALIKE) ** 2 * first.predicted.peak_activations

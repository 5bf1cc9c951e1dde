"""What a plan tells of itself."""

from __future__ import annotations

import json

from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.plan import make_plan, plan_from_json
from ckplan.planner.strategies import parse_strategy
from tests.planner.problems import chain


def test_what_order_alone_would_give_is_told_beside_the_plan() -> None:
    problem = chain(12)
    plan = parse_strategy("memory").solve(problem)
    assert plan.recomputed
    assert plan.order_peak == peak_of(problem, best_order(problem)) > plan.predicted.peak_activations
    data = json.loads(json.dumps(plan.to_json()))
    assert data["order_peak_activations"] == plan.order_peak
    assert plan_from_json(problem, data).order_peak == plan.order_peak


def test_a_schedule_without_repeats_is_order_alone() -> None:
    problem = chain(6)
    natural = make_plan(problem, "by hand", range(len(problem.ops)))
    assert natural.order_peak <= natural.predicted.peak_activations

"""A plan from a file: what it tells of itself is found out anew."""

from __future__ import annotations

from pathlib import Path

import pytest

from ckplan.pipeline import Goal, given_plan, open_step, rewrite
from ckplan.planner.strategies import parse_strategy
from tests.cli.conftest import write_model


def test_a_bound_is_proven_anew(tmp_path: Path) -> None:
    step = open_step(write_model(tmp_path / "chain.onnx", layers=12))
    plan = rewrite(step, parse_strategy("auto:steps=0"), Goal.of(budget="60%")).plan
    told = plan.to_json()
    assert plan.overhead_bound > 0
    proven = given_plan(step, told).overhead_bound
    assert plan.overhead_bound - 1e-9 <= proven <= plan.overhead  # at the plan's peak, which is no more than the budget
    assert given_plan(step, {**told, "overhead_bound": 99.0}).overhead_bound == pytest.approx(proven)
    assert given_plan(step, {**told, "overhead_bound": 0.0}).overhead_bound == 0.0  # as other strategies leave it

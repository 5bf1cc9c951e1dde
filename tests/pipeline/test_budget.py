"""A budget is kept by the file, with what onnxruntime fuses and holds, or it is refused with what the file needs."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import ckplan
from ckplan.errors import InfeasibleError
from ckplan.pipeline import Goal, rewrite, step_of
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime.executed import expected_timeline
from ckplan.units import format_bytes

MLP = Path(__file__).resolve().parents[2] / "sample_models" / "mlp.onnx"


@pytest.mark.parametrize("share", [1.0, 0.8, 0.75, 0.65, 0.5])
def test_a_file_keeps_the_budget_or_is_refused(share: float) -> None:
    model = ckplan.build_training_graph(ckplan.load(MLP, dims={"batch": 8}).model).model
    budget = int(share * expected_timeline(model).peak_activations)
    if share < 0.7:
        # The user's budget is named, not the lower one that the plan was asked for.
        with pytest.raises(InfeasibleError, match=format_bytes(budget)):
            rewrite(step_of(model), parse_strategy("evict"), Goal(budget=budget))
    else:
        planned = rewrite(step_of(model), parse_strategy("evict"), Goal(budget=budget))
        assert planned.after.peak_activations <= budget
        assert planned.after.peak_activations == expected_timeline(planned.model).peak_activations


@pytest.mark.parametrize("strategy", ["auto:steps=0", "evict", "memory"])
def test_the_smallest_budget_of_a_refusal_works_when_typed_back(strategy: str) -> None:
    step = step_of(ckplan.build_training_graph(ckplan.load(MLP, dims={"batch": 8}).model))
    with pytest.raises(InfeasibleError) as refused:
        rewrite(step, parse_strategy(strategy), Goal(budget=64))
    found = re.search(r"is (\d+) bytes", refused.value.hint)
    assert found is not None
    smallest = int(found[1])
    assert rewrite(step, parse_strategy(strategy), Goal(budget=smallest)).after.peak_activations <= smallest

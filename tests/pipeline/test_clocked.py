"""Plans for an overhead by the clock: what is chosen among files that were timed, and when the search ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import onnx
import onnx_ir as ir
import pytest

import ckplan
from ckplan import keys
from ckplan.errors import UsageError
from ckplan.meter.compared import Timing
from ckplan.meter.seconds import clock as meter_clock
from ckplan.pipeline import Goal, Planned, StepOptions, open_step, rewrite
from ckplan.planner.strategies import parse_strategy
from tests.cli.test_commands import run

AUTO = parse_strategy("auto:steps=0")
CLOSE = 0.01
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def model() -> onnx.ModelProto:
    return onnx.load(ROOT / "sample_models" / "tanh_chain.onnx")


def by(model: onnx.ModelProto, told: Callable[[float], float], overhead: float) -> tuple[Planned, list[float]]:
    """A plan by a clock that tells something for each planned overhead, and the plans that it was asked for."""
    asked: list[float] = []

    def clock(base: ir.Model, new: ir.Model) -> Timing:
        assert keys.PLAN in base.metadata_props
        asked.append(json.loads(new.metadata_props[keys.PLAN])["overhead"])
        ratio = 1 + told(asked[-1])
        return Timing((1.0, 1.0), (ratio, ratio), "processor")

    step = open_step(model, StepOptions.of(dims={"batch": 8}))
    return rewrite(replace(step, clock=clock), AUTO, Goal(overhead=overhead)), asked


def test_a_plan_that_costs_less_on_the_clock_may_cost_more_by_its_nodes(model: onnx.ModelProto) -> None:
    made, asked = by(model, lambda overhead: overhead / 2, 0.1)
    by_nodes, _ = by(model, lambda overhead: 0.1, 0.1)
    assert asked[0] <= 0.1 < asked[1]
    assert made.after.peak_activations < by_nodes.after.peak_activations
    assert made.extra_time <= 0.1 + CLOSE


def test_a_plan_that_costs_more_on_the_clock_is_made_anew(model: onnx.ModelProto) -> None:
    made, asked = by(model, lambda overhead: 2 * overhead, 0.1)
    assert asked[0] > asked[-1]
    assert 0 < made.extra_time <= 0.1 + CLOSE
    assert made.plan.overhead in asked


@pytest.mark.parametrize("share", [0.2, 0.5, 1.6])
def test_few_files_are_timed_where_the_clock_tells_a_share_of_what_nodes_cost(
    model: onnx.ModelProto, share: float
) -> None:
    made, asked = by(model, lambda overhead: share * overhead, 0.1)
    assert 0.075 <= made.extra_time <= 0.1 + CLOSE  # steps of the chain cost half a percent and more
    assert len(set(asked)) <= 3


def test_the_search_ends_where_the_clock_agrees(model: onnx.ModelProto) -> None:
    made, asked = by(model, lambda overhead: 0.1, 0.1)
    assert len(set(asked)) == 1
    assert made.plan.strategy == "auto:overhead=0.1,steps=0"
    assert json.loads(made.model.metadata_props[keys.PLAN])["strategy"] == made.plan.strategy
    assert made.on_the_clock == [
        "timed beside the step without a plan: +10.0 % (processor time of one thread, spread 0.0)"
    ]


def test_where_every_file_is_too_slow_there_is_no_plan(model: onnx.ModelProto) -> None:
    made, asked = by(model, lambda overhead: 1.0, 0.1)
    assert len(asked) <= 5
    assert made.plan.recomputed == 0
    assert made.after == made.before
    assert made.timing is None
    told = "no file that was timed costs so little, the least was +100.0 %: this is the step without a plan"
    assert made.on_the_clock == [told]


def test_no_more_is_asked_for_where_no_plan_is_lower(model: onnx.ModelProto) -> None:
    made, asked = by(model, lambda overhead: -0.5, 5.0)
    assert len(set(asked)) == len(asked) - 1 <= 5
    assert made.extra_time == -0.5


def test_a_figure_that_was_too_good_by_chance_is_not_believed(model: onnx.ModelProto) -> None:
    told = iter([0.1])
    made, asked = by(model, lambda overhead: next(told, 0.5), 0.1)
    assert asked[0] == asked[1] > asked[2]
    assert made.plan.recomputed == 0
    told = iter([0.1])
    made, asked = by(model, lambda overhead: next(told, 3 * overhead), 0.1)
    assert asked[0] == asked[1] > asked[2]
    assert 0 < made.plan.overhead < asked[1]
    assert made.extra_time <= 0.1 + CLOSE


def test_a_figure_that_was_too_bad_by_chance_leaves_a_plan(model: onnx.ModelProto) -> None:
    told = iter([0.1, 0.3])
    made, _ = by(model, lambda overhead: next(told, overhead), 0.1)
    assert 0 < made.plan.overhead < 0.1


def test_an_interruption_takes_what_was_timed_until_then(model: onnx.ModelProto) -> None:
    told = iter([0.02])

    def clock(overhead: float) -> float:
        try:
            return next(told)
        except StopIteration:
            raise KeyboardInterrupt from None

    made, asked = by(model, clock, 0.1)
    assert len(asked) == 2
    assert made.extra_time == pytest.approx(0.02)
    assert made.plan.interrupted
    with pytest.raises(KeyboardInterrupt):
        by(model, clock, 0.1)


def test_a_goal_of_bytes_cannot_be_timed(model: onnx.ModelProto) -> None:
    with pytest.raises(UsageError, match="goal of time alone"):
        ckplan.rewrite(model, dims={"batch": 8}, cost="clock", budget="60%")
    with pytest.raises(UsageError, match="a frontier is drawn of plans"):
        ckplan.pareto(model, dims={"batch": 8}, cost="clock")


def test_the_command_times_files(model: onnx.ModelProto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(meter_clock, "_PAIRS", 2)
    onnx.save(model, tmp_path / "model.onnx")
    asked = ["--dim", "batch=8", "--overhead", "30%", "--cost", "clock", "--strategy", "auto:steps=0", "--json"]
    result = run("rewrite", tmp_path / "model.onnx", "-o", tmp_path / "step.onnx", *asked)
    assert result.exit_code == 0, result.stderr
    timing = json.loads(result.stdout)["timing"]
    if timing is None:  # where the machine was disturbed each time
        assert onnx.load(tmp_path / "step.onnx").graph.node
    else:
        assert len(timing["base_seconds"]) == len(timing["new_seconds"]) >= 2
        assert timing["clock"] == "processor"

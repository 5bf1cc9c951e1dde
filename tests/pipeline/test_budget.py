"""A budget is kept by the file, with what onnxruntime fuses and holds, or it is refused with what the file needs."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import click
import onnx
import pytest

import ckplan
from ckplan.answers.analysis import quick_strategies
from ckplan.cli.planning import tell
from ckplan.cli.terminal.streams import Settings
from ckplan.errors import InfeasibleError
from ckplan.keys import PREDICTED_ACTIVATIONS
from ckplan.pipeline import Goal, Planned, Step, activation_budget, plan_files, rewrite, step_of
from ckplan.pipeline.lowest import last_resorts
from ckplan.planner import Kind, Op, Plan, Problem, Tensor
from ckplan.planner.strategies import parse_strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.keep_listed import KeepListed
from ckplan.runtime.executing.executed import expected_timeline
from ckplan.units import format_bytes

MLP = Path(__file__).resolve().parents[2] / "sample_models" / "mlp.onnx"


@pytest.mark.parametrize("share", [1.0, 0.8, 0.65, 0.5, 0.4])
def test_a_file_keeps_the_budget_or_is_refused(share: float) -> None:
    model = ckplan.build_training_graph(ckplan.load(MLP, dims={"batch": 8}).model).model
    budget = int(share * expected_timeline(model).peak_activations)
    if share < 0.45:
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
    found = re.search(r"to (\d+) bytes", refused.value.hint)
    assert found is not None
    smallest = int(found[1])
    assert rewrite(step, parse_strategy(strategy), Goal(budget=smallest)).after.peak_activations <= smallest
    said = f"budget of {smallest - 1:,} B: the least that a file takes is {smallest:,} B"
    with pytest.raises(InfeasibleError, match=said):
        rewrite(step, parse_strategy(strategy), Goal(budget=smallest - 1))


def _smallest(step: ckplan.Step, strategy: str, budget: int) -> int:
    """What a refusal says that the smallest file takes."""
    with pytest.raises(InfeasibleError) as refused:
        rewrite(step, parse_strategy(strategy), Goal(budget=budget))
    return int(re.findall(r"to (\d+) bytes", refused.value.hint)[0])


def test_no_strategy_has_a_smaller_file_than_the_one_a_refusal_names() -> None:
    step = step_of(ckplan.build_training_graph(ckplan.load(MLP, dims={"batch": 8}).model))
    kinds = [strategy for strategy in quick_strategies() if strategy != KeepListed()]  # nothing is listed here
    files = [rewrite(step, strategy).after.peak_activations for strategy in kinds]
    assert _smallest(step, "auto", 64) <= min(files)


def test_without_a_limit_of_the_overhead_the_lowest_plan_may_cost_any() -> None:
    chain = MLP.with_name("tanh_chain.onnx")
    step = step_of(ckplan.build_training_graph(ckplan.load(chain, dims={"batch": 1}).model))
    lowest = parse_strategy("revolve").solve(step.problem)
    assert lowest.overhead > 2
    for goal, among in ((Goal(), True), (Goal(overhead=0.5), False)):
        plans = last_resorts(step, parse_strategy("auto:steps=0"), goal, 64)
        assert (lowest.schedule in [plan.schedule for plan in plans]) is among


def test_a_second_refusal_writes_no_file_again(monkeypatch: pytest.MonkeyPatch) -> None:
    step = step_of(ckplan.build_training_graph(ckplan.load(MLP, dims={"batch": 8}).model))
    smallest = _smallest(step, "auto", 64)

    monkeypatch.delattr(plan_files, "write")
    assert _smallest(step, "auto", 65) == smallest


def _tanhs(size: int) -> Step:
    text = f"g (float[{size}] x) => (float[1] y) {{ a = Tanh(x) b = Exp(a) c = Mul(a, b) y = ReduceSum(c) }}"
    return ckplan.open_model(
        onnx.parser.parse_model(f'<ir_version: 10, opset_import: ["": 21]> {text}'), inference=True
    )


def test_a_file_that_takes_more_than_the_step_without_a_plan_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    made = rewrite(_tanhs(4096), parse_strategy("none"))
    assert made.drawback is None
    with click.Context(click.Command("x"), obj=Settings()):
        assert tell(made) == []
        (said,) = tell(replace(made, step=_tanhs(2048)))
    assert "48.0 KiB of activations, 100.0 % more than the step without a plan" in said
    assert "more than the step without a plan" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("budget", [None, "100%"])
def test_where_a_plan_takes_more_the_step_without_one_is_written(
    monkeypatch: pytest.MonkeyPatch, budget: str | None
) -> None:
    step, written = _tanhs(4096), plan_files.write_plan

    def larger(step: Step, plan: Plan, budget: int | None = None) -> Planned:
        made = written(step, plan, budget)
        step.files[plan.schedule] = 10 * made.after.peak_activations
        return replace(made, occupancy=_tanhs(8192).occupancy)

    monkeypatch.setattr(activation_budget, "write_plan", larger)
    made = rewrite(step, parse_strategy("none"), Goal.of(budget))
    assert made.drawback is None
    assert made.plan.recomputed == 0
    assert [node.name for node in made.model.graph] == [node.name for node in step.ordered.graph]
    assert int(made.model.metadata_props[PREDICTED_ACTIVATIONS]) == step.baseline.peak_activations


def test_a_plan_is_shaved_where_that_costs_next_to_nothing() -> None:
    forward = [Op(f"f{i}", (i,), (i + 1,), cost=1.0) for i in range(8)]
    forward.insert(1, Op("scale", (1,), (20,), cost=1e-5))
    # What scales is read after the peak, which is where the backward pass begins.
    reads = [(i, 16 - i, *([20] if i < 6 else [])) for i in range(8)]
    backward = [Op(f"b{i}", reads[i], (17 - i,), cost=1.0, backward=True) for i in range(7, -1, -1)]
    sizes = {0: Tensor("x", 1000, Kind.INPUT), 9: Tensor("dy", 1000, Kind.INPUT), 20: Tensor("scale", 10)}
    tensors = tuple(sizes.get(i, Tensor(f"t{i}", 1000)) for i in range(21))
    problem = Problem((*forward, *backward), tensors)
    auto = Auto()
    plan = auto.solve(problem, 10**6)
    assert plan.overhead == 0
    peak = plan.predicted.peak_activations
    shaved = auto.shaved(problem, plan, peak - 1)
    assert shaved is not None
    assert shaved.predicted.peak_activations < peak
    assert 0 < shaved.overhead < 1e-4
    assert auto.shaved(problem, plan, peak - 500) is None  # one of the large ones would have to run again

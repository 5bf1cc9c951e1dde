"""Budgets of everything that a process holds."""

from __future__ import annotations

import json
import re
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import onnx
import pytest
from click.testing import CliRunner

import ckplan
from ckplan import keys
from ckplan.autodiff.optimizers import rows
from ckplan.cli import cli
from ckplan.errors import InfeasibleError, UsageError
from ckplan.meter import measure
from ckplan.pipeline import arena_forms, footprint_budget, lowest_footprint
from ckplan.pipeline.footprint_budget import within_footprint
from ckplan.pipeline.goal import Goal
from ckplan.pipeline.lowest import last_resorts, lowest_plan
from ckplan.pipeline.plan_files import told_of_plan_alone, write_plan
from ckplan.planner import Plan, Problem
from ckplan.planner.arena.cells import Layout
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.keep_all import KeepAll
from ckplan.planner.strategies.memory import Memory
from ckplan.runtime.executing.executed import executed_model
from ckplan.runtime.pools.fitting_pools import fitting_pools
from ckplan.runtime.pools.footprint import footprint_of
from ckplan.runtime.pools.reservations import best_reservation
from ckplan.units import format_bytes

SAMPLES = Path(__file__).parents[2] / "sample_models"


def test_everything_is_counted_once() -> None:
    size = 104_488  # bytes of the model's initializers
    parts = {}
    for optimizer in (None, "sgd", "momentum", "adamw"):
        step = ckplan.open_model(SAMPLES / "mlp.onnx", optimizer=optimizer)
        parts[optimizer] = found = step.footprint
        assert size <= found.parameters <= size + 1000
        assert found.total == found.resident + found.returned + found.activations + found.arena + found.upkeep
        assert found.activations == step.baseline.peak_activations
    assert parts[None].returned > 90_000
    assert parts["sgd"].state == 0
    assert parts["adamw"].state == 2 * parts["momentum"].state > 0
    # New values in place: nothing is returned but the loss and the count of steps.
    assert parts["adamw"].returned <= 16
    # So small a file holds the first values itself.
    assert parts["sgd"].copies == parts["momentum"].state


def test_the_arena_holds_what_is_expected(tmp_path: Path) -> None:
    step = ckplan.open_model(SAMPLES / "resnet_tiny.onnx", dims={"batch": 4})
    ckplan.save(step.model, tmp_path / "step.onnx")
    measured = measure(tmp_path / "step.onnx", runs=1, heap=False)
    found = footprint_of(executed_model(step.model), step.model)
    assert measured.counters is not None
    assert measured.counters.steady is not None
    assert measured.counters.steady.held == pytest.approx(found.held, rel=0.02)


@pytest.mark.parametrize(("optimizer", "remedy"), [("adamw", "raise it, or choose an optimizer"), ("sgd", "raise it$")])
def test_state_is_blamed_only_where_there_is_some(optimizer: str, remedy: str) -> None:
    step = ckplan.open_model(SAMPLES / "mlp.onnx", optimizer=optimizer)
    with pytest.raises(InfeasibleError, match=remedy):
        ckplan.rewrite(step, budget=100_000, of="total")


@pytest.mark.parametrize("optimizer", ["sgd", "adamw"])
def test_a_file_keeps_to_a_budget_of_everything(optimizer: str) -> None:
    step = ckplan.open_model(SAMPLES / "mlp.onnx", optimizer=optimizer, dims={"batch": 16384})
    made = ckplan.rewrite(step, strategy="evict", budget="80%", of="total")
    limit = int(0.8 * step.footprint.total)
    assert made.footprint.total <= limit == made.budget
    assert made.model.metadata_props[keys.BUDGET] == str(limit)
    assert made.model.metadata_props[keys.BUDGET_OF] == "total"
    assert made.footprint == footprint_of(executed_model(made.model), made.model)
    json.dumps(made.footprint.to_json())


def test_a_file_keeps_to_a_budget_of_the_arena() -> None:
    step = ckplan.open_model(SAMPLES / "mlp.onnx", dims={"batch": 16384})
    made = ckplan.rewrite(step, strategy="evict", budget="60%", of="arena")
    limit = int(0.6 * step.footprint.held)
    assert made.footprint.held <= limit == made.budget
    assert made.model.metadata_props[keys.BUDGET] == str(limit)
    assert made.model.metadata_props[keys.BUDGET_OF] == "arena"


def test_an_arena_of_one_region_is_expected_and_measured(tmp_path: Path) -> None:
    """A tensor reserved first of all: the arena holds what is expected of it, and the numbers stay what they were."""
    step = ckplan.open_model(SAMPLES / "mlp.onnx", optimizer="momentum", dims={"batch": 12000})
    made = ckplan.rewrite(step, strategy="memory")
    kept = write_plan(step, made.plan)
    reserved, least = best_reservation(kept.executed, kept.model)
    assert kept.after.peak_activations / 4 < reserved[-1] <= kept.after.peak_activations
    assert least < 0.75 * kept.footprint.touched
    # A step with an optimizer needs no budget for it.
    assert "ckplan/reservation" in {node.name for node in made.model.graph}
    assert "ckplan/reservation" not in {node.name for node in kept.model.graph}
    assert made.footprint.touched < 0.75 * kept.footprint.touched
    # Beside the peak there are tables of 1.4 MB, and what the first run takes in pieces of their own.
    assert made.footprint.touched < 1.3 * made.after.peak_activations
    budget = made.footprint.total
    again = ckplan.rewrite(step, strategy="memory", budget=budget, of="total")
    assert again.footprint.total <= budget < kept.footprint.total
    assert made.after.peak_activations <= kept.after.peak_activations + 64
    # What is reserved is no part of a plan.
    (line,) = told_of_plan_alone(again)
    assert f"`ckplan rewrite --plan` makes of the plan a process holds {format_bytes(kept.footprint.total)}" in line
    assert not told_of_plan_alone(made)
    asked = ("--optimizer", "momentum", "--dim", "batch=12000", "--strategy", "memory")
    goal = ("--budget", str(budget), "--of", "total")
    result = CliRunner().invoke(
        cli, ["plan", str(SAMPLES / "mlp.onnx"), "-o", str(tmp_path / "plan.json"), *asked, *goal]
    )
    assert f"note: {line}" in result.stderr
    assert result.stdout.startswith(f"{tmp_path / 'plan.json'}: a process ")
    for name, model in (("kept", kept.model), ("made", made.model)):
        ckplan.save(model, tmp_path / f"{name}.onnx")
    found = ckplan.verify(tmp_path / "kept.onnx", tmp_path / "made.onnx", runs=1, threads=1, heap=False)
    assert found.problems == ()
    assert found.new.counters is not None
    assert found.new.counters.steady is not None
    # The meter gives new values memory out of the arena.
    expected = footprint_of(made.executed, made.model, in_place=False).held
    assert found.new.counters.steady.held == pytest.approx(expected, rel=0.02)


def test_a_first_tensor_takes_a_region_that_leaves_room_for_gaps(tmp_path: Path) -> None:
    """What later runs need beside the block would fill a region of 4 MiB, and the first run would take one more."""
    step = ckplan.open_model(SAMPLES / "gpt_tiny.onnx", dims={"batch": 40})
    (first, second), least = best_reservation(step.executed, step.ordered)
    assert 2**22 < first < 2**23 < second
    assert least < 0.6 * step.footprint.touched
    reserved = write_plan(step, step.kept, reserved=(first, second))
    ckplan.save(reserved.model, tmp_path / "step.onnx")
    measured = measure(tmp_path / "step.onnx", runs=1, heap=False)
    assert measured.counters is not None
    assert measured.counters.steady is not None
    assert measured.counters.steady.held == pytest.approx(reserved.footprint.held, rel=0.02)


@pytest.mark.parametrize(("share", "most"), [(0.5, 0.03), (0.3, 0.2)])
def test_as_many_activations_as_may_be_are_kept(share: float, most: float) -> None:
    step = ckplan.open_model(SAMPLES / "gpt_tiny.onnx", dims={"batch": 40})
    budget = int(share * step.footprint.total)
    made = ckplan.rewrite(step, strategy="evict", budget=budget, of="total")
    assert made.footprint.total <= budget
    assert made.plan.overhead < most


def test_a_file_that_needs_another_region_than_expected_does_not_take_the_plan_far_down() -> None:
    """The file of the first plan that was expected to do takes almost twice as much; a little less is enough."""
    step = ckplan.open_model(SAMPLES / "bert_tiny.onnx", optimizer="sgd", dims={"batch": 64})
    made = ckplan.rewrite(step, strategy="evict", budget="50%", of="total")
    assert made.plan.overhead < 0.08


def test_auto_refuses_no_budget_that_another_strategy_keeps_to() -> None:
    """The file of what takes least is expected to take almost twice as much, and another plan to keep to the budget."""
    step = ckplan.open_model(SAMPLES / "mlp.onnx", optimizer="adamw", dims={"batch": 16384})
    budget = int(0.6 * step.footprint.total)
    for strategy in ("evict", "auto"):
        assert ckplan.rewrite(step, strategy=strategy, budget=budget, of="total").footprint.total <= budget


def test_no_file_is_written_of_a_form_that_costs_as_much_as_another(monkeypatch: pytest.MonkeyPatch) -> None:
    step = ckplan.open_model(SAMPLES / "mlp.onnx", optimizer="sgd", dims={"batch": 16384})
    goal = replace(Goal.of(budget="90%", of="total"), cheaper_than=step.problem.cost)
    for module in (footprint_budget, lowest_footprint):
        monkeypatch.setattr(module, "write_plan", lambda *_: pytest.fail("a file was written"))
    with pytest.raises(InfeasibleError, match="another form of the step keeps to the budget for less"):
        within_footprint(step, Auto(steps=0), goal)


def test_no_file_is_written_of_a_plan_that_takes_more_than_the_best_file(monkeypatch: pytest.MonkeyPatch) -> None:
    step = ckplan.open_model(SAMPLES / "tanh_chain.onnx", dims={"batch": 16384})
    plans = [lowest_plan(step, strategy) for strategy in (KeepAll(), Memory())]
    monkeypatch.setattr(lowest_footprint, "last_resorts", lambda *_: iter(plans))
    files: lowest_footprint.Files = {}
    limit = step.footprint.resident + 1000
    with pytest.raises(InfeasibleError, match="the least that was found"):
        lowest_footprint.cheapest_lowest(step, Auto(), Goal.of(budget=limit, of="total"), limit, files)
    assert list(files) == [plans[1].schedule]


def test_a_search_that_was_interrupted_once_goes_on_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Plans that follow are what is found first, and the one that is taken says that it was interrupted."""
    step = ckplan.open_model(SAMPLES / "gpt_tiny.onnx", dims={"batch": 40})
    given: list[float] = []
    solve = Auto.solve

    def interrupted(auto: Auto, problem: Problem, budget: int | None = None) -> Plan:
        given.append(auto.seconds)
        plan = solve(auto, problem, budget)
        return plan if budget is None else replace(plan, interrupted=auto.seconds == 60 / 6)

    monkeypatch.setattr(Auto, "solve", interrupted)
    made = ckplan.rewrite(step, budget="50%", of="total", seconds=60)
    assert made.plan.interrupted
    assert given[0] == 60 / 6
    assert min(given) < 1e-6


def test_a_time_limit_ends_the_search_for_a_file_as_well(monkeypatch: pytest.MonkeyPatch) -> None:
    """It was one of each of the plans alone, of which there are dozens, and not of the files that are written."""
    step = ckplan.open_model(SAMPLES / "gpt_tiny.onnx", dims={"batch": 8})
    written: list[Plan] = []
    monkeypatch.setattr(
        lowest_footprint, "write_plan", lambda step, plan: written.append(plan) or write_plan(step, plan)
    )
    with pytest.raises(InfeasibleError, match="allow more time") as refused:
        ckplan.rewrite(step, budget="42%", of="total", seconds=1e-3)
    assert refused.value.least is not None
    assert len(written) == 1


def test_a_time_limit_holds_for_what_an_arena_is_cut_into(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is looked for in a file that is written when the time is up has a share of the limit."""
    step = ckplan.open_model(SAMPLES / "resnet_tiny.onnx", dims={"batch": 16})
    given: list[tuple[float, float]] = []

    def fitting(*args: Any, **options: Any) -> Layout | None:
        given.append((time.monotonic(), options["deadline"]))
        return fitting_pools(*args, **options)

    monkeypatch.setattr(arena_forms, "fitting_pools", fitting)
    with pytest.raises(InfeasibleError, match=r"the least that was found in this time is .* allow more time"):
        ckplan.rewrite(step, budget="20%", of="arena", seconds=1.2)
    assert all(deadline - began <= 1.2 for began, deadline in given)
    assert given[-1][1] - given[-1][0] <= 1.2 / 6


def test_what_onnxruntime_computes_of_constants_is_counted_beside_those_that_are_still_read() -> None:
    text = """<ir_version: 10, opset_import: ["": 21]> g (float[100, 100] x) => (float[100, 100] y)
        <float[100, 100] w = {NUMBERS}> { READERS }"""
    text = text.replace("NUMBERS", ", ".join(["0.5", "0.25"] * 5000))
    twice = "a = Add (x, w) t = Transpose <perm = [1, 0]> (w) y = Mul (a, t)"
    once = "t = Transpose <perm = [1, 0]> (w) y = Mul (x, t)"
    for readers, count in ((twice, 2), (once, 1)):
        model = onnx.parser.parse_model(text.replace("READERS", readers))
        found = ckplan.open_model(model, inference=True).footprint
        assert found.parameters == count * 40_000


def test_nothing_is_reserved_where_the_first_region_is_enough() -> None:
    step = ckplan.open_model(SAMPLES / "mlp.onnx", dims={"batch": 2})
    assert best_reservation(step.executed, step.ordered)[0] == ()


@pytest.mark.parametrize(
    ("model", "sizes", "strategy", "optimizer"),
    [
        ("mlp", {"batch": 4096}, "evict", None),
        ("mlp", {"batch": 777}, "evict", "sgd"),
        ("mlp", {"batch": 20000}, "memory", "adamw"),
        ("mlp", {"batch": 30001}, "auto", "momentum"),
    ],
)
def test_the_budget_that_a_refusal_names_works(
    model: str, sizes: dict[str, int], strategy: str, optimizer: str | None
) -> None:
    """Typed back by somebody who starts anew, to the byte, and again for a plan without any room of its own."""
    kwargs = {"optimizer": optimizer, "dims": sizes}
    step = ckplan.open_model(SAMPLES / f"{model}.onnx", **kwargs)
    found = step.footprint
    with pytest.raises(InfeasibleError) as refused:
        ckplan.rewrite(step, budget=found.resident + found.returned + 1000, of="total", strategy=strategy)
    named = re.search(r"raise the budget to (\d+) bytes", refused.value.hint)
    assert named is not None
    again = ckplan.open_model(SAMPLES / f"{model}.onnx", **kwargs)
    made = ckplan.rewrite(again, budget=int(named[1]), of="total", strategy=strategy)
    assert made.footprint.total <= int(named[1])


def test_auto_falls_back_on_plans_of_other_strategies() -> None:
    """The plan of the lowest peak is not always the one whose arena takes least: of `unet_tiny` it takes 3 MB more."""
    step = ckplan.open_model(SAMPLES / "mlp.onnx", optimizer="momentum")
    goal = Goal.of(budget=1, of="total")
    found = [plan.strategy.partition(":")[0] for plan in last_resorts(step, Auto(steps=0), goal, 0)]
    assert found[0] == "auto"
    assert {"memory", "evict", "mincut", "sqrt", "mirror"} <= set(found)
    assert [plan.strategy for plan in last_resorts(step, Memory(), goal, 0)] == ["memory"]


def test_a_refusal_says_what_the_arena_is_for() -> None:
    step = ckplan.open_model(SAMPLES / "mlp.onnx", optimizer="momentum", dims={"batch": 256})
    reason = (
        r"a process holds no more than .*the least that was found is .* "
        r"of parameters, state, inputs and the session, and an arena"
    )
    with pytest.raises(
        InfeasibleError, match=rf"{reason} of .* for a peak of .* at '.+'; the arena grows in large steps"
    ):
        ckplan.rewrite(step, budget=step.footprint.resident + 300_000, of="total", strategy="evict")


def test_what_no_plan_can_keep_to_is_refused() -> None:
    step = ckplan.open_model(SAMPLES / "mlp.onnx", optimizer="adamw")
    with pytest.raises(InfeasibleError, match="parameters, state, inputs, the session and outputs alone take"):
        ckplan.rewrite(step, budget=step.footprint.resident, of="total")
    with pytest.raises(InfeasibleError, match="no plan"):
        ckplan.rewrite(step, budget=step.footprint.resident + 100_000, of="total", strategy="evict")


def test_bad_scopes() -> None:
    with pytest.raises(UsageError, match="what the budget is of is 'arenas'; choose one of activations, arena, total"):
        ckplan.rewrite(SAMPLES / "mlp.onnx", budget="50%", of="arenas")
    with pytest.raises(UsageError, match="there is no budget"):
        ckplan.rewrite(SAMPLES / "mlp.onnx", of="total")


TABLE = """
<ir_version: 10, opset_import: ["": 21]>
g (int64[4,3] ids) => (float loss)
<float[3000,64] table = {TABLE}, float[64,8] w = {WEIGHT}> {
    x = Gather (table, ids)
    y = MatMul (x, w)
    z = Tanh (y)
    loss = ReduceSumSquare <keepdims=0> (z)
}"""


def with_a_table() -> onnx.ModelProto:
    text = TABLE
    for name, size in (("TABLE", 3000 * 64), ("WEIGHT", 64 * 8)):
        text = text.replace(f"{{{name}}}", "{" + ", ".join(f"{(i % 7) / 10}" for i in range(size)) + "}")
    return onnx.parser.parse_model(text)


def test_a_budget_that_the_update_of_a_table_exceeds_is_kept_to_row_by_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows, "SMALLEST", 2**19)
    monkeypatch.setattr(rows, "NARROWEST", 1)
    step = ckplan.open_model(with_a_table(), optimizer="momentum", wrt=("table", "w"))
    held_besides = step.footprint.resident + step.footprint.upkeep
    limit = held_besides + 2**19  # the table has 750 KiB
    made = ckplan.rewrite(step, strategy="evict", budget=limit, of="total")
    assert made.footprint.total <= limit == made.budget
    assert made.before == step.baseline
    assert made.chosen_form == ["the plan updates `table` row by row, which takes less memory"]
    ckplan.save(made.model, tmp_path / "step.onnx")
    measured = measure(tmp_path / "step.onnx", runs=1, heap=False)
    assert measured.peak_activations == made.after.peak_activations
    # Nobody else is given what is slow to measure.
    assert ckplan.rewrite(step, strategy="memory").chosen_form == []

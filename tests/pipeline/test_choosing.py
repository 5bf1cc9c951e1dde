"""Regions in pieces where that is the better bargain: within a budget, an overhead, at the lowest peak, at the knee."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import ckplan
from ckplan import keys
from ckplan.autodiff.pieces.regions import Pieces
from ckplan.errors import InfeasibleError, UsageError
from ckplan.pipeline import Planned, Step, StepOptions, left_whole, open_step, planning
from ckplan.planner import lower_bound
from ckplan.planner.strategies import parse_strategy
from tests.autodiff.gradcheck import onnxruntime_run

SAMPLES, CLASSES, FEATURES = 384, 1500, 96


def head() -> onnx.ModelProto:
    """A layer, and a loss head whose logits are by far the largest tensor."""
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        head (float[{SAMPLES},{FEATURES}] x, int64[{SAMPLES}] labels) => (float loss) {{
            hidden = MatMul(x, v)
            bent = Tanh(hidden)
            logits = MatMul(bent, w)
            loss = SoftmaxCrossEntropyLoss(logits, labels)
        }}"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("v", (FEATURES, FEATURES)), ("w", (FEATURES, CLASSES))):
        array = (rng.standard_normal(shape) / 4).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def planned(strategy: str = "auto:steps=0", chunks: str = "auto", **goal: Any) -> Planned:
    return ckplan.rewrite(head(), strategy=strategy, chunks=chunks, **goal)


def test_a_budget_below_the_logits_is_kept_in_pieces() -> None:
    budget = SAMPLES * CLASSES * 4 * 3 // 5
    with pytest.raises(InfeasibleError) as refused:
        planned(budget=budget, chunks="off")
    assert refused.value.hint.endswith("(--chunks auto)")
    made = planned(budget=budget)
    assert made.after.peak_activations <= budget
    (region,) = [region for region in made.step.regions if region.pieces > 1]
    assert made.chosen_form[0] == f"the plan takes --chunks {Pieces.taken([region])}"
    assert json.loads(made.model.metadata_props[keys.CHUNKS]) == made.chosen_form[1:]


def test_a_large_region_that_stays_whole_is_told() -> None:
    off, decided, cut = (planned("memory", chunks=chunks) for chunks in ("off", "auto", "loss=4"))
    assert [region.tensor for region in left_whole(off.step, off.after.peak_activations)] == ["logits"]
    assert not left_whole(off.step, 100 * SAMPLES * CLASSES * 4)
    for made in (decided, cut):
        assert not left_whole(made.step, made.after.peak_activations)


def tied() -> onnx.ModelProto:
    """A table that is looked up and multiplied by, larger than the logits that it makes."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        tied (int64[256] ids, int64[256] labels) => (float loss) {
            found = Gather(table, ids)
            hidden = MatMul(found, v)
            bent = Tanh(hidden)
            turned = Transpose(table)
            logits = MatMul(bent, turned)
            loss = SoftmaxCrossEntropyLoss(logits, labels)
        }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("v", (512, 512)), ("table", (8000, 512))):
        array = (rng.standard_normal(shape) / 32).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return model


def test_a_budget_below_the_gradient_of_a_tied_table_is_kept_in_pieces() -> None:
    budget = 8000 * 512 * 4 // 2
    with pytest.raises(InfeasibleError, match=r"no schedule takes less than 15\.6 MiB"):
        ckplan.rewrite(tied(), strategy="auto:steps=0", chunks="off", budget=budget)
    made = ckplan.rewrite(tied(), strategy="auto:steps=0", chunks="auto", budget=budget)
    assert made.after.peak_activations <= budget
    assert [region.weight for region in made.step.regions if region.pieces > 1] == ["table"]


def test_savings_and_compute_count_from_the_step_without_pieces() -> None:
    made, off = planned("memory"), planned("memory", chunks="off")
    assert made.step.whole is not None
    assert made.before.peak_activations == off.before.peak_activations
    assert made.after.peak_activations < off.after.peak_activations
    assert made.plan.base_cost == off.plan.base_cost
    assert made.plan.overhead > 0.1  # one product of four more
    again = json.loads(made.model.metadata_props[keys.PLAN])
    assert again["overhead"] == pytest.approx(made.plan.overhead)
    explicit = planned("memory", chunks=made.chosen_form[0].rpartition(" ")[2])
    assert explicit.after.peak_activations == made.after.peak_activations


def test_the_bound_is_one_of_plans_in_the_form_that_was_chosen() -> None:
    made = planned("memory")
    pieces = made.step.problem.cost / made.plan.base_cost - 1
    assert pieces > 0
    assert pieces - 1e-9 <= made.plan.overhead_bound <= made.plan.overhead
    assert made.step.counted(made.plan) == made.plan


def test_an_overhead_counts_the_pieces() -> None:
    little, much = (planned(overhead=overhead, cost="flops") for overhead in (0.05, 0.4))
    assert little.plan.overhead <= 0.05  # nothing left for a product more
    assert much.step.whole is not None
    assert much.plan.overhead <= 0.4
    assert much.after.peak_activations < little.after.peak_activations
    assert much.model.metadata_props[keys.STRATEGY] == "auto:overhead=0.4,steps=0"


@pytest.mark.parametrize("goal", [{}, {"budget": "90%"}, {"budget": "60%"}, {"overhead": 0.3}, {"budget": "100%"}])
def test_never_worse_than_without(goal: dict[str, Any]) -> None:
    made = planned(**goal)
    try:
        off = planned(**goal, chunks="off")
    except InfeasibleError:
        return
    dearer = made.plan.cost > off.plan.cost * (1 + 1e-9)
    assert not (dearer and made.after.peak_activations >= off.after.peak_activations)
    if "budget" in goal:
        assert not dearer
    if "overhead" in goal:
        assert made.after.peak_activations <= off.after.peak_activations


def test_a_step_that_fits_is_planned_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    once = planning.rewrite
    monkeypatch.setattr(planning, "rewrite", lambda step, *rest: asked.append(step) or once(step, *rest))
    made = planned(budget="100%")
    assert asked == [made.step]
    assert made.step.whole is None


def test_an_interrupted_search_tries_no_other_form(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    once = planning.rewrite

    def interrupted(step: Step, *rest: Any) -> Planned:
        asked.append(step)
        made = once(step, *rest)
        return replace(made, plan=replace(made.plan, interrupted=True))

    monkeypatch.setattr(planning, "rewrite", interrupted)
    assert planned("memory").step is asked[0]
    assert len(asked) == 1


def test_the_time_to_search_is_for_all_forms_together(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float] = []
    once = planning.rewrite
    monkeypatch.setattr(planning, "rewrite", lambda *all: asked.append(all[2].seconds) or once(*all))
    planned(overhead=0.3, seconds=30.0)
    assert sum(asked) <= 30.0


@pytest.mark.parametrize("goal", [{"strategy": "memory"}, {"strategy": "memory", "budget": "80%", "of": "total"}])
def test_a_loop_gets_the_form_that_was_chosen(tmp_path: Path, goal: dict[str, Any]) -> None:
    ckplan.artifacts(head(), tmp_path / "loop", chunks="auto", **goal)
    model = onnx.load(tmp_path / "loop" / "training.onnx")
    assert keys.CHUNKS in {entry.key for entry in model.metadata_props}


def test_what_no_form_keeps_to_is_refused_with_the_least_that_works() -> None:
    with pytest.raises(InfeasibleError) as refused:
        planned(budget=SAMPLES * 4)
    smallest = int(refused.value.hint.split(" bytes")[0].rpartition(" ")[2])
    assert smallest < SAMPLES * CLASSES * 4 * 3 // 5
    assert planned(budget=smallest).after.peak_activations <= smallest


def test_the_file_takes_what_was_promised_and_computes_the_same() -> None:
    made, base = planned("memory"), open_step(head())
    found = ckplan.measure(made)
    assert found.peak_activations == made.after.peak_activations
    rng = np.random.default_rng(1)
    feeds = {
        "x": rng.standard_normal((SAMPLES, FEATURES), dtype=np.float32),
        "labels": rng.integers(0, CLASSES, SAMPLES),
    }
    whole, cut = onnxruntime_run(base.ordered, feeds), onnxruntime_run(made.model, feeds)
    assert whole.keys() == cut.keys()
    assert np.array_equal(whole["loss"], cut["loss"])
    for name, array in whole.items():
        np.testing.assert_allclose(cut[name], array, rtol=0, atol=1e-6 * np.abs(array).max())


def test_a_model_without_regions_is_planned_as_ever() -> None:
    model = onnx.parser.parse_model(
        '<ir_version: 10, opset_import: ["": 21]> g (float[4,4] x) => (float loss) '
        "{ y = MatMul(x, w) loss = ReduceMean<keepdims=0>(y) }"
    )
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.eye(4, dtype=np.float32), "w"))
    one, other = (ckplan.rewrite(model, strategy="memory", chunks=chunks) for chunks in ("auto", "off"))
    assert one.plan.schedule == other.plan.schedule
    assert isinstance(one.step, Step)
    assert planning.rewrite(one.step, parse_strategy("memory")).plan.schedule == one.plan.schedule


def convolutions(**options: Any) -> Step:
    """A network whose planes, of all samples, are the working set that no plan goes below."""
    model = onnx.parser.parse_model(
        """<ir_version: 10, opset_import: ["": 21]>
        planes (float[8,4,32,32] x) => (float loss) {
            a = Conv<pads=[1,1,1,1]>(x, v)  b = Tanh(a)  c = Conv<pads=[1,1,1,1]>(b, w)  d = Tanh(c)
            loss = ReduceSumSquare<keepdims=0>(d)
        }"""
    )
    rng = np.random.default_rng(0)
    for name, shape in (("v", (8, 4, 3, 3)), ("w", (4, 8, 3, 3))):
        array = (rng.standard_normal(shape) / 4).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    return open_step(model, StepOptions.of(**options))


def test_a_batch_goes_in_blocks_where_a_budget_is_refused_otherwise() -> None:
    budget = int(0.7 * lower_bound(convolutions().problem)[0])
    with pytest.raises(InfeasibleError) as refused:
        ckplan.rewrite(convolutions(), strategy="auto:steps=0", budget=budget)
    assert refused.value.hint.endswith("(--chunks auto)")
    made = ckplan.rewrite(convolutions(chunks="auto"), strategy="auto:steps=0", budget=budget)
    assert made.after.peak_activations <= budget
    (region,) = made.step.regions
    assert made.chosen_form[0] == f"the plan takes --chunks batch={region.pieces}"
    assert made.step.whole is not None
    assert made.before.peak_activations == made.step.whole.baseline.peak_activations


def test_a_head_in_pieces_that_leaves_no_batch_to_cut_is_no_form_and_no_error() -> None:
    model = onnx.parser.parse_model("""<ir_version: 10, opset_import: ["": 21]>
        g (float[8,64,12] x) => (float[8,64,5] z) { y = MatMul(x, w) z = Softmax(y) }""")
    weight = np.random.default_rng(0).normal(size=(12, 5)).astype(np.float32)
    model.graph.initializer.append(onnx.numpy_helper.from_array(weight, "w"))
    with pytest.raises(UsageError, match="nothing to cut"):
        ckplan.open_model(model, chunks="loss=4,batch=2")
    made = ckplan.rewrite(model, strategy="auto:steps=0", chunks="auto", budget="60%")
    assert made.after.peak_activations <= 0.6 * made.before.peak_activations


def test_no_blocks_are_advised_for_a_budget_that_they_are_not_tried_for() -> None:
    step = convolutions()
    budget = step.footprint.resident + step.footprint.returned + 1000
    with pytest.raises(InfeasibleError) as refused:
        ckplan.rewrite(step, strategy="auto:steps=0", budget=budget, of="total")
    assert "--chunks" not in refused.value.hint


def test_a_batch_stays_whole_where_a_plan_will_do() -> None:
    made = ckplan.rewrite(convolutions(chunks="auto"), strategy="auto:steps=0", budget="90%")
    assert not made.chosen_form


def test_no_block_is_planned_for_a_budget_below_all_bounds(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level("INFO", logger="ckplan"), pytest.raises(InfeasibleError):
        ckplan.rewrite(convolutions(chunks="auto"), strategy="auto:steps=0", budget=1000)
    assert not any("batch=" in record.getMessage() for record in caplog.records)


def test_no_form_is_planned_for_a_budget_of_everything_below_its_bound(caplog: pytest.LogCaptureFixture) -> None:
    step = open_step(head())
    budget = step.footprint.resident + step.footprint.returned + 1000
    with caplog.at_level("INFO", logger="ckplan"), pytest.raises(InfeasibleError):
        planned(budget=budget, of="total")
    told = [record.getMessage() for record in caplog.records]
    assert any("in vain" in line for line in told)
    assert not any(line.startswith("planning with regions in pieces") for line in told)


def test_a_model_that_is_only_run_goes_in_blocks() -> None:
    whole, decided = (convolutions(inference=True, chunks=chunks) for chunks in ("off", "auto"))
    budget = int(0.7 * lower_bound(whole.problem)[0])
    made = ckplan.rewrite(decided, strategy="auto:steps=0", budget=budget)
    assert made.after.peak_activations <= budget
    (region,) = made.step.regions
    assert made.chosen_form[0] == f"the plan takes --chunks batch={region.pieces}"
    feeds = {"x": np.random.default_rng(1).standard_normal((8, 4, 32, 32)).astype(np.float32)}
    expected, found = (onnxruntime_run(model, feeds)["loss"] for model in (whole.model, made.model))
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_a_model_that_is_only_run_has_no_loss_to_cut() -> None:
    with pytest.raises(UsageError, match="there is nothing to cut"):
        convolutions(inference=True, chunks="loss=4")


def dropping(width: int = 64, layers: int = 10) -> onnx.ModelProto:
    """Layers that are dropped out of: what no plan makes again are the masks."""
    body = " ".join(
        f"h{k} = MatMul ({'x' if k == 0 else f'd{k - 1}'}, w{k}) t{k} = Tanh (h{k}) d{k} = Dropout (t{k}, ratio, yes)"
        for k in range(layers)
    )
    model = onnx.parser.parse_model(
        f"""<ir_version: 10, opset_import: ["": 21]>
        dropping (float[256,{width}] x) => (float loss)
        <float ratio = {{0.3}}, bool yes = {{1}}> {{ {body} loss = ReduceSumSquare<keepdims=0>(d{layers - 1}) }}"""
    )
    rng = np.random.default_rng(0)
    for k in range(layers):
        array = (rng.standard_normal((width, width)) / width**0.5).astype(np.float32)
        model.graph.initializer.append(onnx.numpy_helper.from_array(array, f"w{k}"))
    return model


@pytest.mark.parametrize("goal", [{"strategy": "memory"}, {"budget": "35%"}, {"overhead": 0.3}, {}])
def test_masks_go_into_bits_where_that_is_the_better_bargain(goal: dict[str, Any]) -> None:
    goal = {"strategy": "auto:steps=0", "training": True, **goal}
    made, off = (ckplan.rewrite(dropping(), chunks=chunks, **goal) for chunks in ("auto", "off"))
    cost, peak = made.plan.cost, made.after.peak_activations
    assert cost <= off.plan.cost * (1 + 1e-9) or peak < off.after.peak_activations
    if "budget" in goal:
        assert cost < off.plan.cost
    if goal["strategy"] == "memory":
        assert peak < 0.9 * off.after.peak_activations
        assert made.chosen_form[0] == "the plan takes --chunks masks=8"
        assert ckplan.rewrite(dropping(), chunks="masks=8", **goal).after.peak_activations == peak
    assert ckplan.measure(made).peak_activations == peak


def test_masks_that_are_not_in_the_peak_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []
    once = planning.rewrite
    monkeypatch.setattr(planning, "rewrite", lambda step, *rest: asked.append(step) or once(step, *rest))
    made = ckplan.rewrite(dropping(layers=1), chunks="auto", strategy="memory", training=True)
    assert asked == [made.step]
    assert made.step.whole is None

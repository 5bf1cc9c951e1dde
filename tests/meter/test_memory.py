"""The meters on models whose live sets were worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

import ckplan
from ckplan.errors import UsageError
from ckplan.isolation.arrays import save_arrays
from ckplan.meter import Measurement, measure
from ckplan.meter.facts import read_model
from ckplan.meter.inputs import make_inputs
from ckplan.meter.measurement import request_for
from ckplan.meter.memory.counter_timeline import steady_state
from ckplan.meter.running.process import run_job
from ckplan.model import save as save_model
from ckplan.pipeline import rewrite
from ckplan.planner.strategies import parse_strategy
from tests.meter.models import ACTIVATION, BATCH, WEIGHT, WIDTH, chain, floats, save

LAYERS = 6


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Measurement:
    metadata = {
        "pkg.ckplan.predicted_peak_activations": str(7 * ACTIVATION),
        "pkg.ckplan.predicted_peak_total": "123",
    }
    path = chain(tmp_path_factory.mktemp("kept") / "chain.onnx", LAYERS, metadata=metadata)
    return measure(path, device="cpu", runs=2, threads=1)


def square(name: str, rows: int, columns: int) -> TensorProto:
    return numpy_helper.from_array(np.full((rows, columns), 0.01, np.float32), name)


def test_every_step_has_the_live_bytes_counted_by_hand(tmp_path: Path) -> None:
    # Widths differ, so that no buffer can be handed on to a later tensor.
    nodes = [
        helper.make_node("MatMul", ["x", "A"], ["a"], name="a"),
        helper.make_node("MatMul", ["a", "B"], ["b"], name="b"),
        helper.make_node("Tanh", ["b"], ["t"], name="t"),  # in b's buffer
        helper.make_node("MatMul", ["t", "C"], ["c"], name="c"),
        helper.make_node("MatMul", ["a", "D"], ["y"], name="y"),  # an output of the file
        helper.make_node("Concat", ["c", "y"], ["z"], name="z", axis=1),
    ]
    weights = [square("A", 32, 128), square("B", 128, 512), square("C", 512, 48), square("D", 128, 16)]
    path = save(tmp_path / "m.onnx", nodes, [floats("x", 64, 32)], [floats("y", 64, 16), floats("z", 64, 64)], weights)
    counters = measure(path, device="cpu", runs=1, threads=1, heap=False).counters
    assert counters is not None
    row = 64 * 4
    a, b, c, y, z, x = 128 * row, 512 * row, 48 * row, 16 * row, 64 * row, 32 * row
    # In the order that onnxruntime takes: of the inputs of a node, the producer with the highest index first.
    expected = {
        "a": (a, 0),
        "y": (a, y),
        "b": (a + b, y),
        "t": (b, y),
        "c": (b + c, y),
        "z": (c, y + z),
    }
    assert [step.op for step in counters.timeline.steps] == list(expected)
    for step in counters.timeline.steps:
        activations, outputs = expected[step.op]
        assert step.activations == activations, step.op
        assert step.live == counters.parameters + x + outputs + activations, step.op
    assert counters.peak_activations == a + b


def test_a_chain_without_recomputation_peaks_at_its_layers_and_one_gradient(kept: Measurement) -> None:
    counters = kept.counters
    assert counters is not None
    forward = [step.activations // ACTIVATION for step in counters.timeline.steps[: 2 * LAYERS]]
    assert forward == [layer + 1 for layer in range(LAYERS) for _ in range(2)]
    assert counters.peak_activations == (LAYERS + 1) * ACTIVATION
    assert counters.op_types[:2] == ("MatMul", "Tanh")
    assert all(seconds > 0 for seconds in counters.seconds)


def test_the_total_is_parameters_inputs_outputs_and_activations(kept: Measurement) -> None:
    counters = kept.counters
    assert counters is not None
    last = counters.timeline.steps[-1]
    assert kept.input_bytes == ACTIVATION
    assert kept.output_bytes == LAYERS * WEIGHT + 4
    assert kept.parameter_bytes == LAYERS * WEIGHT + 16 + 4
    assert counters.parameters == pytest.approx(kept.parameter_bytes, abs=64)
    assert last.live == counters.parameters + kept.input_bytes + kept.output_bytes + last.activations


def test_counters_and_heap_agree(kept: Measurement) -> None:
    assert kept.counters is not None
    assert kept.heap is not None
    assert kept.heap.activations == pytest.approx(kept.counters.peak_activations, abs=4096)
    assert kept.heap.objects is not None
    assert 0 < kept.heap.objects < 100_000
    fresh = kept.counters.peak_total - kept.counters.parameters - kept.input_bytes
    assert kept.heap.run == pytest.approx(fresh, rel=0.05)
    # The session also holds the gradient of the sum, a constant that onnxruntime folds, and its graph.
    assert 0 < kept.heap.session - kept.counters.parameters - ACTIVATION < 400_000


def test_the_other_order_runs_weight_gradients_last(kept: Measurement) -> None:
    assert kept.priority is not None
    assert kept.counters is not None
    assert kept.priority.order == "priority"
    assert kept.priority.peak_activations > kept.counters.peak_activations
    assert [step.op for step in kept.priority.timeline.steps] != [step.op for step in kept.counters.timeline.steps]


def test_the_steady_state_holds_more_than_the_first_run(kept: Measurement) -> None:
    assert kept.counters is not None
    steady, without = kept.counters.steady, kept.steady_without_pattern
    assert steady is not None
    assert without is not None
    assert steady.held >= steady.in_use > kept.counters.peak_activations
    assert without.in_use < steady.in_use


@pytest.mark.parametrize("pattern", [True, False])
def test_the_second_run_is_in_the_steady_state(tmp_path: Path, pattern: bool) -> None:
    path = chain(tmp_path / "chain.onnx", LAYERS)
    save_arrays(tmp_path / "x", make_inputs(read_model(path)).arrays)
    variants = [{"order": "default", "pattern": pattern, "runs": 4}]
    asked = {"variants": variants, "producers": {}, "spin": False}
    found = run_job("ckplan.meter.memory.counters", {**request_for(path, tmp_path / "x", "cpu", 1), **asked})[0]
    states = [steady_state({**found, "runs": found["runs"][:count]}) for count in (2, 3, 4)]
    assert states[0] is not None
    assert states == states[:1] * 3


def test_the_promise_of_the_file_stands_beside_what_was_measured(kept: Measurement) -> None:
    assert kept.prediction.peak_activations == kept.peak_activations
    assert kept.prediction.peak_total == 123


def test_a_promise_that_is_not_kept_is_noted(
    tmp_path: Path, kept: Measurement, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ckplan.meter.measurement.SLACK", 0)
    metadata = {"pkg.ckplan.predicted_peak_activations": str(2 * ACTIVATION)}
    path = chain(tmp_path / "m.onnx", 3, metadata=metadata)
    found = measure(path, device="cpu", runs=1, threads=1, heap=False)
    (note,) = found.notes
    assert note.startswith("peak activations are 100% above what the file predicts, at node 'Mul:square2'")
    assert kept.notes == ()


def test_a_measurement_is_json(kept: Measurement) -> None:
    data = json.loads(json.dumps(kept.to_json()))
    assert data["device"] == "cpu"
    assert data["peak_activations"] == data["counters"]["peak_activations"] == 7 * ACTIVATION
    assert len(data["counters"]["timeline"]["op"]) == len(data["counters"]["seconds"])
    assert len(data["step_seconds"]) == 2
    assert data["recomputation"] == {"in_file": 0, "executed": 0, "merged": 0, "fused": [], "undone": False}
    assert data["resident"]["peak"] >= data["resident"]["loaded"] > data["resident"]["before"] > 0


def test_recomputed_nodes_are_seen_to_run(tmp_path: Path) -> None:
    found = measure(chain(tmp_path / "m.onnx", LAYERS, segment=3), device="cpu", runs=1, threads=1, heap=False)
    assert found.counters is not None
    assert found.recomputation.in_file == found.recomputation.executed == 4
    assert not found.recomputation.undone
    assert sum(step.recomputed for step in found.counters.timeline.steps) == 4
    assert any(step.backward for step in found.counters.timeline.steps)
    assert found.peak_activations == 5 * ACTIVATION


def test_outputs_are_found_where_nodes_were_fused_under_new_names(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "A"], ["a"], name="product"),
        helper.make_node("Add", ["a", "bias"], ["y"], name="sum"),
        helper.make_node("ReduceSum", ["y"], ["z"], name="total", keepdims=0),
    ]
    bias = numpy_helper.from_array(np.ones(128, np.float32), "bias")
    outputs = [floats("y", 64, 128), floats("z")]
    path = save(tmp_path / "m.onnx", nodes, [floats("x", 64, 32)], outputs, [square("A", 32, 128), bias])
    found = measure(path, device="cpu", runs=1, threads=1, heap=False)
    assert found.counters is not None
    assert "sum" not in [step.op for step in found.counters.timeline.steps]
    assert found.peak_activations == 0


def test_nodes_inside_an_if_are_counted_beside_its_own_output(tmp_path: Path) -> None:
    size = 64 * 64 * 4
    inner = [
        helper.make_node("Tanh", ["x"], ["t"], name="inside"),
        helper.make_node("Neg", ["t"], ["n"], name="negated"),
    ]
    then = helper.make_graph(inner, "then", [], [floats("n", 64, 64)])
    other = helper.make_graph([helper.make_node("Neg", ["x"], ["m"])], "else", [], [floats("m", 64, 64)])
    nodes = [
        helper.make_node("If", ["c"], ["y"], name="choice", then_branch=then, else_branch=other),
        helper.make_node("ReduceSum", ["y"], ["z"], name="total", keepdims=0),
    ]
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [])
    path = save(tmp_path / "m.onnx", nodes, [floats("x", 64, 64), flag], [floats("z")])
    inputs = tmp_path / "in.npz"
    np.savez(inputs, x=np.ones((64, 64), np.float32), c=np.array(True))
    found = measure(path, device="cpu", inputs=inputs, runs=1, threads=1)
    assert found.counters is not None
    assert found.heap is not None
    live = {step.op: step.activations for step in found.counters.timeline.steps}
    assert live == {"inside": 2 * size, "negated": 2 * size, "choice": size, "total": size}
    assert found.heap.activations == pytest.approx(2 * size, rel=0.1)


def test_a_workspace_counts_to_the_peak(tmp_path: Path) -> None:
    # Where computes both branches in full before it merges them.
    rows, columns = 256, 256
    nodes = [helper.make_node("Neg", ["x"], ["n"], name="neg")]
    nodes += [helper.make_node("Where", ["c", "n", "zero"], ["w"], name="where")]
    nodes += [helper.make_node("ReduceSum", ["w"], ["z"], name="total", keepdims=0)]
    zero = numpy_helper.from_array(np.zeros(1, np.float32), "zero")
    flag = helper.make_tensor_value_info("c", TensorProto.BOOL, [rows, 1])
    path = save(tmp_path / "m.onnx", nodes, [floats("x", rows, columns), flag], [floats("z")], [zero])
    found = measure(path, device="cpu", runs=1, threads=1)
    assert found.counters is not None
    assert found.heap is not None
    assert [workspace.op for workspace in found.counters.workspaces] == ["where"]
    assert found.counters.workspaces[0].bytes > rows * columns * 4
    assert found.heap.activations == pytest.approx(found.counters.peak_activations, rel=0.05)


def test_bfloat16_runs_and_is_counted(tmp_path: Path) -> None:
    narrow = helper.make_tensor_value_info("x", TensorProto.BFLOAT16, [BATCH, WIDTH])
    result = helper.make_tensor_value_info("y", TensorProto.BFLOAT16, [BATCH, WIDTH])
    nodes = [
        helper.make_node("Cast", ["x"], ["a"], name="up", to=TensorProto.FLOAT),
        helper.make_node("Mul", ["a", "a"], ["b"], name="square"),
        helper.make_node("Cast", ["b"], ["y"], name="down", to=TensorProto.BFLOAT16),
    ]
    found = measure(save(tmp_path / "m.onnx", nodes, [narrow], [result]), device="cpu", runs=1, threads=1)
    assert found.input_bytes == found.output_bytes == ACTIVATION // 2
    assert found.repeatable
    assert found.nonfinite == ()


def test_random_operators_are_told_by_values_that_change(tmp_path: Path) -> None:
    nodes = [helper.make_node("RandomNormalLike", ["x"], ["y"], name="noise")]
    path = save(tmp_path / "m.onnx", nodes, [floats("x", 4, 4)], [floats("y", 4, 4)])
    assert not measure(path, device="cpu", runs=1, threads=1, heap=False).repeatable


@pytest.mark.parametrize(
    ("option", "text"), [({"runs": 0}, "runs is 0"), ({"threads": 0}, "`--threads` is 0"), ({"device": "tpu"}, "tpu")]
)
def test_options_are_checked_before_anything_runs(option: dict[str, object], text: str) -> None:
    with pytest.raises(UsageError, match=text):
        measure("missing.onnx", **option)  # type: ignore[arg-type]


def test_a_model_that_is_computed_when_it_is_loaded_has_no_node_that_runs(tmp_path: Path) -> None:
    node, weight = helper.make_node("Tanh", ["w"], ["y"]), square("w", 4, 4)
    found = measure(save(tmp_path / "constant.onnx", [node], [], [floats("y", 4, 4)], [weight]), device="cpu", runs=1)
    assert found.counters is None
    assert "no node runs: all was computed when the file was loaded; figures are from the heap meter" in found.notes


def test_workspaces_are_read_where_the_total_is_not_as_promised(tmp_path: Path) -> None:
    """Activations peak elsewhere; the Max at the peak of the total works where the default arena shows none of it."""
    path = tmp_path / "model.onnx"
    text = """<ir_version: 8, opset_import: ["": 21]> g (float[190,1024] a, float[100,1024] b, float[150,1024] c) =>
        (float[190,1024] first, float[150,1024] second, float z) {
        sine = Sin (a) cosine = Cos (sine) both = Add (cosine, sine) t = ReduceSum <keepdims = 0> (both)
        first = Mul (a, t) u = ReduceSum <keepdims = 0> (first)
        hole = Mul (c, u) second = Mul (hole, c) v = ReduceSum <keepdims = 0> (second)
        scaled = Mul (b, v) largest = Max (scaled, b, b) z = ReduceSum <keepdims = 0> (largest)
    }"""
    onnx.save(onnx.parser.parse_model(text), path)
    planned = rewrite(ckplan.open_model(path, inference=True), parse_strategy("none"))
    save_model(planned.model, tmp_path / "planned.onnx")
    found = measure(tmp_path / "planned.onnx", device="cpu", runs=1, threads=1, heap=False)
    assert found.prediction.peak_total is not None
    assert (found.peak_activations, found.peak_total) == (
        found.prediction.peak_activations,
        found.prediction.peak_total,
    )

"""Emitted files: valid, executed as planned by stock onnxruntime under default options, same numbers."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import pytest

import ckplan
import ckplan.model
from ckplan.autodiff import build_training_graph
from ckplan.errors import ModelError, UsageError
from ckplan.model import save
from ckplan.planner import make_plan
from ckplan.planner.strategies import parse_strategy
from ckplan.runtime import problem_of
from ckplan.runtime.sizes import bytes_of
from ckplan.writer import emit
from tests.writer.runtime import live_bytes, profile, run

SAMPLES = Path(__file__).parents[2] / "sample_models"
BATCH = {"tanh_chain": 512, "mlp": 256, "resnet_tiny": 8, "unet_tiny": 2, "gpt_tiny": 4, "mobilenet_tiny": 8}


def training_graph(name: str) -> ir.Model:
    forward = ckplan.model.load(SAMPLES / f"{name}.onnx", dims={"batch": BATCH[name]})
    return build_training_graph(forward.model).model


def feeds(model: ir.Model) -> dict[str, np.ndarray]:
    random = np.random.default_rng(0)
    values = {}
    for value in model.graph.inputs:
        if not value.is_initializer():
            shape = [int(dim) for dim in value.shape]
            whole = value.dtype is ir.DataType.INT64
            values[value.name] = random.integers(0, 2, shape) if whole else random.standard_normal(shape).astype("f")
    return values


@pytest.mark.parametrize("name", sorted(BATCH))
@pytest.mark.parametrize("strategy", ["none", "speed", "sqrt", "memory"])
def test_onnxruntime_executes_the_plan(name: str, strategy: str) -> None:
    graph = training_graph(name)
    plan = parse_strategy(strategy).solve(problem_of(graph))
    emitted = emit(graph, plan)
    proto = ir.serde.serialize_model(emitted)
    onnx.checker.check_model(proto, full_check=True)
    predicted = int(emitted.metadata_props["pkg.ckplan.predicted_peak_activations"])
    # Less where onnxruntime fuses a copy away; a little more where a fused node reads for longer.
    assert predicted <= plan.predicted.peak_activations * 1.03 + 4096
    outputs = {value: bytes_of(value) for value in emitted.graph.outputs}
    made = {node.name or "": sum(outputs.get(value, 0) for value in node.outputs) for node in emitted.graph}
    # The counters show no workspace that is freed before the kernel ends; the prediction counts it.
    workspace = max(op.workspace for op in problem_of(emitted).ops)
    events = profile(proto, feeds(emitted))
    measured = max(live_bytes(events, made))
    assert measured <= predicted * 1.03 + 4096
    assert measured + workspace >= predicted * 0.97 - 4096
    repeated = [event["name"] for event in events if "/recompute" in event["name"]]
    assert bool(repeated) == bool(plan.recomputed)
    plain = run(ir.serde.serialize_model(graph), feeds(graph))
    for key, value in run(proto, feeds(emitted)).items():
        assert np.array_equal(value, plain[key], equal_nan=True), key


def test_a_schedule_may_repeat_an_op_many_times() -> None:
    graph = training_graph("tanh_chain")
    problem = problem_of(graph)
    first_backward = problem.backward[0]
    again = [index for index in problem.forward if problem.tensors[problem.ops[index].outputs[0]].name != "loss"]
    schedule = [*range(first_backward), *again, *again, *range(first_backward, len(problem.ops))]
    emitted = emit(graph, make_plan(problem, "by hand", schedule))
    names = {node.name for node in emitted.graph}
    originals = {problem.ops[index].name for index in again}
    assert {f"{name}/recompute{k}" for name in originals for k in (1, 2)} <= names
    executed = {event["name"] for event in profile(ir.serde.serialize_model(emitted), feeds(emitted))}
    assert {f"{name}/recompute2" for name in originals if not name.endswith("Reshape")} <= executed


def test_metadata_tells_the_plan_and_the_model_given_is_left_alone() -> None:
    graph = training_graph("tanh_chain")
    before = ir.serde.serialize_model(graph).SerializeToString(deterministic=True)
    plan = parse_strategy("sqrt").solve(problem_of(graph))
    emitted = emit(graph, plan)
    assert ir.serde.serialize_model(graph).SerializeToString(deterministic=True) == before
    assert emitted.metadata_props["pkg.ckplan.strategy"] == "sqrt"
    assert int(emitted.metadata_props["pkg.ckplan.recomputed"]) == plan.recomputed
    roles = {node.metadata_props.get("pkg.ckplan.recompute_of") for node in emitted.graph}
    assert len(roles - {None}) == plan.recomputed
    assert [value.name for value in emitted.graph.inputs] == [value.name for value in graph.graph.inputs]
    assert [value.name for value in emitted.graph.outputs] == [value.name for value in graph.graph.outputs]


def test_what_no_node_reads_is_not_in_the_file() -> None:
    graph = training_graph("gpt_tiny")
    emitted = emit(graph, parse_strategy("none").solve(problem_of(graph)))
    unread = [value.name for value in emitted.graph.initializers.values() if not value.uses()]
    assert unread == []
    assert {value.name for value in emitted.graph.inputs} >= {value.name for value in graph.graph.inputs}


def test_a_model_may_be_fed_an_optional() -> None:
    tensor = onnx.helper.make_tensor_type_proto(onnx.TensorProto.FLOAT, [2, 4])
    given = onnx.helper.make_value_info("given", onnx.helper.make_optional_type_proto(tensor))
    result = onnx.helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, [2, 3])
    weight = onnx.numpy_helper.from_array(np.ones((4, 3), np.float32), "w")
    nodes = [
        onnx.helper.make_node("OptionalGetElement", ["given"], ["x"], "get"),
        onnx.helper.make_node("MatMul", ["x", "w"], ["y"], "product"),
    ]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [given], [result], [weight]))
    graph = ckplan.build_training_graph(model, loss="sum").model
    emitted = emit(graph, parse_strategy("none").solve(problem_of(graph)))
    x = np.arange(8, dtype=np.float32).reshape(2, 4)
    found = run(ir.to_proto(emitted), {"given": x})
    np.testing.assert_array_equal(found["w_grad"], x.T @ np.ones((2, 3), np.float32))


def test_what_onnxruntime_does_not_load_is_a_model_error() -> None:
    graph = training_graph("tanh_chain")
    plan = parse_strategy("none").solve(problem_of(graph))
    next(iter(graph.graph)).domain = "nobody.knows"
    graph.opset_imports["nobody.knows"] = 1
    with pytest.raises(ModelError, match=r"onnxruntime does not load the graph: .*nobody\.knows"):
        emit(graph, plan)


def test_hiding_shapes_comes_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    # A tolerance that nothing meets: every round finds something to hide, until all has been tried.
    monkeypatch.setattr(sys.modules["ckplan.writer.emit"], "TOLERANCE", -1.0)
    graph = training_graph("resnet_tiny")
    emitted = emit(graph, parse_strategy("none").solve(problem_of(graph)))
    assert int(emitted.metadata_props["pkg.ckplan.control_edges"]) > 0


def test_a_graph_viewer_sees_what_is_kept_and_what_runs_again(tmp_path: Path) -> None:
    graph = training_graph("tanh_chain")
    plan = parse_strategy("sqrt").solve(problem_of(graph))
    save(emit(graph, plan), tmp_path / "m.onnx")
    proto = onnx.load(str(tmp_path / "m.onnx"))
    onnx.checker.check_model(proto)
    about = {entry.key: entry.value for entry in proto.metadata_props}
    assert about["pkg.ckplan.version"] == ckplan.__version__
    assert {"pkg.ckplan.strategy", "pkg.ckplan.predicted_peak_activations", "pkg.ckplan.predicted_peak_total"} <= set(
        about
    )
    told = {node.name: {entry.key: entry.value for entry in node.metadata_props} for node in proto.graph.node}
    assert all(facts["pkg.ckplan.phase"] in ("forward", "backward") for facts in told.values())
    again = {name: facts["pkg.ckplan.recompute_of"] for name, facts in told.items() if "/recompute" in name}
    assert again
    assert all(name.startswith(f"{original}/recompute") for name, original in again.items())
    kept = {
        value.name: int(entry.value)
        for value in proto.graph.value_info
        for entry in value.metadata_props
        if entry.key == "pkg.ckplan.kept"
    }
    assert sorted(
        text for facts in told.values() for text in facts.get("pkg.ckplan.keeps", "").split(", ") if text
    ) == (sorted(f"{name}: {size} bytes" for name, size in kept.items()))
    # No more is kept than what the plan has at the end of the forward pass, and what it keeps is there.
    assert 0 < sum(kept.values()) <= plan.predicted.peak_activations
    without = onnx.ModelProto.FromString(proto.SerializeToString())
    for holder in (without, *without.graph.node, *without.graph.value_info):
        holder.ClearField("metadata_props")
    fed = feeds(emit(graph, plan))
    plain = run(without, fed)
    assert all(np.array_equal(value, plain[key]) for key, value in run(proto, fed).items())


def test_statistics_that_only_another_run_is_read_for_are_left_out() -> None:
    graph = build_training_graph(ckplan.model.load(SAMPLES / "bert_tiny.onnx", dims={"batch": 2}).model).model
    emitted = emit(graph, parse_strategy("memory").solve(problem_of(graph)))
    outputs = [node.outputs for node in emitted.graph if node.op_type == "LayerNormalization"]
    assert {len(made) for made in outputs} == {1, 3}
    assert all(value.uses() for made in outputs for value in made[1:])


def test_a_plan_of_another_graph_is_refused() -> None:
    graph = training_graph("mlp")
    plan = parse_strategy("sqrt").solve(problem_of(graph))
    other = graph.clone()
    other.graph[-1].name = "renamed"
    with pytest.raises(UsageError, match=r"made for another graph: the first node that differs is .* 'renamed' here"):
        emit(other, plan)
    with pytest.raises(UsageError, match="made for another graph"):
        emit(training_graph("tanh_chain"), plan)

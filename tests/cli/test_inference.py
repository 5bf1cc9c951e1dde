"""``--inference``: models that are run and not trained, and graphs with gradients made elsewhere."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests.cli.test_commands import failure, outputs, run


def write_branches(path: Path, rows: int = 256) -> Path:
    """A wide tensor, and a branch that swells more and leaves little; onnxruntime makes the wide one first."""
    nodes = [
        helper.make_node("Tile", ["x", "thrice"], ["swollen"], "swollen"),
        helper.make_node("Erf", ["swollen"], ["wave"], "wave"),
        helper.make_node("ReduceMax", ["wave", "axes"], ["shrunk"], "shrunk"),
        helper.make_node("Tile", ["x", "once"], ["wide"], "wide"),
        helper.make_node("Mul", ["shrunk", "wide"], ["product"], "product"),
        helper.make_node("ReduceMax", ["product", "axes"], ["y"], "y"),
    ]
    constants = [
        helper.make_tensor("once", TensorProto.INT64, [2], [1, 64]),
        helper.make_tensor("thrice", TensorProto.INT64, [2], [1, 192]),
        helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
    ]
    graph = helper.make_graph(
        nodes,
        "branches",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [rows, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [rows, 1])],
        constants,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


def test_an_inference_graph_is_reordered(tmp_path: Path) -> None:
    model, planned = write_branches(tmp_path / "model.onnx"), tmp_path / "planned.onnx"
    result = run("rewrite", model, "-o", planned, "--inference", "--strategy", "none", "--json", "--verify")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert "loss" not in data
    assert "gradients" not in data
    assert data["planned"]["peak_activations"] < data["base"]["peak_activations"]
    assert data["verification"]["problems"] == []
    for one, other in zip(outputs(model), outputs(planned), strict=True):
        np.testing.assert_array_equal(one, other)
    assert [value.name for value in onnx.load(planned).graph.output] == ["y"]


def test_an_inference_graph_keeps_to_a_budget_by_recomputing(tmp_path: Path) -> None:
    """A swollen tensor that is read at both ends is recomputed in place of being kept."""
    nodes = [helper.make_node("Tile", ["x", "repeats"], ["first"], "first")]
    nodes.append(helper.make_node("ReduceMax", ["first", "axes"], ["m"], "early"))
    narrow = "m"
    for step in range(6):
        nodes.append(helper.make_node("Tile", [narrow, "repeats"], [f"wide{step}"], f"wide{step}"))
        nodes.append(helper.make_node("Cos", [f"wide{step}"], [f"cos{step}"], f"cos{step}"))
        nodes.append(helper.make_node("ReduceMax", [f"cos{step}", "axes"], [f"m{step}"], f"narrow{step}"))
        narrow = f"m{step}"
    nodes.append(helper.make_node("Mul", ["first", narrow], ["y_wide"], "late"))
    nodes.append(helper.make_node("ReduceMax", ["y_wide", "axes"], ["y"], "end"))
    constants = [
        helper.make_tensor("repeats", TensorProto.INT64, [2], [1, 64]),
        helper.make_tensor("axes", TensorProto.INT64, [1], [1]),
    ]
    graph = helper.make_graph(
        nodes,
        "ends",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [256, 1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [256, 1])],
        constants,
    )
    model, planned = tmp_path / "model.onnx", tmp_path / "planned.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), model)
    result = run("rewrite", model, "-o", planned, "--inference", "--json", "--strategy", "evict", "--budget", "150KiB")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["base"]["peak_activations"] > 190 * 1024
    assert data["planned"]["peak_activations"] <= 150 * 1024
    assert any("recompute" in node.name for node in onnx.load(planned).graph.node)
    for one, other in zip(outputs(model), outputs(planned), strict=True):
        np.testing.assert_array_equal(one, other)


def test_a_training_graph_is_planned_as_any_other_graph(model: Path, tmp_path: Path) -> None:
    plain, planned = tmp_path / "plain.onnx", tmp_path / "planned.onnx"
    assert run("grad", model, "-o", plain, "--dim", "batch=256").exit_code == 0
    result = run("rewrite", plain, "-o", planned, "--inference", "--json")
    assert result.exit_code == 0, result.stderr
    data = json.loads(result.stdout)
    assert data["planned"]["peak_activations"] < data["base"]["peak_activations"]
    names = [[value.name for value in onnx.load(path).graph.output] for path in (plain, planned)]
    assert names[0] == names[1]


@pytest.mark.parametrize("command", ["analyze", "pareto"])
def test_reports_of_inference_do_not_speak_of_training(command: str, tmp_path: Path) -> None:
    model = write_branches(tmp_path / "model.onnx")
    result = run(command, model, "--inference", "--strategy", "none", "--strategy", "evict")
    assert result.exit_code == 0, result.stderr
    assert not {"loss", "training", "gradients", "trained"} & set(result.stdout.split())


def test_a_plan_for_inference_is_written_and_read(tmp_path: Path) -> None:
    model, plan = write_branches(tmp_path / "model.onnx"), tmp_path / "plan.json"
    assert run("plan", model, "-o", plan, "--inference", "--strategy", "none").exit_code == 0
    result = run("rewrite", model, "-o", tmp_path / "out.onnx", "--inference", "--plan", plan)
    assert result.exit_code == 0, result.stderr


@pytest.mark.parametrize("command", ["analyze", "pareto", "plan", "rewrite"])
def test_training_options_are_refused_by_name(command: str, model: Path, tmp_path: Path) -> None:
    target = [] if command in ("analyze", "pareto") else ["-o", tmp_path / "out"]
    result = run(command, model, *target, "--inference", "--wrt", "layer5*", "--optimizer", "sgd", "--training")
    assert result.exit_code == 2
    assert "`--wrt`, `--training`, `--optimizer`" in failure(result)
    assert "`--inference`" in failure(result)

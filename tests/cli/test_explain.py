"""``ckplan explain``: the decision, its reason, its price, and the opposite, on models whose plans are known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from ckplan.units import format_bytes
from tests.cli.conftest import write_model
from tests.cli.test_commands import failure, run


def explained(*arguments: str | Path) -> dict[str, Any]:
    result = run("explain", *arguments, "--json", "--quiet")
    assert result.exit_code == 0, result.stderr
    data: dict[str, Any] = json.loads(result.stdout)
    return data


@pytest.fixture
def deep(tmp_path: Path) -> Path:
    return write_model(tmp_path / "deep.onnx", layers=12, width=16)


def test_a_recomputed_tensor(deep: Path) -> None:
    data = explained(deep, "y3", "--dim", "batch=256", "--strategy", "sqrt:segments=4")
    assert (data["fate"], data["never"], data["bytes"]) == ("recomputed", "", 256 * 16 * 4)
    assert data["block"] == {"name": "MatMul+Tanh", "count": 11}  # the last one goes on into the loss
    first, second = data["lives"]
    assert not first["made"]["recomputed"]
    assert second["made"]["recomputed"]
    assert second["last"]["backward"]
    assert data["again"]["nodes"][-1] == "act3"
    assert data["opposite"]["overhead"] < data["overhead"]
    assert data["opposite"]["peak"] >= data["peak"]


def test_a_kept_tensor(deep: Path) -> None:
    data = explained(deep, "y3", "--dim", "batch=256", "--strategy", "none")
    assert data["fate"] == "kept"
    (life,) = data["lives"]
    assert life["at_peak"]
    assert data["again"]["nodes"] == ["matmul3", "act3"]  # the product is overwritten by then
    assert data["again"]["seconds"] > 0
    assert data["opposite"]["overhead"] > 0
    assert "recomputing it would" in data["reason"]


def test_a_plan_file_is_explained_as_it_is(deep: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    options = ("--dim", "batch=256", "--strategy", "sqrt:segments=4")
    assert run("plan", deep, "-o", plan, *options).exit_code == 0
    from_file = explained(deep, "y3", "--dim", "batch=256", "--plan", plan)
    assert from_file["lives"] == explained(deep, "y3", *options)["lives"]
    assert not any("plan file" in note for note in from_file["notes"])
    (note,) = [
        note for note in explained(deep, "y3", "--dim", "batch=128", "--plan", plan)["notes"] if "plan file" in note
    ]
    told = format_bytes(json.loads(plan.read_text())["predicted_peak_activations"])
    assert note.startswith(f"the plan file tells of {told} of activations, and the plan takes ")


@pytest.mark.parametrize(
    ("tensor", "fate", "reason"),
    [
        ("x", "held", "it is an input"),
        ("layer1.weight", "held", "it is a parameter"),
        ("layer1.weight_grad", "held", "it is the gradient of 'layer1.weight'"),
        ("m3", "freed", "only the forward pass reads it"),
    ],
)
def test_what_no_plan_makes_again_says_why(tensor: str, fate: str, reason: str, model: Path) -> None:
    data = explained(model, tensor)
    assert data["fate"] == fate
    assert reason in data["reason"]
    assert data["opposite"] is None


def test_a_random_tensor(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "matmul"),
        helper.make_node("Dropout", ["m"], ["kept"], "dropout"),
        helper.make_node("Tanh", ["kept"], ["y"], "tanh"),
        helper.make_node("Identity", ["y"], ["z"], "last"),
    ]
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    value = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [value("x", TensorProto.FLOAT, [2, 4])], [value("z", TensorProto.FLOAT, [2, 4])], [weight]
    )
    path = tmp_path / "dropout.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    result = run("explain", path, "kept", "--quiet")
    assert result.exit_code == 0, result.stderr
    assert "'kept' is 'm' in this graph" not in result.stdout
    noted = run("explain", path, "kept")
    assert "note: 'kept' is 'm' in this graph, as Dropout gave way" in noted.stderr
    drawn = explained(path, "dropout/RandomUniformLike_0", "--training")
    assert drawn["never"] == "RandomUniformLike draws random numbers, and a second run would draw others"
    mask = explained(path, drawn["lives"][0]["last"]["node"], "--training")
    assert mask["never"].startswith("it makes the mask of a Dropout")
    assert mask["fate"] == "kept"


def test_unknown_tensors_have_near_matches(model: Path) -> None:
    result = run("explain", model, "layer1.wieght")
    assert result.exit_code == 2
    assert "there is no tensor 'layer1.wieght' in the model; did you mean `layer1.weight`" in failure(result)


def test_an_unknown_tensor_is_found_before_a_plan_is_looked_for(model: Path) -> None:
    result = run("explain", model, "layer1.wieght", "--budget", "1B")  # which no plan keeps to
    assert result.exit_code == 2
    assert "there is no tensor 'layer1.wieght' in the model" in failure(result)


def test_an_unknown_tensor_is_told_before_a_plan_decides_on_pieces(model: Path) -> None:
    result = run("explain", model, "layer1.wieght", "--chunks", "auto", "--budget", "1B")
    assert result.exit_code == 4
    assert "note: there is no tensor 'layer1.wieght' in the model; whether a plan in pieces" in result.stderr
    known = run("explain", model, "y0", "--chunks", "auto")
    assert known.exit_code == 0
    assert "there is no tensor" not in known.stderr


@pytest.mark.parametrize("name", ["inner", "product"])
def test_a_tensor_within_a_fused_node_leads_to_what_that_makes(tmp_path: Path, name: str) -> None:
    nodes = [
        helper.make_node("Gemm", ["x", "w", "b"], ["inner"], "product"),
        helper.make_node("Relu", ["inner"], ["outer"], "relu"),
        helper.make_node("Gemm", ["outer", "w", "b"], ["y"], "last"),
    ]
    weights = [numpy_helper.from_array(np.ones(shape, np.float32), key) for key, shape in (("w", (4, 4)), ("b", 4))]
    fed, got = (helper.make_tensor_value_info(key, TensorProto.FLOAT, [4, 4]) for key in "xy")
    path = tmp_path / "fused.onnx"
    graph = helper.make_graph(nodes, "g", [fed], [got], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    result = run("explain", path, name)
    assert result.exit_code == 2
    assert "tensor 'inner' of the model is not in the graph that is planned" in failure(result)
    assert failure(result).endswith("explain what is made of it: `outer`")


def test_people_get_a_page_of_80_columns(deep: Path) -> None:
    result = run("explain", deep, "act3", "--strategy", "sqrt", "--dim", "batch=256")
    assert "note: 'act3' is a node; this is about 'y3', which it makes" in result.stderr
    for word in ("y3 is recomputed (plan: sqrt)", "made by", "copy 2", "why", "if kept"):
        assert word in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 80


def test_a_tensor_in_a_body_is_said_to_be_there(tmp_path: Path) -> None:
    value = helper.make_tensor_value_info
    bodies = [
        helper.make_graph(
            [helper.make_node(operator, ["m"], [name], name)], name, [], [value(name, TensorProto.FLOAT, [4, 4])]
        )
        for operator, name in (("Tanh", "inner"), ("Sigmoid", "other"))
    ]
    nodes = [
        helper.make_node("MatMul", ["x", "w"], ["m"], "product"),
        helper.make_node("If", ["c"], ["y"], "choice", then_branch=bodies[0], else_branch=bodies[1]),
    ]
    fed = [value("x", TensorProto.FLOAT, [4, 4]), value("c", TensorProto.BOOL, [])]
    weight = numpy_helper.from_array(np.eye(4, dtype=np.float32), "w")
    graph = helper.make_graph(nodes, "g", fed, [value("y", TensorProto.FLOAT, [4, 4])], [weight])
    path = tmp_path / "if.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    result = run("explain", path, "inner")
    assert result.exit_code == 2
    assert "is made in the body of If 'choice', which is planned as a whole; explain what that makes: `y`" in failure(
        result
    )

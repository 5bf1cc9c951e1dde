"""Local functions of another operator set than the model's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import helper, numpy_helper

from ckplan.errors import ModelError
from ckplan.model import load
from tests.model.models import run


def model(op_type: str, version: int, **attributes: Any) -> onnx.ModelProto:
    """A model of opset 18 that calls a function of another one twice, the second time on its result."""
    inner = [
        helper.make_node("Mul", ["x", "w"], ["a"]),
        helper.make_node(op_type, ["a"], ["y"], **attributes),
    ]
    function = helper.make_function("own", "Old", ["x", "w"], ["y"], inner, [helper.make_opsetid("", version)])
    calls = [
        helper.make_node("Old", ["x", "w"], ["once"], domain="own"),
        helper.make_node("Old", ["once", "v"], ["twice"], domain="own"),
        helper.make_node("Tanh", ["twice"], ["z"]),
    ]
    rng = np.random.default_rng(0)
    weights = [numpy_helper.from_array(rng.standard_normal(1).astype(np.float32), name) for name in ("w", "v")]
    taken = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 3, 8])
    given = helper.make_tensor_value_info("z", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(calls, "g", [taken], [given], weights)
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=9)


@pytest.mark.parametrize(("op_type", "version"), [("Softmax", 14), ("Sigmoid", 15), ("Relu", 17), ("Elu", 20)])
def test_a_function_whose_operators_did_not_change_is_of_the_models_opset(
    op_type: str, version: int, tmp_path: Path
) -> None:
    path = tmp_path / "model.onnx"
    onnx.save(model(op_type, version), path)
    inputs = {"x": np.random.default_rng(1).standard_normal((2, 3, 8)).astype(np.float32)}
    (expected,) = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, inputs)
    forward = load(path)
    assert not forward.model.functions
    (found,) = run(forward.model, inputs)
    np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize(
    ("op_type", "attributes"), [("Softmax", {"axis": 1}), ("ReduceSum", {"axes": [1], "keepdims": 1})], ids=str
)
@pytest.mark.parametrize("typed", [False, True])
def test_a_function_whose_operators_changed_is_named(
    op_type: str, attributes: dict[str, Any], typed: bool, tmp_path: Path
) -> None:
    old = model(op_type, 11, **attributes)
    if typed:  # which is what onnx's inliner asks for; then it gives two values one name
        infos = [helper.make_tensor_value_info(one.name, one.data_type, one.dims) for one in old.graph.initializer]
        old.graph.value_info.extend(infos)
        old = onnx.shape_inference.infer_shapes(old)
    path = tmp_path / "model.onnx"
    onnx.save(old, path)
    with pytest.raises(ModelError, match="function own::Old is of opset 11, and the model of opset 18: they cannot be"):
        load(path)

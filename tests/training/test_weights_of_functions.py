"""Trained weights that a file holds as constants of local functions."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper

import ckplan
from ckplan.errors import UsageError

X = np.linspace(-1, 1, 12, dtype=np.float32).reshape(4, 3)
W = np.linspace(-0.7, 0.9, 9, dtype=np.float32).reshape(3, 3)


def model(calls: int) -> onnx.ModelProto:
    """So many products with the constant of a function, one after the other."""
    inner = [
        helper.make_node("Constant", [], ["w"], value=numpy_helper.from_array(W, "w")),
        helper.make_node("MatMul", ["x", "w"], ["y"]),
    ]
    function = helper.make_function("own", "Layer", ["x"], ["y"], inner, [helper.make_opsetid("", 18)])
    nodes = [helper.make_node("Layer", [f"h{n}"], [f"h{n + 1}"], domain="own") for n in range(calls)]
    nodes[0].input[0], nodes[-1].output[0] = "x", "z"
    taken, given = (helper.make_tensor_value_info(name, TensorProto.FLOAT, [4, 3]) for name in "xz")
    graph = helper.make_graph(nodes, "g", [taken], [given])
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    return helper.make_model(graph, functions=[function], opset_imports=opsets, ir_version=9)


def trained(folder: Path, calls: int) -> tuple[Path, dict[str, np.ndarray]]:
    """A model's file, and its weights after an update."""
    source, step = folder / "model.onnx", folder / "step.onnx"
    onnx.save(model(calls), source)
    ckplan.rewrite(ckplan.open_model(source, loss="sum-of-squares"), output=step)
    trainer = ckplan.Trainer(step, {"x": np.tile(X, (2, 1))}, optimizer="sgd", checkpoints=folder / "held")
    trainer.train(1)
    found = ckplan.read_checkpoint(folder / "held")
    return source, {name: found.values[name] for name in found.weights}


def test_a_constant_of_a_function_that_is_called_twice_is_written(tmp_path: Path) -> None:
    source, weights = trained(tmp_path, calls=2)
    (weight,) = weights.values()
    assert np.abs(weight - W).max() > 1e-4
    ckplan.export_weights(source, weights, tmp_path / "out.onnx")
    onnx.checker.check_model(str(tmp_path / "out.onnx"), full_check=True)
    session = onnxruntime.InferenceSession(tmp_path / "out.onnx", providers=["CPUExecutionProvider"])
    np.testing.assert_allclose(session.run(None, {"x": X})[0], X @ weight @ weight, rtol=1e-5, atol=1e-6)


def test_one_of_a_function_that_is_called_once_says_what_to_do(tmp_path: Path) -> None:
    source, weights = trained(tmp_path, calls=1)
    with pytest.raises(UsageError, match=r"called once: inline functions first \(onnx\.inliner"):
        ckplan.export_weights(source, weights, tmp_path / "out.onnx")
    assert not (tmp_path / "out.onnx").exists()

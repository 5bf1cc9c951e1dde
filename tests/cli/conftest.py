"""A small model to run commands on: two layers, batch by name, a file of a few kilobytes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper


def write_model(path: Path, *, activation: str = "Tanh", layers: int = 6, width: int = 16) -> Path:
    """A chain of MatMul and an activation, with the input ``x`` of shape (batch, width)."""
    rng = np.random.default_rng(0)
    nodes, weights, value = [], [], "x"
    for layer in range(layers):
        weight = rng.normal(size=(width, width)).astype(np.float32) / np.sqrt(width)
        weights.append(numpy_helper.from_array(weight.astype(np.float32), f"layer{layer}.weight"))
        nodes.append(helper.make_node("MatMul", [value, f"layer{layer}.weight"], [f"m{layer}"], f"matmul{layer}"))
        nodes.append(helper.make_node(activation, [f"m{layer}"], [f"y{layer}"], f"act{layer}"))
        value = f"y{layer}"
    graph = helper.make_graph(
        nodes,
        "chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", width])],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, ["batch", width])],
        weights,
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10), path)
    return path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return write_model(tmp_path / "model.onnx")

"""Files that onnxruntime wrote after its optimisations, with names that it would give again."""

from __future__ import annotations

from pathlib import Path

import onnx
import onnxruntime

import ckplan
from tests.model.models import normal, parse


def optimised(path: Path) -> onnx.ModelProto:
    """Four products with biases, as onnxruntime writes them, and a fifth behind them."""
    layers = [f"p{i} = MatMul(x{i}, w{i}) s{i} = Add(p{i}, b{i}) x{i + 1} = Tanh(s{i})" for i in range(5)]
    weights = {f"w{i}": normal(i, 4, 4) for i in range(5)} | {f"b{i}": normal(i, 4) for i in range(5)}
    text = '<ir_version: 10, opset_import: ["": 20]> g (float[2,3,4] {}) => (float[2,3,4] {}) {{ {} }}'
    first = parse(text.format("x0", "x4", " ".join(layers[:4])), {k: v for k, v in weights.items() if k[1] != "4"})
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_BASIC
    options.optimized_model_filepath = str(path)
    onnxruntime.InferenceSession(first.SerializeToString(), options, providers=["CPUExecutionProvider"])
    model = onnx.load(path)
    last = parse(text.format("x4", "x5", layers[4]), {k: v for k, v in weights.items() if k[1] == "4"})
    model.graph.node.extend(last.graph.node)
    model.graph.initializer.extend(last.graph.initializer)
    model.graph.output[0].CopyFrom(last.graph.output[0])
    return model


def test_what_onnxruntime_optimised_before_can_be_optimised_again(tmp_path: Path) -> None:
    model = optimised(tmp_path / "optimised.onnx")
    assert any(array.name.startswith("gemm_input_shape") for array in model.graph.initializer)
    step = ckplan.open_model(model, loss="mse")
    assert len(step.training.gradients) == 10
    assert step.ordered is not None  # in the order of what onnxruntime makes of the graph
    onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])  # as it was

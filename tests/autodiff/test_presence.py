"""Numbers that are made late come from operators that every runtime reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

import ckplan
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.presence import there

MODELS = Path(__file__).parents[2] / "sample_models"


@pytest.mark.parametrize("name", ["gpt_tiny", "mobilenet_tiny", "unet_tiny", "tanh_chain"])
def test_a_training_graph_asks_no_tensor_whether_it_is_there(name: str) -> None:
    step = ckplan.open_model(MODELS / f"{name}.onnx")
    assert not [node.name for node in step.model.graph.all_nodes() if node.op_type.startswith("Optional")]


def test_there_is_known_at_run_time_only(tmp_path: Path) -> None:
    """Were it folded when the file is loaded, what hangs on it would lie in memory from the beginning."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape((2, 3)))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 21}, name="g")
    op = Builder(graph, graph.opset_imports)
    graph.outputs.append(there(op, op.Neg(x)))
    ir.save(ir.Model(graph, ir_version=10), tmp_path / "m.onnx")
    options = onnxruntime.SessionOptions()
    options.optimized_model_filepath = str(tmp_path / "loaded.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "m.onnx", options, providers=["CPUExecutionProvider"])
    (found,) = session.run(None, {"x": np.zeros((2, 3), np.float32)})
    assert found
    assert "Size" in [node.op_type for node in ir.load(tmp_path / "loaded.onnx").graph]

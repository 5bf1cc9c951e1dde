"""What `workspace` says of onnxruntime's recurrent kernels, asked of each kernel."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper

from ckplan.runtime.cpu import CPU
from tests.writer.runtime import profile

STEPS, BATCH, FEATURES, HIDDEN = 64, 32, 128, 256
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


@pytest.mark.parametrize("direction", ["forward", "reverse", "bidirectional"])
@pytest.mark.parametrize("op_type", GATES)
@pytest.mark.parametrize("sequence", [True, False])
def test_is_what_the_arena_shows(op_type: str, direction: str, sequence: bool) -> None:
    count = 2 if direction == "bidirectional" else 1
    rows = GATES[op_type] * HIDDEN
    shapes = {"x": (STEPS, BATCH, FEATURES), "w": (count, rows, FEATURES), "r": (count, rows, HIDDEN)}
    node = helper.make_node(
        op_type, list(shapes), ["y" if sequence else "", "h"], name="probed", hidden_size=HIDDEN, direction=direction
    )
    graph = helper.make_graph(
        [node],
        "probe",
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [onnx.ValueInfoProto(name=name) for name in node.output if name],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model)
    feeds = {name: np.full(shape, 0.1, np.float32) for name, shape in shapes.items()}
    events = profile(model, feeds, priority=True, optimise=False)
    event = next(event for event in events if event["name"] == "probed")
    seen = int(event["mem_in_use_peak"]) - int(event["mem_bytes_in_use"])
    expected = CPU.workspace(ir.serde.deserialize_model(model).graph[0], CPU.threads)
    # The arena may hand out a free chunk of up to twice the size that was asked for.
    assert 0.9 * expected <= seen <= 2 * expected + 2**18

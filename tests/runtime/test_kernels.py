"""What `kernels` says of onnxruntime's kernels, asked of each kernel: does its output take memory of its own?"""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ckplan.operators.table import STANDARD
from ckplan.runtime.kernels.memory_use import overwritable
from tests.writer.runtime import profile

SIZE = 64
EXTRA: dict[str, list[np.ndarray]] = {
    "Clip": [np.float32(-1).reshape(()), np.float32(1).reshape(())],
    "Reshape": [np.array([SIZE * SIZE])],
    "ScatterElements": [np.zeros((1, SIZE), np.int64), np.ones((1, SIZE), np.float32)],
    "Squeeze": [np.array([0])],
    "Unsqueeze": [np.array([0])],
    "Add": [np.ones((SIZE, SIZE), np.float32)],
    "Mul": [np.ones((SIZE, SIZE), np.float32)],
}
ATTRIBUTES = {"Cast": {"to": TensorProto.INT32}}


def allocated(op_type: str, dtype: type = np.float32) -> int:
    """Bytes that the kernel adds to memory when it is the last reader of its first input."""
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    shape = [1, SIZE, SIZE] if op_type == "Squeeze" else [SIZE, SIZE]
    extra = EXTRA.get(op_type, [])
    initializers = [numpy_helper.from_array(array, f"extra{index}") for index, array in enumerate(extra)]
    initializers.append(numpy_helper.from_array(np.full([1] * len(shape), 0.5, dtype), "half"))
    nodes = [
        helper.make_node("Mul", ["x", "half"], ["before"], name="before"),
        helper.make_node(op_type, ["before", *(i.name for i in initializers[:-1])], ["y"], name="probed"),
        helper.make_node("Cast", ["y"], ["last"], name="cast", to=TensorProto.INT64),
        helper.make_node("ReduceSum", ["last"], ["sum"], name="after", keepdims=0),
    ]
    for node in nodes:
        node.attribute.extend(
            helper.make_attribute(key, value)
            for key, value in ATTRIBUTES.get(node.op_type, {}).items()
            if node.name == "probed"
        )
    graph = helper.make_graph(
        nodes,
        "probe",
        [helper.make_tensor_value_info("x", kind, shape)],
        [helper.make_tensor_value_info("sum", TensorProto.INT64, [])],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    onnx.checker.check_model(model)
    events = profile(model, {"x": np.ones(shape, dtype)}, priority=True, optimise=False)
    return next(int(event["mem_requested_in_use_delta"]) for event in events if event["name"] == "probed")


@pytest.mark.parametrize("op_type", sorted(name for name, known in STANDARD.items() if known.view or known.in_place))
def test_shares_the_memory_of_its_input(op_type: str) -> None:
    assert allocated(op_type) == 0


@pytest.mark.parametrize("op_type", ["Add", "Mul", "Exp", "Neg", "Sqrt", "Erf", "Gelu"])
def test_takes_memory_of_its_own(op_type: str) -> None:
    assert allocated(op_type) == SIZE * SIZE * 4


@pytest.mark.parametrize("op_type", ["Relu", "Sigmoid", "Tanh", "Softmax", "LogSoftmax"])
def test_softmaxes_alone_take_memory_of_their_own_in_float64(op_type: str) -> None:
    value = ir.Value(name="x", type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape([SIZE, SIZE]))
    works_in_place = overwritable(ir.Node("", op_type, [value])) is value
    assert works_in_place is ("Softmax" not in op_type)
    assert allocated(op_type, np.float64) == (0 if works_in_place else SIZE * SIZE * 8)

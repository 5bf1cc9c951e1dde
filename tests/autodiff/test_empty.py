"""Tensors without elements: no rule may stumble over them, and nothing of size zero may divide by it."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import infer, node_model, onnxruntime_run, to_dtype, values
from tests.autodiff.reference_operators import use_reference_operators

__all__ = ["use_reference_operators"]
pytestmark = pytest.mark.usefixtures("use_reference_operators")


def e(*shape: int) -> np.ndarray:
    return np.zeros(shape)


def ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, dtype=np.int64)


UNARY = ["Relu", "LeakyRelu", "Sigmoid", "Tanh", "Gelu", "Exp", "Log", "Sqrt", "Abs", "Erf", "HardSwish", "Softplus"]
BINARY = ["Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Sum", "Mean", "PRelu"]
REDUCTIONS = ["ReduceSum", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare", "ReduceProd"]

# What onnx's evaluator cannot run without elements is not among them.
CASES = {
    **{name: (name, [e(2, 0)], {}) for name in UNARY},
    **{name: (name, [e(2, 0), e(2, 0)], {}) for name in BINARY},
    **{f"{name}-stretched": (name, [e(2, 0), values(2, 1)], {}) for name in BINARY},
    **{f"{name}-empty": (name, [e(2, 0), ints(1)], {}) for name in REDUCTIONS},
    **{f"{name}-others": (name, [e(0, 3), ints(1)], {}) for name in [*REDUCTIONS, "ReduceMax", "ReduceMean"]},
    "Softmax": ("Softmax", [e(0, 3)], {}),
    "Softmax-axis": ("Softmax", [e(2, 0)], {}),
    "Clip": ("Clip", [e(2, 0), np.float64(0), np.float64(1)], {}),
    "Where": ("Where", [np.zeros((2, 0), dtype=bool), e(2, 0), values(2, 1)], {}),
    "MatMul-rows": ("MatMul", [e(0, 3), values(3, 4)], {}),
    "MatMul-inner": ("MatMul", [e(2, 0), e(0, 4)], {}),
    "MatMul-batch": ("MatMul", [e(0, 2, 3), e(0, 3, 4)], {}),
    "Gemm": ("Gemm", [e(0, 3), values(3, 4), values(4)], {}),
    "Gemm-inner": ("Gemm", [e(2, 0), e(0, 4), values(4)], {}),
    "Einsum": ("Einsum", [e(0, 3), values(3, 4)], {"equation": "ij,jk->ik"}),
    "Reshape": ("Reshape", [e(2, 0), ints(0, 5)], {"allowzero": 1}),
    "Transpose": ("Transpose", [e(2, 0, 3)], {"perm": [2, 1, 0]}),
    "Squeeze": ("Squeeze", [e(1, 0), ints(0)], {}),
    "Unsqueeze": ("Unsqueeze", [e(0), ints(0)], {}),
    "Concat": ("Concat", [e(0, 3), values(2, 3)], {"axis": 0}),
    "Concat-all": ("Concat", [e(0, 3), e(0, 3)], {"axis": 0}),
    "Split": ("Split", [values(2, 3), ints(0, 2)], {}),
    "Slice": ("Slice", [values(2, 3), ints(1), ints(1)], {}),
    "Slice-empty": ("Slice", [e(0, 3), ints(0), ints(2), ints(1)], {}),
    "Expand": ("Expand", [e(0, 1), ints(0, 4)], {}),
    "Expand-away": ("Expand", [values(1, 4), ints(0, 4)], {}),
    "Tile": ("Tile", [e(0, 3), ints(2, 1)], {}),
    "Tile-away": ("Tile", [values(2, 3), ints(0, 1)], {}),
    "Pad": ("Pad", [e(0, 3), ints(1, 0, 1, 0)], {}),
    "Pad-constant": ("Pad", [e(0, 3), ints(1, 0, 1, 0), np.float64(2.0)], {}),
    "Gather": ("Gather", [values(3, 2), np.zeros((0,), np.int64)], {}),
    "Gather-empty": ("Gather", [e(3, 0), ints(0, 1)], {}),
    "GatherElements": ("GatherElements", [values(3, 2), np.zeros((0, 2), np.int64)], {}),
    "GatherND": ("GatherND", [values(3, 2), np.zeros((0, 1), np.int64)], {}),
    "ScatterND": ("ScatterND", [values(3, 2), np.zeros((0, 1), np.int64), e(0, 2)], {}),
    "ScatterElements": ("ScatterElements", [values(3, 2), np.zeros((0, 2), np.int64), e(0, 2)], {"reduction": "mul"}),
    "TopK": ("TopK", [values(3, 4), ints(0)], {}),
    "TopK-rows": ("TopK", [e(0, 4), ints(2)], {}),
    "CumSum": ("CumSum", [e(0, 3), np.int64(0)], {}),
    "Trilu": ("Trilu", [e(0, 3, 3)], {}),
    "DepthToSpace": ("DepthToSpace", [e(0, 4, 2, 2)], {"blocksize": 2}),
    "SpaceToDepth": ("SpaceToDepth", [e(0, 1, 2, 2)], {"blocksize": 2}),
    "Conv": ("Conv", [e(0, 2, 5, 5), values(3, 2, 3, 3), values(3)], {}),
    "Conv-channels": ("Conv", [e(1, 0, 5, 5), e(3, 0, 3, 3), values(3)], {}),
    "Conv-pointwise": ("Conv", [e(0, 2, 5, 5), values(3, 2, 1, 1)], {}),
    "ConvTranspose": ("ConvTranspose", [e(0, 2, 5, 5), values(2, 3, 3, 3)], {}),
    "ConvTranspose-channels": ("ConvTranspose", [values(1, 2, 5, 5), e(2, 0, 3, 3)], {}),
    "MaxPool": ("MaxPool", [e(0, 2, 4, 4)], {"kernel_shape": [2, 2]}),
    "AveragePool": ("AveragePool", [e(0, 2, 4, 4)], {"kernel_shape": [2, 2]}),
    "LpPool": ("LpPool", [e(0, 2, 4, 4)], {"kernel_shape": [2, 2]}),
    "AveragePool-away": ("AveragePool", [values(1, 2, 4, 4)], {"kernel_shape": [2, 2], "dilations": [4, 4]}),
    "LpPool-away": ("LpPool", [values(1, 2, 1)], {"kernel_shape": [2]}),
    "GlobalMaxPool": ("GlobalMaxPool", [e(0, 2, 4, 4)], {}),
    "BatchNormalization": (
        "BatchNormalization",
        [e(0, 3, 2), values(3), values(3), values(3), values(3, low=1.0)],
        {},
    ),
    "InstanceNormalization": ("InstanceNormalization", [e(0, 3, 2), values(3), values(3)], {}),
    "LayerNormalization": ("LayerNormalization", [e(0, 4), values(4), values(4)], {}),
    "LRN": ("LRN", [e(0, 4, 2, 2)], {"size": 3}),
    "LpNormalization": ("LpNormalization", [e(0, 4)], {}),
    "Resize": ("Resize", [e(0, 1, 2, 2), None, np.asarray([1, 1, 2, 2], np.float32)], {}),
    "RoiAlign": ("RoiAlign", [values(1, 2, 4, 4), e(0, 4), np.zeros(0, np.int64)], {}),
    "Det": ("Det", [e(0, 3, 3)], {}),
    "Dropout": ("Dropout", [e(0, 3)], {}),
    "Identity": ("Identity", [e(0, 3)], {}),
    "Cast": ("Cast", [e(0, 3)], {"to": onnx.TensorProto.DOUBLE}),
}


def model_of(case: str) -> onnx.ModelProto:
    """A model of the case, with a second loss that makes sure there is something to differentiate."""
    op_type, inputs, attributes = CASES[case]
    outputs = {"Split": 2, "TopK": 2}.get(op_type, 1)
    model = node_model(op_type, *inputs, outputs=outputs, **attributes)
    model.graph.node[-1].output[0] = "first"
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.asarray([2.0]), "p_other"))
    model.graph.node.append(onnx.helper.make_node("ReduceSum", ["p_other"], ["second"], keepdims=0))
    model.graph.node.append(onnx.helper.make_node("Add", ["first", "second"], ["loss"]))
    return model


@pytest.mark.parametrize("case", CASES)
def test_empty(case):
    model = to_dtype(model_of(case), np.float32)
    training = build_training_graph(infer(model), loss="loss", wrt=["p*"], unused="zero")
    parameters = {t.name: t for t in model.graph.initializer if t.name.startswith("p") and t.data_type == 1}
    found = onnxruntime_run(training.model)
    for name, gradient in training.gradients.items():
        assert found[gradient].shape == tuple(parameters[name].dims)
        assert np.isfinite(found[gradient]).all()
    assert "p_other" in training.gradients
    assert set(training.gradients) >= {name for name in parameters if not name.startswith("p2")}

"""Sums of many numbers."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.sums import total
from tests.autodiff.gradcheck import onnxruntime_run


def summed(array: np.ndarray, reduction: str) -> tuple[float, list[str]]:
    """The sum that onnxruntime makes, and the operators that make it."""
    x = ir.Value(
        name="x", type=ir.TensorType(ir.DataType(ir.DataType.from_numpy(array.dtype))), shape=ir.Shape(array.shape)
    )
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 21}, name="g")
    graph.outputs.append(total(Builder(graph, {"": 21}), x, reduction))
    (found,) = onnxruntime_run(ir.Model(graph, ir_version=10), {"x": array}).values()
    assert found.shape == ()
    return float(found), [node.op_type for node in graph]


@pytest.mark.parametrize("reduction", ["ReduceSum", "ReduceSumSquare", "ReduceMean"])
@pytest.mark.parametrize("shape", [(5,), (1000, 1000), (1024, 999), (3, 331, 337), (262_147,)])
def test_sums_are_as_exact_as_their_type(reduction: str, shape: tuple[int, ...]) -> None:
    array = np.full(shape, 1.1, np.float32)
    wide = array.astype(np.float64)
    exact = {"ReduceSum": wide.sum(), "ReduceSumSquare": (wide**2).sum(), "ReduceMean": wide.mean()}[reduction]
    assert summed(array, reduction)[0] == pytest.approx(exact, rel=2e-6)


def test_squares_of_many_numbers_are_added_up_by_products() -> None:
    assert "ReduceSumSquare" not in summed(np.ones((64, 1024), np.float32), "ReduceSumSquare")[1]
    assert "MatMul" not in summed(np.ones((16, 1024), np.float32), "ReduceSumSquare")[1]
    assert "MatMul" not in summed(np.ones((64, 1024), np.float32), "ReduceSum")[1]
    assert "MatMul" not in summed(np.ones(262_147, np.float32), "ReduceSumSquare")[1]  # a prime

"""The largest number of each row."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms import row_maxima
from tests.autodiff.gradcheck import onnxruntime_run, reference, values


@pytest.mark.parametrize(
    ("shape", "pools", "reductions"),
    [
        pytest.param((2, 3, 40), 1, 0, id="short"),
        pytest.param((3, 4000), 2, 0, id="long"),
        pytest.param((2, 1031), 0, 1, id="prime"),
        pytest.param((2, 64 * 1031), 1, 1, id="rest-prime"),
    ],
)
def test_rows_are_cut_where_they_are_long(shape, pools, reductions):
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape(shape))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 21}, name="g")
    graph.outputs.append(row_maxima.row_maxima(Builder(graph, {"": 21}), x))
    kinds = [node.op_type for node in graph]
    assert (kinds.count("GlobalMaxPool"), kinds.count("ReduceMax")) == (pools, reductions)
    feeds = {"x": values(*shape).astype(np.float32)}
    for run in (reference, onnxruntime_run):
        (found,) = run(ir.Model(graph, ir_version=10), feeds).values()
        assert np.array_equal(found, feeds["x"].max(axis=-1, keepdims=True, initial=-np.inf))

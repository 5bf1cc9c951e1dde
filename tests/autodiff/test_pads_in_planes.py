"""Paddings for CUDA: large tensors are padded over the last two axes of a view, where that says the same."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest
from onnx.reference import ReferenceEvaluator

from ckplan.autodiff.builder import Builder, Device
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.rules import windows
from tests.autodiff.gradcheck import values

#: Shape, padded axes, elements before and behind each, and the shape that is padded.
VIEWS = {
    "rows of channels": ((2, 3, 4, 5), [1], [0], [2], [2, 60]),
    "samples": ((3, 2, 5), [0], [1], [0], [1, 30]),
    "planes, channels last": ((2, 3, 4, 5), [1, 2], [1, 2], [0, 3], [2, 3, 20]),
    "of five axes": ((2, 1, 2, 3, 4), [3, 4], [1, 1], [1, 1], [4, 3, 4]),
}
AS_THEY_ARE = {
    "planes": ((2, 3, 4, 5), [2, 3], [1, 1], [1, 1]),
    "columns": ((2, 3, 4), [2], [1], [0]),
    "axes apart": ((2, 3, 4, 5), [1, 3], [1, 1], [1, 1]),
}


def padded(shape, axes, begin, end, fill=None, device: Device = "cuda") -> tuple[list[list[int]], np.ndarray]:
    """The shapes that Pads read, and what is made."""
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.DOUBLE), shape=ir.Shape(shape))
    graph = ir.Graph([x], [], nodes=[], opset_imports={"": 21}, name="g")
    graph.outputs.append(windows.pad_axes(Builder(graph, {"": 21}, device=device), x, axes, begin, end, fill))
    read = [list(shape_of(node.inputs[0])) for node in graph if node.op_type == "Pad"]
    proto = ir.to_proto(ir.Model(graph, ir_version=10))
    return read, ReferenceEvaluator(proto).run(None, {"x": values(*shape)})[0]


def expected(shape, axes, begin, end, fill=0.0) -> np.ndarray:
    width = [(0, 0)] * len(shape)
    for axis, first, last in zip(axes, begin, end, strict=True):
        width[axis] = (first, last)
    return np.pad(values(*shape), width, constant_values=fill)


@pytest.mark.parametrize(("shape", "axes", "begin", "end", "view"), VIEWS.values(), ids=VIEWS)
def test_large_tensors_are_padded_over_the_last_axes_of_a_view(shape, axes, begin, end, view, monkeypatch):
    assert padded(shape, axes, begin, end)[0] == [list(shape)], "small ones stay"
    monkeypatch.setattr(windows, "IN_PLANES_ELEMENTS", 1)
    assert padded(shape, axes, begin, end, device="cpu")[0] == [list(shape)]
    read, made = padded(shape, axes, begin, end, -1.5)
    assert read == [view]
    np.testing.assert_array_equal(made, expected(shape, axes, begin, end, -1.5))


@pytest.mark.parametrize(("shape", "axes", "begin", "end"), AS_THEY_ARE.values(), ids=AS_THEY_ARE)
def test_other_paddings_are_made_as_they_are(shape, axes, begin, end, monkeypatch):
    monkeypatch.setattr(windows, "IN_PLANES_ELEMENTS", 1)
    read, made = padded(shape, axes, begin, end)
    assert read == [list(shape)]
    np.testing.assert_array_equal(made, expected(shape, axes, begin, end))

"""Transposed convolutions of large kernels as convolutions whose channels are interleaved."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import pytest

from ckplan.autodiff import TrainingGraph, build_training_graph
from ckplan.autodiff.rewrites import subpixels
from tests.autodiff.gradcheck import onnxruntime_run, parse, values

#: Kernel, attributes, and height and width of the result for x of 6 x 5.
GEOMETRIES = [
    pytest.param((8, 8), "strides=[2,2], pads=[3,3,3,3]", (12, 10), id="doubled"),
    pytest.param((9, 8), "strides=[2,2]", (19, 16), id="odd"),
    pytest.param((8, 9), "strides=[2,2], pads=[2,5,1,0], output_padding=[1,0]", (16, 12), id="uneven"),
    pytest.param((16, 12), "strides=[3,3], pads=[6,4,7,5]", (18, 15), id="threes"),
    pytest.param((5, 4), "pads=[2,1,1,2]", (7, 5), id="one"),
    pytest.param((8, 8), 'strides=[2,2], auto_pad="SAME_UPPER"', (12, 10), id="automatic"),
]


def model_of(kernel: tuple[int, int], attributes: str, filters: int = 16, bias: bool = True) -> ir.Model:
    text = (
        f"g (float[2,3,6,5] x) => (float loss) {{ z = Tanh(x) y = ConvTranspose<{attributes}>(z, w{', b' * bias}) "
        "e = Mul(y, y) loss = ReduceSum<keepdims=0>(e) }"
    )
    arrays = {"w": values(3, filters, *kernel, seed=1)} | ({"b": values(filters, seed=2)} if bias else {})
    return parse(text, **{name: array.astype(np.float32) for name, array in arrays.items()})


def operator_of(training: TrainingGraph) -> str:
    (found,) = (node.op_type for node in training.model.graph if "y" in [value.name for value in node.outputs])
    return found


def run(training: TrainingGraph) -> list[np.ndarray]:
    return list(onnxruntime_run(training.model, {"x": values(2, 3, 6, 5, seed=3).astype(np.float32)}).values())


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("kernel", "attributes", "shape"), GEOMETRIES)
def test_interleaved_channels_are_the_transposed_convolution(kernel, attributes, shape, bias, monkeypatch):
    training = build_training_graph(model_of(kernel, attributes, bias=bias), wrt=["x", "w", "b"][: 2 + bias])
    (y,) = (value for node in training.model.graph for value in node.outputs if value.name == "y")
    assert operator_of(training) == "Slice"
    assert tuple(y.shape) == (2, 16, *shape)
    monkeypatch.setattr(subpixels, "_TAPS", 10**9)
    plain = build_training_graph(model_of(kernel, attributes, bias=bias), wrt=["x", "w", "b"][: 2 + bias])
    assert operator_of(plain) == "ConvTranspose"
    for one, other in zip(run(training), run(plain), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=2e-6 * np.abs(other).max())


@pytest.mark.parametrize(
    ("kernel", "attributes", "filters"),
    [
        pytest.param((4, 4), "strides=[2,2]", 16, id="few taps"),
        pytest.param((8, 8), "strides=[2,2]", 3, id="few channels"),
        pytest.param((9, 8), "strides=[2,1]", 16, id="two strides"),
        pytest.param((8, 8), "strides=[2,2], dilations=[2,2]", 16, id="dilated"),
        pytest.param((8, 8), "strides=[2,2], pads=[9,9,0,0]", 16, id="cut off"),
    ],
)
def test_others_stay(kernel, attributes, filters):
    assert operator_of(build_training_graph(model_of(kernel, attributes, filters))) == "ConvTranspose"

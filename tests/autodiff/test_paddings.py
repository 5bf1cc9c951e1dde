"""Convolutions put zeros around an image themselves, so that no padded copy is kept for the gradient of the weight."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir
import onnxruntime
import pytest

from ckplan.autodiff import build_training_graph
from tests.autodiff.gradcheck import check_training_graph, parse, values

TEXT = """g (double[2,3,6,5] image) => (double loss) {
    x = Mul(image, scale)
    p = PAD
    y = Conv <CONV> (p, w)
    z = READ
    s = Mul(z, z)
    loss = ReduceSum <keepdims = 0> (s)
}"""


def operators(
    pad: str, conv: str = "strides = [2, 2]", read: str = "Identity(y)", **constants: np.ndarray
) -> list[str]:
    """The operators of the forward pass, whose gradients are checked on the way."""
    arrays = {"scale": np.float64(0.5), "w": values(4, 3, 3, 3, seed=1), **constants}
    text = TEXT.replace("PAD", pad).replace("CONV", conv).replace("READ", read)
    training = build_training_graph(parse(text, **arrays), wrt=["w", "scale"])
    check_training_graph(training, {"image": values(2, 3, 6, 5, seed=2)})
    return [node.op_type for node in training.model.graph if node.metadata_props["pkg.ckplan.phase"] == "forward"]


PADS = np.array([0, 0, 1, 2, 0, 0, 0, 1])


@pytest.mark.parametrize("conv", ["strides = [2, 2]", "pads = [1, 0, 2, 1]", "dilations = [2, 1]"])
def test_zeros_are_put_by_the_convolution(conv: str) -> None:
    assert "Pad" not in operators("Pad(x, pads)", conv, pads=PADS)


def test_axes_and_a_zero_that_are_written_out() -> None:
    axes = {"zero": np.float64(0), "axes": np.array([-1, 2])}
    assert "Pad" not in operators("Pad(x, pads, zero, axes)", pads=np.array([1, 0, 2, 1]), **axes)


@pytest.mark.parametrize(
    ("pad", "constants"),
    [
        pytest.param("Pad(x, pads, one)", {"pads": PADS, "one": np.float64(1)}, id="another number"),
        pytest.param('Pad <mode = "reflect"> (x, pads)', {"pads": PADS}, id="reflected"),
        pytest.param("Pad(x, pads)", {"pads": np.array([0, 0, 1, -1, 0, 0, 0, 1])}, id="cropped"),
    ],
)
def test_other_borders_stay(pad: str, constants: dict[str, np.ndarray]) -> None:
    assert "Pad" in operators(pad, **constants)


def test_a_copy_that_others_read_stays() -> None:
    assert "Pad" in operators("Pad(x, pads) m = ReduceMean(p)", read="Mul(y, m)", pads=PADS)
    automatic = 'auto_pad = "SAME_UPPER"'
    assert "Pad" in operators("Pad(x, pads)", automatic, pads=PADS)


def test_a_weight_in_a_border_of_zeros_is_not_taken_for_the_image() -> None:
    """onnxruntime would join the Pad and the convolution, and not load what it made of them."""
    text = """g (double[2,3,9,9] image) => (double loss) {
        p = Pad(w, pads) y = Conv(image, p) s = Mul(y, y) loss = ReduceSum <keepdims = 0> (s)
    }"""
    weight = values(4, 3, 3, 3, seed=1)
    training = build_training_graph(parse(text, w=weight, pads=PADS))
    check_training_graph(training, {"image": values(2, 3, 9, 9, seed=2)})
    single = build_training_graph(parse(text.replace("double", "float"), w=weight.astype(np.float32), pads=PADS))
    onnxruntime.InferenceSession(ir.to_proto(single.model).SerializeToString())

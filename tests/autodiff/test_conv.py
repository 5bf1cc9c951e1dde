"""Conv and ConvTranspose."""

from __future__ import annotations

import numpy as np
import pytest

from ckplan.autodiff.rules import conv_forms
from tests.autodiff.gradcheck import check_gradient, node_model, values
from tests.autodiff.reference_operators import use_reference_operators

pytestmark = pytest.mark.usefixtures("use_reference_operators")
__all__ = ["use_reference_operators"]

FORMS = ("image", "batch", "column", "conv")

#: Input, weight, attributes.
CONVOLUTIONS = [
    pytest.param((2, 3, 8), (4, 3, 3), {}, id="1d"),
    pytest.param((2, 3, 8), (4, 3, 3), {"strides": [2], "pads": [2, 1], "dilations": [2]}, id="1d-all"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 2), {}, id="2d"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 3), {"pads": [1, 1, 1, 1]}, id="same"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 3), {"pads": [2, 0, 1, 2]}, id="uneven-pads"),
    pytest.param((2, 3, 7, 6), (4, 3, 3, 2), {"strides": [2, 3]}, id="strides-with-unread-tail"),
    pytest.param((2, 3, 7, 8), (4, 3, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}, id="strides-padded"),
    pytest.param((2, 3, 7, 8), (4, 3, 3, 2), {"dilations": [2, 3], "pads": [1, 0, 2, 1]}, id="dilations"),
    pytest.param((2, 3, 4, 4), (4, 3, 2, 2), {"pads": [3, 3, 3, 3]}, id="pads-beyond-kernel"),
    pytest.param((2, 3, 5, 6), (4, 3, 1, 1), {}, id="1x1"),
    pytest.param((2, 3, 5, 6), (4, 3, 1, 1), {"strides": [2, 2]}, id="1x1-strides"),
    pytest.param((2, 3, 4, 4), (4, 3, 1, 1), {"pads": [1, 0, 0, 2]}, id="1x1-pads"),
    pytest.param((2, 3, 6, 6), (5, 3, 2, 2), {"strides": [2, 2]}, id="patches"),
    pytest.param((1, 3, 5, 5), (2, 3, 3, 3), {"pads": [1, 1, 1, 1]}, id="one-sample"),
    pytest.param((2, 1, 5, 5), (1, 1, 3, 3), {}, id="one-channel"),
    pytest.param((2, 3, 4, 4), (4, 3, 4, 4), {}, id="one-place"),
    pytest.param((2, 4, 5, 5), (6, 2, 3, 3), {"group": 2, "pads": [1, 1, 1, 1]}, id="groups"),
    pytest.param((2, 4, 6, 5), (6, 2, 3, 2), {"group": 2, "strides": [2, 1], "dilations": [1, 2]}, id="groups-all"),
    pytest.param((2, 4, 5, 5), (6, 2, 1, 1), {"group": 2}, id="groups-1x1"),
    pytest.param((2, 3, 5, 5), (3, 1, 3, 3), {"group": 3, "pads": [1, 1, 1, 1]}, id="depthwise"),
    pytest.param((2, 3, 7, 6), (6, 1, 3, 3), {"group": 3, "strides": [2, 2], "pads": [0, 1, 1, 1]}, id="multiplier"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 2), {"auto_pad": "VALID"}, id="valid"),
    pytest.param((2, 3, 5, 6), (4, 3, 2, 2), {"auto_pad": "SAME_UPPER"}, id="same-upper"),
    pytest.param((2, 3, 5, 6), (4, 3, 2, 2), {"auto_pad": "SAME_LOWER"}, id="same-lower"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 3), {"auto_pad": "SAME_UPPER", "strides": [2, 2]}, id="same-upper-strides"),
    pytest.param((2, 3, 5, 6), (4, 3, 3, 3), {"auto_pad": "SAME_LOWER", "strides": [2, 2]}, id="same-lower-strides"),
    pytest.param((2, 2, 3, 4, 3), (3, 2, 2, 2, 2), {"pads": [1, 0, 0, 0, 1, 1]}, id="3d"),
    pytest.param((2, 2, 4, 4, 5), (2, 1, 2, 2, 3), {"strides": [2, 1, 2], "group": 2}, id="3d-depthwise"),
]

#: Input, weight, attributes.
TRANSPOSED = [
    pytest.param((2, 3, 4), (3, 2, 3), {}, id="1d"),
    pytest.param((2, 3, 4, 3), (3, 4, 2, 3), {}, id="2d"),
    pytest.param((2, 3, 4, 3), (3, 4, 2, 2), {"strides": [2, 2]}, id="upsampling"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "pads": [1, 1, 1, 1]}, id="pads"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 3], "pads": [1, 0, 2, 1]}, id="uneven-pads"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 2), {"dilations": [2, 3], "pads": [1, 0, 0, 1]}, id="dilations"),
    pytest.param(
        (2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "output_padding": [1, 1], "pads": [1, 1, 1, 1]}, id="more"
    ),
    pytest.param((2, 3, 4, 3), (3, 4, 2, 2), {"strides": [2, 2], "output_padding": [1, 0]}, id="more-unpadded"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "output_shape": [8, 6]}, id="output-shape"),
    pytest.param(
        (2, 3, 4, 3),
        (3, 4, 3, 3),
        {"strides": [2, 2], "output_shape": [8, 6], "auto_pad": "SAME_UPPER"},
        id="output-shape-upper",
    ),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_UPPER"}, id="same-upper"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "SAME_LOWER"}, id="same-lower"),
    pytest.param((2, 3, 4, 3), (3, 4, 3, 3), {"strides": [2, 2], "auto_pad": "VALID"}, id="valid"),
    pytest.param((2, 4, 3, 3), (4, 3, 3, 2), {"group": 2, "strides": [2, 1]}, id="groups"),
    pytest.param((2, 3, 3, 3), (3, 1, 3, 3), {"group": 3, "strides": [2, 2], "pads": [1, 1, 1, 1]}, id="depthwise"),
    pytest.param((1, 2, 2, 3, 2), (2, 2, 2, 2, 2), {"strides": [2, 1, 2]}, id="3d"),
]


@pytest.mark.parametrize("form", [None, *FORMS])
@pytest.mark.parametrize(("x", "w", "attributes"), CONVOLUTIONS)
def test_conv(x, w, attributes, form, monkeypatch: pytest.MonkeyPatch):
    if form:
        monkeypatch.setattr(conv_forms, "weight_gradient_form", lambda *_: form)
    inputs = [values(*x), values(*w, seed=1), values(w[0], seed=2)]
    check_gradient(node_model("Conv", *inputs, **attributes), differences=form is None)


@pytest.mark.parametrize(("x", "w", "attributes"), TRANSPOSED)
def test_conv_transpose(x, w, attributes):
    inputs = [values(*x), values(*w, seed=1), values(w[1] * attributes.get("group", 1), seed=2)]
    oracle_knows = not {"auto_pad", "output_shape"} & attributes.keys()
    check_gradient(node_model("ConvTranspose", *inputs, **attributes), torch=oracle_knows)


@pytest.mark.parametrize(
    ("w", "attributes"),
    [((16, 16, 3, 3), {}), ((16, 16, 3, 3), {"pads": [0, 1, 2, 2]}), ((16, 16, 3, 2), {"dilations": [2, 3]})],
)
def test_a_flipped_kernel_gives_the_data_gradient(w, attributes, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(conv_forms, "flips", lambda *_: True)
    check_gradient(node_model("Conv", values(2, 16, 7, 8), values(*w, seed=1), **attributes))


def test_a_large_input_goes_through_the_batch_in_parts():
    model = node_model("Conv", values(7, 9, 5, 5), values(2, 9, 3, 3, seed=1), pads=[1, 1, 1, 1])
    check_gradient(model)


def test_conv_without_bias_and_with_one_gradient_wanted():
    x, w = values(2, 3, 5, 5), values(4, 3, 3, 3, seed=1)
    both = check_gradient(node_model("Conv", x, w), differences=False)
    for name in both:
        model = node_model("Conv", x, w)
        alone = check_gradient(model, differences=False, wrt=[name], idle=set(both) - {name})
        np.testing.assert_array_equal(alone[name], both[name])

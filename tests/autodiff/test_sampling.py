"""Operators that read between elements: GridSample, DeformConv and RoiAlign."""

from __future__ import annotations

import pytest

from tests.autodiff.gradcheck import check_gradient, node_model, values
from tests.autodiff.reference_operators import use_reference_operators

__all__ = ["use_reference_operators"]
pytestmark = pytest.mark.usefixtures("use_reference_operators")


@pytest.mark.parametrize("mode", ["linear", "nearest", "cubic"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample(mode, padding_mode, align_corners):
    x, grid = values(2, 3, 4, 5), values(2, 3, 3, 2, seed=3, low=-1.7, high=1.7)
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    idle = ["p1"] if mode == "nearest" else []
    # onnx's evaluator moves positions of cubic samples onto the border; onnxruntime and torch move their taps.
    differences = (mode, padding_mode) != ("cubic", "border")
    check_gradient(node_model("GridSample", x, grid, **attributes), idle=idle, step=1e-4, differences=differences)


@pytest.mark.parametrize("mode", ["linear", "nearest"])
@pytest.mark.parametrize("padding_mode", ["zeros", "border", "reflection"])
@pytest.mark.parametrize("align_corners", [0, 1])
def test_grid_sample_of_a_volume(mode, padding_mode, align_corners):
    x, grid = values(1, 2, 3, 4, 3), values(1, 2, 2, 3, 3, seed=1, low=-1.7, high=1.7)
    attributes = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    idle = ["p1"] if mode == "nearest" else []
    check_gradient(node_model("GridSample", x, grid, **attributes), idle=idle, step=1e-4)


@pytest.mark.parametrize("wrt", ["p0", "p1"])
def test_grid_sample_by_one_of_its_inputs(wrt):
    model = node_model("GridSample", values(1, 1, 1, 6), values(1, 2, 3, 2, seed=3), padding_mode="border")
    check_gradient(model, wrt=[wrt], idle={"p0", "p1"} - {wrt}, step=1e-4)


def deform_conv(x, w, offset_groups=1, bias=False, mask=False, places=(3, 3), **attributes):
    taps = w[2] * w[3]
    inputs = [
        values(*x),
        values(*w, seed=1),
        values(x[0], offset_groups * taps * 2, *places, seed=2, low=-1.3, high=1.3),
    ]
    inputs.append(values(w[0], seed=3) if bias else None)
    inputs.append(values(x[0], offset_groups * taps, *places, seed=4) if mask else None)
    return node_model("DeformConv", *inputs, offset_group=offset_groups, **attributes)


@pytest.mark.parametrize(
    "model",
    [
        pytest.param(lambda: deform_conv((1, 1, 4, 4), (1, 1, 2, 2)), id="plain"),
        pytest.param(lambda: deform_conv((2, 2, 4, 4), (3, 2, 2, 2), bias=True, mask=True), id="bias-mask"),
        pytest.param(lambda: deform_conv((1, 4, 4, 4), (4, 2, 2, 2), offset_groups=2, mask=True, group=2), id="groups"),
        pytest.param(
            lambda: deform_conv(
                (1, 2, 5, 6), (2, 2, 2, 3), places=(3, 2), pads=[1, 0, 0, 1], strides=[2, 2], dilations=[1, 2]
            ),
            id="window",
        ),
    ],
)
def test_deform_conv(model):
    check_gradient(model(), step=1e-4)


def test_deform_conv_by_its_mask_alone():
    model = deform_conv((1, 2, 4, 4), (2, 2, 2, 2), mask=True)
    check_gradient(model, wrt=["p4"], idle=["p0", "p1", "p2"], step=1e-4)

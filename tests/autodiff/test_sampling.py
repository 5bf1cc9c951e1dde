"""Operators that read between elements or over regions: GridSample, DeformConv, RoiAlign and MaxRoiPool."""

from __future__ import annotations

from math import prod

import numpy as np
import onnx
import onnx_ir as ir
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.rules.sampling import grid_sample
from ckplan.errors import UnsupportedOperatorsError
from tests.autodiff.gradcheck import (
    check_gradient,
    infer,
    node_model,
    onnxruntime_run,
    reference,
    to_dtype,
    values,
)
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


@pytest.mark.parametrize(
    ("mode", "wrt"), [("linear", ["p0", "p1"]), ("linear", ["p0"]), ("cubic", ["p1"]), ("nearest", ["p0"])]
)
def test_a_batch_of_samples_goes_in_parts(mode, wrt, monkeypatch):
    """The numbers are the same to the bit, and no places are made of more than one sample."""
    model = node_model("GridSample", values(3, 2, 4, 5), values(3, 3, 3, 2, seed=3, low=-1.7, high=1.7), mode=mode)
    runs, largest = [], []
    for part in (100, 16):
        monkeypatch.setattr(grid_sample, "_PART", part)
        training = build_training_graph(infer(model), loss="loss", wrt=wrt)
        made = (value for node in training.model.graph for value in node.outputs if value.dtype is not None)
        largest.append(max(prod(value.shape.numpy()) for value in made if value.dtype == ir.DataType.INT32))
        runs.append(onnxruntime_run(training.model))
    assert largest == [3 * 2 * 9, 2 * 9]
    for name, array in runs[0].items():
        np.testing.assert_array_equal(array, runs[1][name])
    check_gradient(model, wrt=wrt, idle={"p0", "p1"} - set(wrt), step=1e-4)


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


ROIS = np.asarray([[0.3, 0.7, 5.2, 6.1], [-3.17, -2.23, 4.31, 3.47], [2.11, 2.33, 2.52, 2.76], [1.1, 3.3, 12.2, 14.3]])


@pytest.mark.parametrize("transformation", ["half_pixel", "output_half_pixel"])
@pytest.mark.parametrize("mode", ["avg", "max"])
@pytest.mark.parametrize("sampling_ratio", [0, 2])
def test_roi_align(transformation, mode, sampling_ratio):
    images = 1 + sampling_ratio // 2
    model = node_model(
        "RoiAlign",
        values(images, 2, 7, 8),
        ROIS,
        np.asarray([0, 1, 1, 0]) % images,
        mode=mode,
        sampling_ratio=sampling_ratio,
        output_height=2,
        output_width=3,
        spatial_scale=0.75,
        coordinate_transformation_mode=transformation,
    )
    fixed = mode == "max" and sampling_ratio == 0
    check_gradient(model, step=1e-5, wrt=["p0"] if fixed else ["p*"], idle=["p1"] if fixed else [], rtol=1e-4)


def test_max_roi_pool():
    rois = np.asarray([[0, 0.3, 0.7, 5.2, 6.1], [1, -3, -2, 4.3, 3.4], [1, 2, 3, 2, 3], [0, 1, 3, 12, 14]])
    model = node_model("MaxRoiPool", values(2, 2, 7, 8), rois, pooled_shape=[2, 3], spatial_scale=0.75)
    check_gradient(model, idle=["p1"])
    single = infer(to_dtype(model, np.float32))
    np.testing.assert_allclose(onnxruntime_run(single)["loss"], reference(model)["loss"], rtol=1e-5)


def test_max_roi_pool_with_regions_computed_at_run_time():
    rois = np.asarray([[0, 0, 1, 3, 2.0], [0, -9, -9, 9, 9]])
    model = node_model("MaxRoiPool", values(1, 2, 4, 5), rois, pooled_shape=[2, 2])
    expected = check_gradient(model, idle=["p1"])["p0"]
    model.graph.node[0].input[1] = "fed"
    model.graph.input.append(onnx.helper.make_tensor_value_info("fed", onnx.TensorProto.DOUBLE, rois.shape))
    training = build_training_graph(infer(model), wrt=["p0"])
    np.testing.assert_allclose(reference(training.model, {"fed": rois})["p0_grad"], expected)


def test_maximum_over_samples_whose_number_is_not_known_is_refused():
    x, rois = values(1, 1, 4, 4), np.zeros((1, 4))
    model = node_model("RoiAlign", x, rois, np.zeros(1, np.int64), mode="max")
    with pytest.raises(UnsupportedOperatorsError, match="regions computed at run time"):
        build_training_graph(infer(model), wrt=["p*"])

"""Resize."""

from __future__ import annotations

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.autodiff.rules.sampling.resampling import Sampling, sampling_matrix
from tests.autodiff.gradcheck import check_gradient, check_second_derivatives, infer, node_model, parse, values

COORDINATES = ["half_pixel", "pytorch_half_pixel", "half_pixel_symmetric", "align_corners", "asymmetric"]
NEAREST = ["round_prefer_floor", "round_prefer_ceil", "floor", "ceil", ""]
#: Elements before, after, and the scale if it is not their ratio.
LENGTHS = [
    (4, 8, None),
    (4, 12, None),
    (5, 7, None),
    (7, 3, None),
    (6, 2, None),
    (3, 1, None),
    (1, 4, None),
    (4, 9, 2.3),
]


def model_of(x, scales=None, sizes=None, roi=None, **attributes) -> onnx.ModelProto:
    inputs = [x, None if roi is None else np.asarray(roi, np.float32)]
    inputs.append(None if scales is None else np.asarray(scales, np.float32))
    if sizes is not None:
        inputs.append(np.asarray(sizes, np.int64))
    while inputs[-1] is None:
        inputs.pop()
    return node_model("Resize", *inputs, **attributes)


def by_onnxruntime(axis: Sampling, **attributes) -> np.ndarray:
    """The sampling matrix: each unit vector resized along the last axis."""
    graph = onnx.helper.make_graph(
        [onnx.helper.make_node("Resize", ["x", "", "scales"], ["y"], **attributes)],
        "g",
        [onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [1, axis.size, 1, axis.size])],
        [onnx.helper.make_empty_tensor_value_info("y")],
        [onnx.numpy_helper.from_array(np.asarray([1, 1, 1, axis.scale], np.float32), "scales")],
    )
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 21)], ir_version=10)
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"x": np.eye(axis.size, dtype=np.float32)[None, :, None, :]})[0][0, :, 0, :].T


@pytest.mark.parametrize(
    ("mode", "antialias"),
    [*((mode, 0) for mode in [*NEAREST, "linear", "cubic", "cubic-inside"]), ("linear", 1), ("cubic", 1)],
)
@pytest.mark.parametrize("coordinates", COORDINATES)
def test_sampling_matrices_are_those_of_onnxruntime(coordinates, mode, antialias):
    attributes = {"coordinate_transformation_mode": coordinates, "antialias": antialias}
    kind = {"coordinates": coordinates, "antialias": bool(antialias)}
    if mode in NEAREST:
        attributes |= {"mode": "nearest", "nearest_mode": mode}
        kind |= {"mode": "nearest", "nearest": mode}
    else:
        attributes |= {"mode": mode.split("-")[0], "exclude_outside": int(mode == "cubic-inside")}
        kind |= {"mode": mode.split("-")[0], "exclude_outside": mode == "cubic-inside"}
    for size, result, scale in LENGTHS:
        axis = Sampling(size, result, float(np.float32(scale or result / size)), **kind)
        exact = axis.scale * size == result
        if int(size * axis.scale) != result or (
            coordinates == "half_pixel_symmetric" and mode == "floor" and not exact
        ):
            # Which of two elements at the same distance it is, is a matter of onnxruntime's rounding there.
            continue
        np.testing.assert_allclose(
            sampling_matrix(axis).dense, by_onnxruntime(axis, **attributes), atol=2e-6, err_msg=f"{size} to {result}"
        )


X = values(2, 3, 4, 5)


@pytest.mark.parametrize("coordinates", COORDINATES)
@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize("sizes", [[2, 3, 8, 10], [2, 3, 7, 3], [2, 3, 4, 5], [2, 3, 1, 9]])
def test_resize(sizes, mode, coordinates):
    oracle_knows = (mode, coordinates) in {("linear", "half_pixel"), ("linear", "align_corners")}
    model = model_of(X, sizes=sizes, mode=mode, coordinate_transformation_mode=coordinates)
    # onnx's evaluator places a single result elsewhere than onnxruntime and the operator's documentation.
    misplaced = mode == "cubic" and coordinates == "pytorch_half_pixel" and 1 in sizes
    check_gradient(model, torch=oracle_knows, differences=not misplaced)


@pytest.mark.parametrize(
    ("shape", "options"),
    [
        ((2, 3, 4), {"scales": [1, 1, 2.5], "mode": "linear"}),
        ((2, 3, 4), {"scales": [1, 1, 3]}),
        ((2, 3, 4, 5), {"scales": [1, 1, 2, 2]}),
        ((2, 3, 4, 5), {"scales": [1, 1, 2, 1]}),
        ((2, 3, 4, 5), {"scales": [1, 1, 2.3, 0.7], "mode": "linear"}),
        ((1, 2, 3, 3, 2), {"scales": [1, 1, 2, 2, 3]}),
        ((1, 2, 3, 3, 2), {"sizes": [1, 2, 5, 2, 4], "mode": "linear"}),
        ((4, 5), {"scales": [2, 2]}),
        ((2, 3, 4, 5), {"sizes": [9, 7], "axes": [2, 3], "mode": "linear"}),
        ((2, 3, 4, 5), {"sizes": [7, 9], "axes": [3, 2], "mode": "linear"}),
        ((2, 3, 4, 5), {"sizes": [7, 8], "axes": [2, 3], "keep_aspect_ratio_policy": "not_larger", "mode": "linear"}),
        ((2, 3, 4, 5), {"sizes": [7, 8], "axes": [2, 3], "keep_aspect_ratio_policy": "not_smaller", "mode": "linear"}),
        ((2, 3, 6, 7), {"sizes": [2, 3, 3, 4], "mode": "linear", "antialias": 1}),
        ((2, 3, 6, 7), {"sizes": [2, 3, 8, 4], "mode": "cubic", "cubic_coeff_a": -0.5, "exclude_outside": 1}),
    ],
)
def test_resize_in_other_ways(shape, options):
    check_gradient(model_of(values(*shape), **options), torch=False, idle=["p2"] if "scales" in options else [])


def test_resize_crops():
    roi = [0, 0, 0.22, -0.3, 1, 1, 0.7, 1.2]
    for mode in ("linear", "nearest"):
        check_gradient(
            model_of(
                X,
                sizes=[2, 3, 6, 7],
                roi=roi,
                mode=mode,
                coordinate_transformation_mode="tf_crop_and_resize",
                extrapolation_value=3.0,
            ),
            torch=False,
            idle=["p1"],
        )


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
@pytest.mark.parametrize(
    ("coordinates", "width"),
    [
        *(("tf_half_pixel_for_nn", width) for width in (1.0, 1.6, 2.0)),
        *(("tf_crop_and_resize", width) for width in (1.0, 1.1, 1.6)),
        *((coordinates, 1.1) for coordinates in COORDINATES),
    ],
)
def test_what_onnxruntime_leaves_alone_passes_its_gradient_on(mode, coordinates, width):
    """It places nothing anew along an axis that is scaled by 1, and copies what keeps its shape, whatever is asked."""
    options = f'<mode = "{mode}", nearest_mode = "ceil", coordinate_transformation_mode = "{coordinates}">'
    shape, wide = (2, 2, 3, 4), int(4 * width)
    model = parse(
        f"g (float[2, 2, 3, 4] x, float[2, 2, 3, {wide}] w) => (float loss) {{"
        f" y = Resize {options} (x, roi, scales) m = Mul(y, w) loss = ReduceSum <keepdims = 0> (m) }}",
        roi=np.asarray([0, 0, 0.2, 0.1, 1, 1, 0.8, 0.7], np.float32),
        scales=np.asarray([1, 1, 1, width], np.float32),
    )
    training = build_training_graph(model, loss="loss", wrt=["x"])
    session = onnxruntime.InferenceSession(ir.to_proto(training.model).SerializeToString())
    weights = np.random.default_rng(0).uniform(0.5, 1.5, (2, 2, 3, wide)).astype(np.float32)
    units = np.eye(np.prod(shape), dtype=np.float32).reshape(-1, *shape)
    slopes = [session.run(["loss"], {"x": unit, "w": weights})[0] for unit in units]
    (found,) = session.run(["x_grad"], {"x": units[0], "w": weights})
    np.testing.assert_allclose(found.reshape(-1), slopes, atol=1e-5)


def test_nearest_upscales_are_one_pool():
    model = model_of(X, scales=[1, 1, 2, 3])
    graph = build_training_graph(infer(model), loss="loss", wrt=["p*"]).model.graph
    backward = [node.op_type for node in graph if node.name and node.name.startswith("node/grad")]
    assert backward == ["AveragePool", "Mul"]


def long_resize(shape: tuple[int, ...], **options) -> onnx.ModelProto:
    """A Resize whose results are squared, so that its second derivative is not zero."""
    model = model_of(values(*shape), **options)
    for node in model.graph.node:
        if node.input[0] == "y0":
            node.input[1] = "y0"
    return model


LONG = [((1, 1, 1, 70), (1, 1, 1, 157)), ((1, 1, 157, 1), (1, 1, 70, 1)), ((1, 1, 1, 30), (1, 1, 1, 147))]
WAYS = [
    (mode, options, *sizes)
    for mode in ("nearest", "linear", "cubic")
    for options in ({}, {"coordinate_transformation_mode": "align_corners"}, {"antialias": 1})
    for sizes in LONG
    # Only what shrinks is filtered.
    if "antialias" not in options or (mode != "nearest" and sizes == LONG[1])
]


@pytest.mark.parametrize(("mode", "options", "shape", "sizes"), WAYS)
def test_long_axes_are_resampled_without_a_matrix(mode, options, shape, sizes):
    model = long_resize(shape, sizes=sizes, mode=mode, **options)
    check_gradient(model, torch=False)
    check_second_derivatives(model)
    training = build_training_graph(infer(model), loss="loss", wrt=["p0"])
    assert "MatMul" not in [node.op_type for node in training.model.graph]


@pytest.mark.parametrize("shape", [(40,), (3, 40), (2, 2, 2, 2, 2, 9)])
def test_repeated_elements_are_added_up_on_any_axis(shape):
    model = long_resize(shape, scales=[2] * len(shape))
    check_gradient(model, torch=False, idle=["p2"])
    check_second_derivatives(model)


def test_a_region_of_one_point_is_added_up_where_it_is():
    """All results are made of two elements: reading as many rows for every element would be a matrix again."""
    options = {"mode": "linear", "coordinate_transformation_mode": "tf_crop_and_resize"}
    model = model_of(values(1, 90), sizes=[1, 80], roi=[0, 0.513, 1, 0.5131], **options)
    check_gradient(model, torch=False, idle=["p1"])
    graph = build_training_graph(infer(model), loss="loss", wrt=["p0"]).model.graph
    assert "ScatterElements" in [node.op_type for node in graph]


@pytest.mark.parametrize("mode", ["nearest", "linear", "cubic"])
def test_constants_of_a_long_resize_grow_with_its_length(mode):
    size, result = 44_100, 96_000
    model = model_of(values(1, 1, size).astype(np.float32), sizes=[1, 1, result], mode=mode)
    training = build_training_graph(infer(model), loss="loss", wrt=["p0"])
    constants = [v.const_value for name, v in training.model.graph.initializers.items() if name[0] not in "pw"]
    assert sum(tensor.nbytes for tensor in constants) < 12 * 8 * result

"""Models of old operator sets compute the same after they are loaded."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
import pytest

from ckplan.autodiff import build_training_graph
from ckplan.model import load, normalise
from ckplan.model.normal_form.converted import put_right
from tests.autodiff.gradcheck import values

RNG = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return RNG.uniform(0.3, 1.7, shape).astype(np.float32)


def ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, dtype=np.int64)


REGIONS = np.asarray([[0.2, 0.3, 3.1, 3.2]], np.float32)
TWICE = np.asarray([1, 1, 2, 2], np.float32)
HALF = np.asarray([1, 1, 0.5, 0.5], np.float32)
NOTHING = np.zeros(0, np.float32)
_TENSORFLOW = {"coordinate_transformation_mode": "tf_half_pixel_for_nn"}

#: Operator, its operator set, what it reads beside a tensor of this shape, attributes.
CASES = [
    ("Upsample", 7, (1, 2, 3, 3), [], {"scales": [1.0, 1.0, 2.0, 2.0]}),
    ("Upsample", 9, (1, 2, 3, 3), [TWICE], {}),
    ("Upsample", 9, (1, 2, 3, 3), [TWICE], {"mode": "linear"}),
    ("Resize", 10, (1, 2, 3, 3), [TWICE], {"mode": "linear"}),
    ("Resize", 10, (1, 2, 4, 4), [HALF], {}),
    ("Resize", 10, (1, 1, 2, 4), [np.asarray([1, 1, 0.6, 0.6], np.float32)], {}),
    ("Resize", 10, (1, 1, 5, 4), [np.asarray([1, 1, 1.7, 0.6], np.float32)], {}),
    ("Resize", 11, (1, 2, 3, 3), [NOTHING, TWICE], {"mode": "cubic"}),
    *(
        ("Resize", 11, (1, 1, 5, 4), [NOTHING, scales], _TENSORFLOW | {"nearest_mode": mode})
        for mode in ("floor", "ceil", "round_prefer_floor", "round_prefer_ceil")
        for scales in (TWICE, np.asarray([1, 1, 0.6, 0.7], np.float32))
    ),
    ("Pad", 7, (3, 3), [], {"pads": [1, 0, 0, 1], "mode": "edge", "value": 2.5}),
    ("Scatter", 9, (3, 3), [ints(1, 0, 2).reshape(1, 3), floats(1, 3)], {}),
    ("Clip", 7, (3, 3), [], {"min": 0.5, "max": 1.2}),
    ("Pad", 7, (3, 3), [], {"pads": [1, 0, 0, 1], "mode": "reflect"}),
    ("Slice", 7, (4, 5), [], {"starts": [1], "ends": [3], "axes": [1]}),
    ("Squeeze", 7, (1, 4), [], {"axes": [0]}),
    ("Unsqueeze", 7, (4,), [], {"axes": [0]}),
    ("ReduceSum", 11, (2, 3), [], {"axes": [1], "keepdims": 0}),
    ("ReduceMax", 11, (2, 3), [], {"axes": [-1]}),
    ("ReduceLogSumExp", 13, (2, 3), [], {"axes": [-1]}),
    ("Softmax", 11, (2, 3, 4), [], {"axis": 1}),
    ("LogSoftmax", 9, (2, 3, 4), [], {}),
    ("BatchNormalization", 7, (2, 3, 2, 2), [floats(3), floats(3), floats(3), floats(3)], {}),
    ("BatchNormalization", 9, (2, 3, 2, 2), [floats(3), floats(3), floats(3), floats(3)], {}),
    ("Dropout", 7, (2, 3), [], {"ratio": 0.3}),
    ("Gemm", 7, (2, 3), [floats(3, 4), floats(4)], {}),
    ("GroupNormalization", 18, (2, 4, 3), [floats(2), floats(2)], {"num_groups": 2}),
    ("GridSample", 16, (1, 1, 3, 3), [floats(1, 2, 2, 2)], {"mode": "bicubic"}),
    ("RoiAlign", 10, (1, 1, 5, 5), [REGIONS, ints(0)], {"output_height": 2, "output_width": 2}),
    ("RoiAlign", 16, (1, 1, 5, 5), [REGIONS, ints(0)], {"output_height": 2, "output_width": 2}),
    ("AveragePool", 7, (1, 1, 4, 4), [], {"kernel_shape": [2, 2], "count_include_pad": 1, "pads": [1, 1, 1, 1]}),
    *(
        (op_type, 19, (1, 2, 2, 5), [], {"kernel_shape": [3, 3], "pads": [1] * 4, "strides": [3, 3], "ceil_mode": 1})
        for op_type in ("AveragePool", "MaxPool", "LpPool")
    ),
    ("DFT", 17, (1, 4, 3, 1), [], {"axis": 1}),
    ("STFT", 17, (1, 8, 1), [np.asarray(2), floats(4)], {}),
    ("Mod", 10, (3, 3), [floats(3, 3)], {"fmod": 1}),
    ("Compress", 9, (4, 2), [np.asarray([1, 0, 1, 1], bool)], {"axis": 0}),
]
#: Those that have no gradient.
WITHOUT_GRADIENT = [
    ("Hardmax", 11, (2, 3, 4), [], {}),
    ("Hardmax", 9, (2, 3, 4), [], {"axis": 2}),
]


def run(model: onnx.ModelProto, feeds: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


@pytest.mark.parametrize(
    ("op_type", "opset", "shape", "rest", "attributes"), CASES, ids=[f"{case[0]}-{case[1]}" for case in CASES]
)
def test_meaning_is_kept(op_type, opset, shape, rest, attributes):
    names = ["x", *(f"c{index}" for index in range(len(rest)))]
    nodes = [
        onnx.helper.make_node("Add", ["w", "zero"], ["x"]),
        onnx.helper.make_node(op_type, names, ["y"], **attributes),
        onnx.helper.make_node("Mul", ["y", "y"], ["out"]),
    ]
    start = values(*shape, low=0.3, high=1.7).astype(np.float32)
    arrays = {"w": start, **dict(zip(names[1:], rest, strict=True))}
    graph = onnx.helper.make_graph(
        nodes,
        "g",
        [onnx.helper.make_tensor_value_info("zero", onnx.TensorProto.FLOAT, shape)],
        [onnx.helper.make_empty_tensor_value_info("out")],
        [onnx.numpy_helper.from_array(array, name) for name, array in arrays.items()],
    )
    graph.output[0].type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", opset)], ir_version=4)
    feeds = {"zero": np.zeros(shape, np.float32)}
    expected = run(model, feeds)["out"]
    loaded = normalise(ir.from_proto(model)).model
    np.testing.assert_allclose(run(ir.to_proto(loaded), feeds)["out"], expected, rtol=1e-5, atol=1e-6)
    training = build_training_graph(loaded, loss="sum", wrt=["w"])
    proto = ir.to_proto(training.model)
    gradient = run(proto, feeds)[training.gradients["w"]]
    direction = np.random.default_rng(1).uniform(-1, 1, shape).astype(np.float32)

    def loss(step: float) -> float:
        return float(run(proto, {**feeds, "w": start + np.float32(step) * direction})[training.loss])

    slope = (loss(0.005) - loss(-0.005)) / 0.01
    along = gradient * direction
    assert float(along.sum()) == pytest.approx(slope, rel=0.02, abs=0.02 * float(np.abs(along).sum()) + 1e-3)


@pytest.mark.parametrize("dtype", [np.float16, np.float64])
@pytest.mark.parametrize(
    ("op_type", "attributes", "expected"),
    [
        ("Clip", {"min": 0.5, "max": 1.5}, [0.5, 1.5, 1.0]),
        ("Clip", {"min": 0.5}, [0.5, 2.0, 1.0]),
        ("Pad", {"pads": [1, 0], "value": 0.5}, [0.5, 0.25, 2.0, 1.0]),
    ],
)
def test_attributes_that_are_inputs_since_have_the_type_of_the_data(op_type, attributes, expected, dtype):
    kind = onnx.helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    nodes = [onnx.helper.make_node("Neg", ["x"], ["h"]), onnx.helper.make_node(op_type, ["h"], ["y"], **attributes)]
    ends = [onnx.helper.make_tensor_value_info(name, kind, [len(n)]) for name, n in (("x", "abc"), ("y", expected))]
    graph = onnx.helper.make_graph(nodes, "g", ends[:1], ends[1:])
    model = onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 9)], ir_version=4)
    loaded = normalise(ir.from_proto(model)).model
    found = run(ir.to_proto(loaded), {"x": np.asarray([-0.25, -2, -1], dtype)})["y"]
    assert found.dtype == dtype
    assert found.tolist() == expected


@pytest.mark.parametrize("opset", [11, 21])
@pytest.mark.parametrize(
    ("op_type", "own", "shape", "rest", "attributes"),
    [*CASES, *WITHOUT_GRADIENT],
    ids=[f"{case[0]}-{case[1]}" for case in [*CASES, *WITHOUT_GRADIENT]],
)
def test_functions_mean_what_they_mean_in_their_own_operator_set(op_type, own, shape, rest, attributes, opset):
    if own > opset:
        pytest.skip("a function of a newer operator set than its model is refused")
    names = ["x", *(f"c{index}" for index in range(len(rest)))]
    node = onnx.helper.make_node(op_type, names, ["y"], **attributes)
    tensors = [onnx.numpy_helper.from_array(array, name) for array, name in zip(rest, names[1:], strict=True)]
    feeds = {"x": values(*shape, low=0.3, high=1.7).astype(np.float32)}
    x = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, shape)
    y = onnx.helper.make_empty_tensor_value_info("y")
    y.type.tensor_type.elem_type = onnx.TensorProto.FLOAT
    plain = onnx.helper.make_graph([node], "g", [x], [y], tensors)
    expected = run(
        onnx.helper.make_model(plain, opset_imports=[onnx.helper.make_opsetid("", own)], ir_version=4), feeds
    )["y"]
    function = onnx.helper.make_function("local", "F", names, ["y"], [node], [onnx.helper.make_opsetid("", own)])
    call = onnx.helper.make_node("F", names, ["y"], domain="local")
    imports = [onnx.helper.make_opsetid("", opset), onnx.helper.make_opsetid("local", 1)]
    graph = onnx.helper.make_graph([call], "g", [x], [y], tensors)
    model = onnx.helper.make_model(graph, opset_imports=imports, functions=[function], ir_version=8)
    loaded = normalise(ir.from_proto(model)).model
    np.testing.assert_allclose(run(ir.to_proto(loaded), feeds)["y"], expected, rtol=1e-5, atol=1e-6)


def test_scales_of_an_old_resize_may_be_fed():
    """Which way each axis is resampled is decided when it runs, if it is not known before."""
    text = """<ir_version: 4, opset_import: ["" : 10]>
    g (float[1,1,5,4] x, float[4] scales) => (float y) { a = Resize(x, scales) y = ReduceSum<keepdims=0>(a) }"""
    model = onnx.parser.parse_model(text)
    x = values(1, 1, 5, 4).astype(np.float32)
    lifted = ir.from_proto(onnx.version_converter.convert_version(model, 21))
    put_right(lifted)
    for scales in ([1, 1, 1.7, 0.6], [1, 1, 0.6, 0.6], [1, 1, 2, 2.5]):
        feeds = {"x": x, "scales": np.asarray(scales, np.float32)}
        assert run(ir.to_proto(lifted), feeds)["y"] == pytest.approx(run(model, feeds)["y"], rel=1e-6)


def test_the_case_of_onnx_for_an_old_nearest_resize():
    """resize_downsample_nearest of opset 10 takes the element behind."""
    text = """<ir_version: 4, opset_import: ["" : 10]>
    g (float[1,1,2,4] zero) => (float[1,1,1,2] y) { x = Add(w, zero) y = Resize(x, scales) }"""
    model = onnx.parser.parse_model(text)
    w = np.arange(1, 9, dtype=np.float32).reshape(1, 1, 2, 4)
    scales = np.asarray([1, 1, 0.6, 0.6], np.float32)
    arrays = {"w": w, "scales": scales}
    model.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in arrays.items())
    training = build_training_graph(normalise(ir.from_proto(model)).model, loss="sum", wrt=["w"])
    found = run(ir.to_proto(training.model), {"zero": np.zeros_like(w)})
    assert found[training.loss] == 4
    np.testing.assert_array_equal(found[training.gradients["w"]].reshape(2, 4), [[1, 0, 1, 0], [0, 0, 0, 0]])


def test_attributes_that_are_inputs_since_need_no_mention(tmp_path: Path) -> None:
    model = onnx.parser.parse_model("""
    <ir_version: 4, opset_import: ["" : 9]>
    g (float[2,3] x) => (float[2,4] y) {
        h = MatMul(x, w)
        y = Clip <min = 0.0, max = 6.0> (h)
    }""")
    model.graph.initializer.append(onnx.numpy_helper.from_array(np.ones((3, 4), np.float32), "w"))
    onnx.save(model, tmp_path / "m.onnx")
    training = build_training_graph(load(tmp_path / "m.onnx").model)
    assert list(training.gradients) == ["w"]
    assert not [note for note in training.notes if "not trained" in note]

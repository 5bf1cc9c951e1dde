"""What `workspace` says of onnxruntime's kernels, asked of each kernel: how high does the arena rise while it runs?"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ckplan.runtime.cpu import CPU
from ckplan.runtime.kernels.workspace import workspace_of
from ckplan.runtime.sizes import hide_dimensions
from tests.runtime.forked import workspace_seen
from tests.writer.runtime import profile

SHAPE = (8, 32, 32, 32)
SIZE = 8 * 32 * 32 * 32 * 4


def probe(op_type: str, extra: list[np.ndarray], attributes: dict[str, Any]) -> onnx.ModelProto:
    """A model that makes a tensor and runs one kernel on it; the tensor is an output, so nothing is overwritten."""
    initializers = [numpy_helper.from_array(array, f"extra{index}") for index, array in enumerate(extra)]
    given = ["before", *(tensor.name for tensor in initializers)]
    nodes = [
        helper.make_node("Neg", ["x"], ["before"], name="before"),
        helper.make_node("Greater", ["x", "zero"], ["condition"], name="condition"),
        helper.make_node(
            op_type,
            ["condition", "before", "zero"] if op_type == "Where" else given,
            ["y"],
            name="probed",
            **attributes,
        ),
    ]
    if op_type != "Where":
        del nodes[1]
    else:
        initializers.append(numpy_helper.from_array(np.zeros((1, 1, 1, 1), np.float32), "zero"))
    graph = helper.make_graph(
        nodes,
        "probe",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, SHAPE)],
        [helper.make_tensor_value_info("before", TensorProto.FLOAT, SHAPE), onnx.ValueInfoProto(name="y")],
        initializers,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 21)], ir_version=10)
    return onnx.shape_inference.infer_shapes(model)


WEIGHT = np.ones((512, 32, 3, 3), np.float32)
CASES: dict[str, tuple[str, list[np.ndarray], dict[str, Any]]] = {
    "where": ("Where", [], {}),
    "softmax over channels": ("Softmax", [], {"axis": 1}),
    "softmax over the last axis": ("Softmax", [], {"axis": -1}),
    "sum of three": ("Sum", [np.ones(SHAPE, np.float32)] * 2, {}),
    "sum of two": ("Sum", [np.ones(SHAPE, np.float32)], {}),
    "local response normalisation": ("LRN", [], {"size": 5}),
    "einsum": ("Einsum", [], {"equation": "nchw->nwhc"}),
    "convolution with few filters": ("Conv", [WEIGHT[:64]], {"pads": [1, 1, 1, 1]}),
    "convolution with many filters": ("Conv", [WEIGHT], {"pads": [1, 1, 1, 1]}),
    "convolution with strides, of one place": ("Conv", [np.ones((64, 32, 1, 1), np.float32)], {"strides": [2, 2]}),
    "convolution of one place": ("Conv", [np.ones((64, 32, 1, 1), np.float32)], {}),
    "convolution of one place, as large as before": (
        "Conv",
        [np.ones((64, 32, 1, 1), np.float32)],
        {"auto_pad": "SAME_UPPER"},
    ),
    "convolution by groups": ("Conv", [np.ones((32, 1, 3, 3), np.float32)], {"group": 32, "pads": [1, 1, 1, 1]}),
    "transposed convolution": ("ConvTranspose", [np.ones((32, 16, 3, 3), np.float32)], {}),
    "mean": ("ReduceMean", [np.array([0, 2, 3])], {}),
    "transpose": ("Transpose", [], {"perm": [0, 2, 3, 1]}),
}


@pytest.mark.parametrize("case", CASES)
def test_is_what_the_arena_shows(case: str) -> None:
    op_type, extra, attributes = CASES[case]
    model = probe(op_type, extra, attributes)
    event = next(
        event
        for event in profile(
            model, {"x": np.ones(SHAPE, np.float32)}, priority=True, optimise=False, threads=CPU.threads
        )
        if event["name"] == "probed"
    )
    seen = int(event["mem_in_use_peak"]) - int(event["mem_bytes_in_use"])
    node = next(node for node in ir.serde.deserialize_model(model).graph if node.name == "probed")
    # The arena may hand out a free chunk of up to twice the size that was asked for.
    assert 0.9 * CPU.workspace(node, CPU.threads) <= seen <= 2 * CPU.workspace(node, CPU.threads) + SIZE / 4


@pytest.mark.parametrize(
    ("inputs", "causal", "expected"),
    [
        ("q, k, v", 0, 4 * 8 * 128 * 128),
        ("q, k, v", 1, 4 * 8 * 128 * 128 + 128 * 128),
        ("q, k, v, masked", 0, 4 * 8 * 128 * 128 + 8 * 128 * 128),
        ("q, k, v, bias", 0, 4 * 8 * 128 * 128),
        ("q, k, v, bias", 1, 4 * 8 * 128 * 128 + 8 * 128 * 128),
        ('q, k, v, "", past, past', 1, 4 * 8 * 128 * 160 + 128 * 160),
        ('one, k, v, "", past, past', 1, 4 * 8 * 160),
    ],
)
def test_attention_as_one_node(inputs: str, causal: int, expected: int) -> None:
    made = "y, keys, values" if "past" in inputs else "y"
    text = f"""<ir_version: 11, opset_import: ["" : 23]>
    g (float[4,128,64] x, float[4,1,64] one, float[4,128,32] k, float[4,128,32] v, float[4,4,32,8] past,
       bool[8,128,128] masked, float[8,128,128] bias) => (float[N,M,K] y) {{
        q = Neg(x)
        {made} = Attention <is_causal = {causal}, q_num_heads = 8, kv_num_heads = 4> ({inputs})
    }}"""
    model = onnx.shape_inference.infer_shapes(onnx.parser.parse_model(text))
    model.graph.node[-1].name = "probed"
    node = next(node for node in ir.serde.deserialize_model(model).graph if node.name == "probed")
    feeds = {
        value.name: np.zeros(value.shape.numpy(), value.dtype.numpy())
        for value in ir.serde.deserialize_model(model).graph.inputs
    }
    events = profile(model, feeds, priority=True, optimise=False, threads=1)
    event = next(event for event in events if event["name"] == "probed")
    assert workspace_of(node, 1) == 4 * expected
    # As above.
    assert 4 * expected <= int(event["mem_in_use_peak"]) - int(event["mem_bytes_in_use"]) <= 8 * expected


MAPS, BYTES = "float[2,16,24,24] m", "uint8[2,16,24,24] m"
EXACTLY = {
    "deformed": ("DeformConv (m, w, o)", f"{MAPS}, float[8,16,3,3] w, float[2,18,22,22] o", "float[2,8,22,22]"),
    "deformed by groups": (
        "DeformConv <group = 2, offset_group = 2> (m, w, o)",
        "float[2,16,23,21] m, float[8,8,3,3] w, float[2,36,21,19] o",
        "float[2,8,21,19]",
    ),
    "deformed, one place": (
        "DeformConv (m, w, o)",
        f"{MAPS}, float[8,16,1,1] w, float[2,2,24,24] o",
        "float[2,8,24,24]",
    ),
    "deformed, in double precision": (
        "DeformConv (m, w, o)",
        "double[2,16,24,24] m, double[8,16,3,3] w, double[2,18,22,22] o",
        "double[2,8,22,22]",
    ),
    "integers": ("ConvInteger <group = 4> (m, w)", f"{BYTES}, uint8[8,4,3,3] w", "int32[2,8,22,22]"),
    "integers, one place": ("ConvInteger (m, w)", f"{BYTES}, uint8[8,16,1,1] w", "int32[2,8,24,24]"),
    "integers, one place, padded": (
        "ConvInteger <pads = [1, 1, 1, 1]> (m, w)",
        f"{BYTES}, uint8[8,16,1,1] w",
        "int32[2,8,26,26]",
    ),
    "quantised": (
        "QLinearMatMul (m, s, p, w, s, p, s, p)",
        "uint8[7,200,100] m, uint8[100,300] w, float s, uint8 p",
        "uint8[7,200,300]",
    ),
    "largest over channels": ("Hardmax <axis = 1> (m)", MAPS, "float[2,16,24,24]"),
    "largest over the last axis": ("Hardmax (m)", MAPS, "float[2,16,24,24]"),
    "mean and variance": ("MeanVarianceNormalization (m)", MAPS, "float[2,16,24,24]"),
    "mean and variance of samples": (
        "MeanVarianceNormalization <axes = [1, 2, 3]> (m)",
        MAPS,
        "float[2,16,24,24]",
    ),
}


def told_and_seen(call: str, inputs: str, made: str, **constants: np.ndarray) -> tuple[int, int]:
    """What is said of a kernel, and what the arena shows."""
    text = f"""<ir_version: 10, opset_import: ["": 22]> g ({inputs}, float[1] before) => ({made} y, float[1] first)
    {{ first = Neg(before) y = {call} }}"""
    parsed = onnx.parser.parse_model(text)
    parsed.graph.initializer.extend(numpy_helper.from_array(array, name) for name, array in constants.items())
    parsed.graph.node[1].name = "probed"
    model = ir.serde.deserialize_model(parsed)
    feeds = {value.name: np.ones(value.shape.numpy(), value.dtype.numpy()) for value in model.graph.inputs}
    seen = workspace_seen(parsed.SerializeToString(), feeds, "probed")
    return workspace_of(model.graph[-1], CPU.threads), seen


@pytest.mark.parametrize("case", EXACTLY)
def test_is_exactly_what_the_arena_shows(case: str) -> None:
    told, seen = told_and_seen(*EXACTLY[case])
    assert told == seen


@pytest.mark.parametrize(
    ("before", "scales", "after"),
    [
        ("3,5,24,40", (1, 1, 0.5, 0.25), "3,5,12,10"),
        ("1,5,24,40", (1, 1, 2, 1), "1,5,48,40"),
        ("3,24,40,5", (1, 0.5, 2, 1), "3,12,80,5"),
        ("24,40", (2, 2), "48,80"),
    ],
)
def test_a_resize_that_smooths_takes_a_sample_and_small_tables(
    before: str, scales: tuple[float, ...], after: str
) -> None:
    call = 'Resize <mode = "linear", antialias = 1> (m, "", scales)'
    told, seen = told_and_seen(call, f"float[{before}] m", f"float[{after}]", scales=np.array(scales, np.float32))
    assert told <= seen <= told + 2048


@pytest.mark.parametrize(
    ("call", "made", "samples"),
    [
        ('DFT (a, "", one)', "4,100,32,2", 256),
        ('DFT (a, "", two)', "4,100,32,2", 0),
        ("DFT (a, size, two)", "4,100,24,2", 64),
        ('DFT <inverse = 1> (a, "", one)', "4,100,32,2", 256),
        ('DFT <onesided = 1> (b, "", one)', "4,51,32,2", 256),
        ("STFT (c, size, window)", "4,16,13,2", 64),
        ('STFT (c, size, "", size)', "4,16,13,2", 64),
    ],
)
def test_transforms_whose_length_is_no_power_of_two(call: str, made: str, samples: int) -> None:
    inputs = "float[4,100,32,2] a, float[4,100,32,1] b, float[4,400,1] c, float[24] window"
    sizes = {"one": np.array(1), "two": np.array(2), "size": np.array(24)}
    told, seen = told_and_seen(call, inputs, f"float[{made}]", **sizes)
    assert told == seen == 4 * 8 * samples


@pytest.mark.parametrize(("axis", "copies"), [(-1, 0), (1, 2), (3, 0)])
def test_a_softmax_whose_shape_onnxruntime_is_not_shown(axis: int, copies: int) -> None:
    """Shapes are hidden, for it would give a dead buffer to what is of the same; the last axis is still the last."""
    floats = ir.TensorType(ir.DataType.FLOAT)
    read, made = (ir.Value(name=name, type=floats) for name in "xy")
    for value in (read, made):
        hide_dimensions(value, SHAPE)
    node = ir.Node("", "Softmax", [read], [ir.AttrInt64("axis", axis)], outputs=[made])
    assert workspace_of(node, CPU.threads) == copies * SIZE


def test_a_convolution_that_makes_nothing_takes_nothing() -> None:
    """Sizes are what a file says; those of a damaged one may leave no place in the output."""
    floats = ir.TensorType(ir.DataType.FLOAT)
    data, weight, made = (
        ir.Value(name=name, shape=ir.Shape(shape), type=floats)
        for name, shape in (("x", [1, 4, 2, 2]), ("w", [8, 4, 3, 3]), ("y", [1, 8, 0, 0]))
    )
    assert workspace_of(ir.Node("", "Conv", [data, weight], outputs=[made]), CPU.threads) == 0

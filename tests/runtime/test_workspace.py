"""What `workspace` says of onnxruntime's kernels, asked of each kernel: how high does the arena rise while it runs?"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper

from ckplan.runtime.cpu import CPU
from ckplan.runtime.sizes import hide_dimensions
from ckplan.runtime.workspace import workspace_of
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


@pytest.mark.parametrize(
    ("call", "samples"),
    [
        ('DFT (a, "", one)', 256),
        ('DFT (a, "", two)', 0),
        ("DFT (a, size, two)", 64),
        ('DFT <inverse = 1> (a, "", one)', 256),
        ('DFT <onesided = 1> (b, "", one)', 256),
        ("STFT (c, size, window)", 64),
        ('STFT (c, size, "", size)', 64),
    ],
)
def test_transforms_whose_length_is_no_power_of_two(call: str, samples: int) -> None:
    text = f"""<ir_version: 9, opset_import: ["" : 20]>
    g (float[4,100,32,2] x, float[4,100,32,1] r, float[4,400,1] s, float[24] window) => (float[N,M,K,L] y) <
        int64 one = {{1}}, int64 two = {{2}}, int64 size = {{24}}
    > {{ a = Neg(x) b = Neg(r) c = Neg(s) y = {call} }}"""
    parsed = onnx.parser.parse_model(text)
    for name, number in {"one": 1, "two": 2, "size": 24}.items():
        kept = next(tensor for tensor in parsed.graph.initializer if tensor.name == name)
        kept.CopyFrom(numpy_helper.from_array(np.array(number), name))  # a number, not a list of one
    model = onnx.shape_inference.infer_shapes(parsed)
    model.graph.node[-1].name = "probed"
    node = next(node for node in ir.serde.deserialize_model(model).graph if node.name == "probed")
    assert workspace_of(node, 1) == 4 * 8 * samples
    feeds = {
        value.name: np.ones(value.shape.numpy(), np.float32) for value in ir.serde.deserialize_model(model).graph.inputs
    }
    assert workspace_seen(model.SerializeToString(), feeds, "probed") == 4 * 8 * samples


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

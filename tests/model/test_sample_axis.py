"""What operators do sample by sample: each is run on all samples and on a block of them, in onnxruntime."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
import onnx.defs
import onnx_ir as ir
import onnxruntime as ort
import pytest
from onnx import helper, numpy_helper

from ckplan.model.sample_axis import KNOWN, TO_SHAPE, along_samples

SAMPLES = 4
Shape = tuple[int, ...]


@dataclass(frozen=True)
class Case:
    """A node, and along which axis samples lie.

    Attributes:
        op_type: its operator.
        shapes: of its inputs that are fed; an empty name of a constant stands in their row.
        axes: of each input, None where it does not depend on samples.
        axis: that its outputs should have; None: it mixes samples.
        attributes: of the node.
        constants: inputs that are fixed in the file, by their place.
        kind: element type of what is fed.
        outputs: how many.
    """

    op_type: str
    shapes: tuple[Shape, ...]
    axes: tuple[int | None, ...]
    axis: int | None
    attributes: dict[str, Any] = field(default_factory=dict)
    constants: dict[int, np.ndarray] = field(default_factory=dict)
    kind: type = np.float32
    outputs: int = 1


def ints(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, np.int64)


PICTURE = (SAMPLES, 4, 6, 6)
_OF_INTEGERS = {"BitwiseAnd", "BitwiseNot", "BitwiseOr", "BitwiseXor"}
_OF_BOOLEANS = {"And", "Not", "Or", "Xor"}


def _element_by_element() -> list[Case]:
    """Operators of one shape, and of operands that broadcast."""
    cases = []
    others = set(CASES_BY_HAND)
    for name in sorted(KNOWN - others):
        kind = np.int64 if name in _OF_INTEGERS else bool if name in _OF_BOOLEANS else np.float32
        most = onnx.defs.get_schema(name, 21 if name != "Swish" else 24).max_input
        if most == 1:
            attributes = {"to": onnx.TensorProto.INT32} if name == "Cast" else {}
            cases.append(Case(name, ((3, SAMPLES, 5),), (1,), 1, attributes, kind=kind))
            continue
        operands: list[tuple[tuple[Shape, ...], tuple[int | None, ...], int | None]] = [
            (((SAMPLES, 3, 5), (SAMPLES, 3, 5)), (0, 0), 0),
            (((3, SAMPLES, 5), (SAMPLES, 1)), (1, None), 1),
            (((SAMPLES, 3, 5), (3, 5)), (0, None), 0),
        ]
        if name != "PRelu":  # whose second operand alone is stretched
            operands += [(((5,), (SAMPLES, 3, 5)), (None, 0), 0), (((SAMPLES, 1), (SAMPLES, SAMPLES)), (0, 1), None)]
        attributes = {"fmod": 1} if name == "Mod" else {}
        cases += [Case(name, *given, attributes, kind=kind) for given in operands]
    return cases


CASES_BY_HAND: dict[str, list[Case]] = {
    "Where": [
        Case("Where", ((SAMPLES, 1), (SAMPLES, 3), (3,)), (0, 0, None), 0),
        Case("Where", ((3,), (SAMPLES, 3), (SAMPLES, 3)), (None, None, 0), 0),
    ],
    "Clip": [Case("Clip", ((SAMPLES, 3),), (0, None, None), 0, constants={1: np.float32(-0.5), 2: np.float32(0.5)})],
    "Conv": [Case("Conv", (PICTURE, (2, 4, 3, 3), (2,)), (0, None, None), 0)],
    "ConvTranspose": [
        Case("ConvTranspose", (PICTURE, (4, 2, 3, 3)), (0, None), 0),
        Case("ConvTranspose", ((2, SAMPLES, 6, 6), (SAMPLES, 2, 3, 3)), (1, None), None),
    ],
    "AveragePool": [Case("AveragePool", (PICTURE,), (0,), 0, {"kernel_shape": [2, 2]})],
    "MaxPool": [
        Case("MaxPool", (PICTURE,), (0,), 0, {"kernel_shape": [2, 2], "strides": [2, 2]}),
        Case("MaxPool", (PICTURE,), (0,), None, {"kernel_shape": [2, 2]}, outputs=2),
    ],
    "LpPool": [Case("LpPool", (PICTURE,), (0,), 0, {"kernel_shape": [2, 2]})],
    **{name: [Case(name, (PICTURE,), (0,), 0)] for name in ("GlobalAveragePool", "GlobalLpPool", "GlobalMaxPool")},
    "LRN": [Case("LRN", (PICTURE,), (0,), 0, {"size": 3})],
    "DepthToSpace": [Case("DepthToSpace", (PICTURE,), (0,), 0, {"blocksize": 2})],
    "SpaceToDepth": [Case("SpaceToDepth", (PICTURE,), (0,), 0, {"blocksize": 2})],
    "InstanceNormalization": [Case("InstanceNormalization", (PICTURE, (4,), (4,)), (0, None, None), 0)],
    "GroupNormalization": [
        Case("GroupNormalization", (PICTURE, (4,), (4,)), (0, None, None), 0, {"num_groups": 2}),
        Case("GroupNormalization", ((2, SAMPLES, 6), (4,), (4,)), (1, None, None), None, {"num_groups": 2}),
    ],
    "BatchNormalization": [
        Case("BatchNormalization", (PICTURE, *[(4,)] * 4), (0, *[None] * 4), 0),
        Case("BatchNormalization", (PICTURE, *[(4,)] * 4), (0, *[None] * 4), None, {"training_mode": 1}, outputs=3),
    ],
    "Resize": [
        Case("Resize", (PICTURE,), (0, None, None), 0, constants={2: np.asarray([1, 1, 2, 2], np.float32)}),
        Case("Resize", (PICTURE,), (0, None, None, None), 0, {"axes": [2, 3]}, {3: ints(9, 3)}),
        Case("Resize", (PICTURE,), (0, None, None, None), None, constants={3: ints(SAMPLES, 4, 9, 9)}),
    ],
    "GridSample": [
        Case("GridSample", (PICTURE, (SAMPLES, 5, 5, 2)), (0, 0), 0),
        Case("GridSample", (PICTURE, (SAMPLES, 5, 5, 2)), (0, None), 0),
        Case("GridSample", (PICTURE, (SAMPLES, 5, 5, 2)), (None, 0), 0),
        Case("GridSample", (PICTURE, (SAMPLES, 5, 5, 2)), (0, 1), None),
    ],
    "MatMul": [
        Case("MatMul", ((SAMPLES, 3), (3, 5)), (0, None), 0),
        Case("MatMul", ((3, 5), (5, SAMPLES)), (None, 1), 1),
        Case("MatMul", ((SAMPLES, 2, 3), (3, 5)), (0, None), 0),
        Case("MatMul", ((2, SAMPLES, 3), (7, 1, 3, 5)), (1, None), 2),
        Case("MatMul", ((SAMPLES, 2, 3), (SAMPLES, 3, 5)), (0, 0), 0),
        Case("MatMul", ((SAMPLES, 2, 3), (SAMPLES, 3, 5)), (None, 0), 0),
        Case("MatMul", ((2, SAMPLES, 3), (3,)), (1, None), 1),
        Case("MatMul", ((2, 3, SAMPLES), (SAMPLES, 5)), (2, None), None),
        Case("MatMul", ((2, SAMPLES, 3), (2, 3, SAMPLES)), (1, 2), None),
        Case("MatMul", ((SAMPLES, 3), (3,)), (0, 0), None),
    ],
    "Gemm": [
        Case("Gemm", ((SAMPLES, 3), (3, 5), (5,)), (0, None, None), 0),
        Case("Gemm", ((3, SAMPLES), (3, 5), (SAMPLES, 5)), (1, None, None), 0, {"transA": 1}),
        Case("Gemm", ((SAMPLES, 3), (5, 3), (SAMPLES, 5)), (0, None, 0), 0, {"transB": 1}),
        Case("Gemm", ((3, SAMPLES), (3, 5)), (0, None), None, {"transA": 1}),
    ],
    "Transpose": [
        Case("Transpose", ((SAMPLES, 3, 5),), (0,), 2),
        Case("Transpose", ((3, SAMPLES, 5),), (1,), 2, {"perm": [0, 2, 1]}),
    ],
    "Reshape": [
        Case("Reshape", ((SAMPLES, 3, 5),), (0, None), 0, constants={1: ints(SAMPLES, 15)}),
        Case("Reshape", ((SAMPLES, 3, 5),), (0, None), 0, constants={1: ints(-1, 5)}),
        Case("Reshape", ((SAMPLES * 3, 5),), (0, None), 0, constants={1: ints(SAMPLES, 3, 5)}),
        Case("Reshape", ((3, SAMPLES, 2),), (1, None), 1, constants={1: ints(3, SAMPLES * 2)}),
        Case("Reshape", ((3, SAMPLES, 2),), (1, None), None, constants={1: ints(3 * SAMPLES, 2)}),
    ],
    "Flatten": [
        Case("Flatten", ((SAMPLES, 3, 5),), (0,), 0),
        Case("Flatten", ((SAMPLES, 3, 5),), (0,), 0, {"axis": 2}),
        Case("Flatten", ((3, SAMPLES, 5),), (1,), None, {"axis": 2}),
    ],
    "Squeeze": [Case("Squeeze", ((1, SAMPLES, 1),), (1,), 0)],
    "Unsqueeze": [Case("Unsqueeze", ((SAMPLES, 5),), (0, None), 1, constants={1: ints(0, 3)})],
    "Expand": [Case("Expand", ((SAMPLES, 1),), (0, None), 1, constants={1: ints(3, SAMPLES, 5)})],
    "Concat": [
        Case("Concat", ((SAMPLES, 3), (SAMPLES, 2)), (0, 0), 0, {"axis": 1}),
        Case("Concat", ((SAMPLES, 3), (SAMPLES, 2)), (0, None), 0, {"axis": -1}),
        Case("Concat", ((SAMPLES, 3), (2, 3)), (0, None), None, {"axis": 0}),
        Case("Concat", ((SAMPLES, SAMPLES), (SAMPLES, SAMPLES)), (0, 1), None, {"axis": 1}),
    ],
    **{
        name: [
            Case(name, ((SAMPLES, 3),), (0,), 0),
            Case(name, ((3, SAMPLES),), (1,), 1, {"axis": 0}),
            Case(name, ((3, SAMPLES),), (1,), None),
        ]
        for name in ("Hardmax", "LogSoftmax", "Softmax")
    },
    "TopK": [
        Case("TopK", ((SAMPLES, 5),), (0, None), 0, constants={1: ints(2)}, outputs=2),
        Case("TopK", ((5, SAMPLES),), (1, None), None, constants={1: ints(2)}, outputs=2),
    ],
    "LayerNormalization": [
        Case("LayerNormalization", ((SAMPLES, 3, 5), (5,), (5,)), (0, None, None), 0, outputs=3),
        Case("LayerNormalization", ((3, SAMPLES, 5), (SAMPLES, 5)), (1, None), None, {"axis": 1}),
    ],
    "RMSNormalization": [Case("RMSNormalization", ((3, SAMPLES, 5), (5,)), (1, None), 1)],
    "Gather": [
        Case("Gather", ((7, 5),), (None, 0), 0),
        Case("Gather", ((SAMPLES, 7, 5),), (0, None), 0, {"axis": 1}, {1: ints(2, 0)}),
        Case("Gather", ((7, 5, SAMPLES),), (2, None), 1, {"axis": 0}, {1: np.asarray(3)}),
        Case("Gather", ((SAMPLES, 5),), (0, None), None, {"axis": 0}, {1: ints(2, 0)}),
    ],
    "GatherElements": [
        Case("GatherElements", ((SAMPLES, 9), (SAMPLES, 2)), (0, 0), 0, {"axis": 1}),
        Case("GatherElements", ((9, SAMPLES), (2, SAMPLES)), (1, None), 1, {"axis": 0}),
        Case("GatherElements", ((SAMPLES, 9), (SAMPLES, 2)), (0, 0), None, {"axis": 0}),
        Case("GatherElements", ((SAMPLES, 9), (SAMPLES // 2, 2)), (0, None), None, {"axis": 1}),
    ],
    "ScatterElements": [
        Case("ScatterElements", ((SAMPLES, 9), (SAMPLES, 1), (SAMPLES, 1)), (0, 0, None), 0, {"axis": -1}),
        Case("ScatterElements", ((SAMPLES, 9), (SAMPLES, 1), (SAMPLES, 1)), (0, 0, None), None, {"axis": 0}),
    ],
    "Slice": [
        Case("Slice", ((SAMPLES, 5),), (0, None, None, None), 0, constants={1: ints(1), 2: ints(4), 3: ints(-1)}),
        Case("Slice", ((SAMPLES, 5),), (0, None, None), None, constants={1: ints(1), 2: ints(4)}),
    ],
    "Split": [
        Case("Split", ((SAMPLES, 5),), (0, None), 0, {"axis": 1}, {1: ints(2, 3)}, outputs=2),
        Case("Split", ((SAMPLES, 5),), (0, None), None, {}, {1: ints(1, 3)}, outputs=2),
    ],
    "Pad": [
        Case("Pad", ((SAMPLES, 5),), (0, None), 0, constants={1: ints(0, 1, 0, 2)}),
        Case("Pad", ((3, SAMPLES),), (1, None, None, None), 1, constants={1: ints(1, 1), 3: ints(0)}),
        Case("Pad", ((SAMPLES, 5),), (0, None), None, constants={1: ints(1, 0, 0, 0)}),
    ],
    **{
        name: [
            Case(name, ((SAMPLES, 3, 5),), (0, None), 0, {"keepdims": 0}, {1: ints(1, 2)}),
            Case(name, ((3, SAMPLES, 5),), (1, None), 0, {"keepdims": 0}, {1: ints(0)}),
            Case(name, ((3, SAMPLES, 5),), (1, None), 1, {}, {1: ints(-1)}),
            Case(name, ((3, SAMPLES, 5),), (1, None), None, {}, {1: ints(1)}),
            Case(name, ((3, SAMPLES, 5),), (1,), None),
            Case(name, ((3, SAMPLES, 5),), (1,), 1, {"noop_with_empty_axes": 1}),
        ]
        for name in (
            *("ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin"),
            *("ReduceProd", "ReduceSum", "ReduceSumSquare"),
        )
    },
    **{
        name: [
            Case(name, ((3, SAMPLES),), (1,), 0, {"keepdims": 0}),
            Case(name, ((SAMPLES, 3),), (0,), None),
        ]
        for name in ("ArgMax", "ArgMin")
    },
}
"""Of each operator that has to be written out; the others work element by element."""

CASES = [*_element_by_element(), *(case for cases in CASES_BY_HAND.values() for case in cases)]


def _node(case: Case) -> tuple[ir.Node, dict[str, np.ndarray], int]:
    """The node with static shapes all around it, what is fed to it, and its operator set."""
    opset = 24 if case.op_type in ("Swish", "RMSNormalization") else 21
    rng = np.random.default_rng(0)
    names, feeds, constants, fed = [], {}, [], 0
    for place in range(len(case.axes)):
        name = f"input{place}"
        if place in case.constants:
            constants.append(numpy_helper.from_array(np.asarray(case.constants[place]), name))
        elif fed < len(case.shapes):
            array = 0.1 + rng.random(case.shapes[fed])
            kind = bool if case.op_type == "Where" and place == 0 else case.kind
            kind = np.int64 if case.op_type.endswith("Elements") and place == 1 else kind
            feeds[name] = array > 0.6 if kind is bool else (8 * array if kind is np.int64 else array).astype(kind)
            fed += 1
        elif case.op_type == "Gather":
            feeds[name] = rng.integers(0, 7, (SAMPLES, 2))
        else:
            name = ""
        names.append(name)
    outputs = [f"output{number}" for number in range(case.outputs)]
    node = helper.make_node(case.op_type, names, outputs, **case.attributes)
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    graph = helper.make_graph([node], "g", given, [helper.make_empty_tensor_value_info(n) for n in outputs], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    inferred = onnx.shape_inference.infer_shapes(model, strict_mode=True, data_prop=True)
    found = next(iter(ir.from_proto(inferred).graph))
    if found.outputs[0].shape is None:  # onnx does not infer that of a GroupNormalization
        assert case.op_type == "GroupNormalization"
        found.outputs[0].shape = ir.Shape(case.shapes[0])
    return found, feeds, opset


def _run(
    node: ir.Node, feeds: dict[str, np.ndarray], opset: int, shapes: list[Shape] | None = None
) -> list[np.ndarray]:
    """Run a node; with ``shapes``, what it makes has these: where its operator tells them, it is told them."""
    inputs = [value.name or "" if value is not None else "" for value in node.inputs]
    constants = {
        str(value.name): value.const_value.numpy() for value in node.inputs if value is not None and value.const_value
    }
    op_type, attributes = node.op_type, {a.name: a for a in node.attributes.values()}
    if shapes is not None and op_type in TO_SHAPE:
        op_type, attributes = ("Expand" if op_type == "Expand" else "Reshape"), {}
        inputs, constants = [inputs[0], "shape"], {"shape": np.asarray(shapes[0], np.int64)}
    written = helper.make_node(op_type, inputs, [value.name or "" for value in node.outputs])
    written.attribute.extend(ir.to_proto(a) for a in attributes.values())
    given = [
        helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(a.dtype), a.shape) for n, a in feeds.items()
    ]
    results = [helper.make_empty_tensor_value_info(str(value.name)) for value in node.outputs]
    tensors = [numpy_helper.from_array(array, name) for name, array in constants.items()]
    graph = helper.make_graph([written], "g", given, results, tensors)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    model = onnx.shape_inference.infer_shapes(model, data_prop=True)
    session = ort.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return list(session.run(None, feeds))


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.op_type}-{case.shapes}-{case.axes}")
def test_a_block_is_made_of_blocks(case: Case) -> None:
    node, feeds, opset = _node(case)
    along = along_samples(node, list(case.axes), SAMPLES)
    assert (None if along is None else along.axis) == case.axis
    if along is None:
        return
    cuts = {**{place: axis for place, axis in enumerate(case.axes) if axis is not None}, **along.cut}
    whole = _run(node, feeds, opset)
    parts = []
    for block in range(2):
        taken = dict(feeds)
        for place, axis in cuts.items():
            taken[f"input{place}"] = np.split(feeds[f"input{place}"], 2, axis)[block]
        shapes = [tuple(size // 2 if axis == along.axis else size for axis, size in enumerate(a.shape)) for a in whole]
        parts.append(_run(node, taken, opset, shapes))
        assert [array.shape for array in parts[-1]] == shapes
    for all_at_once, *blocks in zip(whole, *parts, strict=True):
        np.testing.assert_allclose(np.concatenate(blocks, along.axis), all_at_once, rtol=1e-6, atol=1e-6)


def test_every_operator_has_a_case() -> None:
    assert {case.op_type for case in CASES} == KNOWN
    for name in KNOWN:
        assert any(case.axis is not None for case in CASES if case.op_type == name), name


def test_what_is_not_known_mixes_samples() -> None:
    x = ir.Value(name="x", type=ir.TensorType(ir.DataType.FLOAT), shape=ir.Shape([SAMPLES, 3]))
    for domain, op_type in (("", "CumSum"), ("com.microsoft", "Relu")):
        node = ir.Node(domain, op_type, [x])
        node.outputs[0].shape = ir.Shape([SAMPLES, 3])
        assert along_samples(node, [0], SAMPLES) is None
    unknown = ir.Node("", "Relu", [x])
    assert along_samples(unknown, [0], SAMPLES) is None

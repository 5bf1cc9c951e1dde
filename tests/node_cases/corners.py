"""Corner cases of single operators that the onnx package has no tests for.

Negative axes, sizes of zero and one, ties, reductions over nothing, borders longer than what they surround, the ends of
the integers as bounds, every way to leave something out. Each is a row of a table: an operator, what it reads, its
attributes. What onnxruntime makes of it is what is expected, where it knows the operator; onnx's evaluator has to
agree.
"""

from __future__ import annotations

import functools
import itertools
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import helper

from tests.node_cases.cases import Case
from tests.node_cases.functions import by_onnxruntime, by_reference

Row = tuple[str, Sequence[Any], dict[str, Any]]
"""Operator, inputs (None for one that is left out), attributes; ``opset`` and ``outputs`` among these are ours."""

_OPSET = 21
_FAR = 2**63 - 1
_REDUCTIONS = ("Sum", "Mean", "Max", "Min", "Prod", "L1", "L2", "LogSum", "LogSumExp", "SumSquare")

_CURVES = ("Acos", "Acosh", "Asin", "Asinh", "Atan", "Atanh", "Cos", "Cosh", "Erf", "Sin", "Sinh", "Tan", "Tanh")
_PARTS = ("Abs", "Ceil", "Floor", "Identity", "Neg", "Relu", "Round", "Sign", "Shrink", "ThresholdedRelu")
_GATES = ("Celu", "Elu", "Gelu", "HardSigmoid", "HardSwish", "LeakyRelu", "Mish", "Selu", "Sigmoid", "Softplus")
_POWERS = ("Exp", "Log", "Reciprocal", "Softsign", "Sqrt")


def x(*shape: int, low: float = 0.3, high: float = 2.0, seed: int = 0) -> np.ndarray:
    """Distinct positive numbers in random order."""
    count = int(np.prod(shape))
    grid = np.linspace(low, high, count + 2)[1:-1]
    return np.random.default_rng([seed, *shape]).permutation(grid).reshape(shape).astype(np.float32)


def s(*shape: int, seed: int = 0) -> np.ndarray:
    """Distinct numbers of both signs."""
    return x(*shape, low=-2.03, high=2.0, seed=seed)


def i(*numbers: int) -> np.ndarray:
    return np.asarray(numbers, dtype=np.int64)


def n(number: int) -> np.ndarray:
    return np.asarray(number, dtype=np.int64)


def _axes() -> Iterator[Row]:
    """Every axis, counted from either end."""
    for axis in range(-3, 3):
        for op_type in ("Softmax", "LogSoftmax"):
            yield op_type, [s(2, 3, 4)], {"axis": axis}
        yield "Concat", [s(2, 3, 4), s(2, 3, 4, seed=1)], {"axis": axis}
        yield "Split", [s(2, 4, 2)], {"axis": axis, "outputs": 2, "num_outputs": 2}
        yield "Gather", [s(2, 3, 4), i(-1, 0, 0)], {"axis": axis}
        yield "GatherElements", [s(2, 2, 2), np.asarray([[[0, -1]], [[1, 0]]])], {"axis": axis}
        yield "ScatterElements", [s(2, 2, 2), np.asarray([[[0, -1]], [[1, 0]]]), s(2, 1, 2, seed=1)], {"axis": axis}
        yield "TopK", [s(2, 3, 4), i(2)], {"axis": axis, "outputs": 2}
        yield "TopK", [s(2, 3, 4), i(1)], {"axis": axis, "outputs": 2, "largest": 0}
        yield "LpNormalization", [s(2, 3, 4)], {"axis": axis}
        yield "Unsqueeze", [s(2, 3), i(axis)], {}
        yield "Compress", [s(2, 3, 4), np.asarray([False, True])], {"axis": axis}
        for exclusive, reverse in itertools.product((0, 1), repeat=2):
            yield "CumSum", [s(2, 3, 4), n(axis)], {"exclusive": exclusive, "reverse": reverse}
        for op_type in ("LayerNormalization", "RMSNormalization"):
            shape = (2, 3, 4)[axis:]
            opset = {"opset": 23} if op_type[0] == "R" else {}
            yield op_type, [s(2, 3, 4), x(*shape)], {"axis": axis, **opset}
    for axis in range(-3, 4):
        yield "Flatten", [s(2, 3, 4)], {"axis": axis}
    yield "Squeeze", [s(1, 2, 3, 1)], {}
    for axes in ([0], [-1], [0, -1], [-4, 3]):
        yield "Squeeze", [s(1, 1, 1, 1), i(*axes)], {}
    for axis in range(-2, 2):
        yield "OneHot", [i(0, 2, -1), n(3), x(2)], {"axis": axis}


def _reductions() -> Iterator[Row]:
    """Over all, some, no axes; over axes of one element and of none."""
    for name in _REDUCTIONS:
        op_type = f"Reduce{name}"
        for axes, keepdims in itertools.product((None, [], [0], [-1], [0, -1], [1, -3], [2, 1, 0]), (0, 1)):
            yield op_type, [x(2, 3, 4), *([] if axes is None else [i(*axes)])], {"keepdims": keepdims}
        yield op_type, [x(2, 3), i()], {"noop_with_empty_axes": 1}
        yield op_type, [x(2, 3)], {"noop_with_empty_axes": 1}
        yield op_type, [x(3, 1, 2), i(1)], {}
        yield op_type, [x(1, 1), i(0, 1)], {"keepdims": 0}
        yield op_type, [x(5)], {}
        yield op_type, [x(0, 3), i(1)], {}
        if name in ("Sum", "SumSquare", "L1", "L2", "Prod", "LogSumExp"):
            yield op_type, [x(2, 0), i(1)], {}
    for zeros in range(4):
        row = x(2, 5)
        row[0, :zeros] = 0
        for axes in (None, [1]):
            yield "ReduceProd", [row, *([] if axes is None else [i(*axes)])], {}
        for exclusive, reverse in itertools.product((0, 1), repeat=2):
            yield "CumProd", [row, n(1)], {"exclusive": exclusive, "reverse": reverse, "opset": 26}
    for op_type in ("ReduceMax", "ReduceMin"):
        yield op_type, [np.ones((2, 3), np.float32), i(1)], {}


def _broadcasting() -> Iterator[Row]:
    shapes = [
        ((3,), ()),
        ((), (2, 3)),
        ((2, 3), (3,)),
        ((2, 1), (1, 3)),
        ((1,), (1, 1)),
        ((2, 3, 1), (4,)),
        ((0, 3), (1, 3)),
        ((2, 0), (1,)),
        ((1, 1, 1), (2,)),
        ((5, 1, 4), (3, 1)),
    ]
    for left, right in shapes:
        for op_type in ("Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mod", "PRelu", "Sum", "Mean", "Where"):
            if op_type == "PRelu" and np.broadcast_shapes(left, right) != left:
                continue
            inputs = [x(*left), x(*right, seed=3)]
            attributes: dict[str, Any] = {"fmod": 1} if op_type == "Mod" else {}
            if op_type == "Where":
                inputs = [np.resize([True, False], left), *inputs]
            yield op_type, inputs, attributes
    for shape, target in (
        ((3,), (2, 3)),
        ((1,), (2, 1, 3)),
        ((2, 1), (1, 3)),
        ((), (2, 2)),
        ((1, 0), (3, 0)),
        ((2,), (1,)),
    ):
        yield "Expand", [s(*shape), i(*target)], {}
    for shape, repeats in (((2, 3), (1, 1)), ((2, 3), (2, 1)), ((3,), (0,)), ((1, 2), (3, 2)), ((0,), (2,))):
        yield "Tile", [s(*shape), i(*repeats)], {}
    yield "Sum", [s(2)], {}
    yield "Max", [s(2)], {}
    yield "Mean", [s(2), s(2, seed=1), s(2, seed=2)], {}


def _elementwise() -> Iterator[Row]:
    for op_type in (*_CURVES, *_PARTS, *_GATES, *_POWERS):
        low, high = {"Acosh": (1.1, 2.0), "Acos": (-0.8, 0.8), "Asin": (-0.8, 0.8), "Atanh": (-0.8, 0.8)}.get(
            op_type, (0.3, 2.0)
        )
        opset = {"opset": 22} if op_type == "Mish" else {}
        for shape in ((), (1,), (0, 2), (2, 3)):
            yield op_type, [x(*shape, low=low, high=high)], opset
        if op_type not in ("Log", "Sqrt", "Acosh"):
            yield op_type, [s(2, 4) * (0.35 if low < 0 else 1)], opset
    for power in (0.0, 1.0, 2.0, 3.0, 0.5, -1.0, -0.5):
        yield "Pow", [x(4), np.float32(power)], {}
    yield "Pow", [s(6), np.float32(2)], {}
    yield "Pow", [s(6), np.float32(3)], {}
    yield "Pow", [s(6), n(2)], {}
    for low_bound, high_bound in ((None, None), (-0.5, None), (None, 0.5), (-0.5, 0.5), (0.5, -0.5)):
        bounds = [None if bound is None else np.float32(bound) for bound in (low_bound, high_bound)]
        yield "Clip", [s(6), *bounds], {}
    for to in (1, 7, 10, 11, 9):
        yield "Cast", [s(4)], {"to": to}
    for approximate in ("none", "tanh"):
        yield "Gelu", [s(5)], {"approximate": approximate}
    yield "Elu", [s(5)], {"alpha": 0.3}
    yield "Celu", [s(5)], {"alpha": 2.0}
    yield "LeakyRelu", [s(5)], {"alpha": -0.2}
    yield "Selu", [s(5)], {"alpha": 1.5, "gamma": 0.7}
    yield "HardSigmoid", [s(5)], {"alpha": 0.9, "beta": 0.1}
    yield "Shrink", [s(5)], {"bias": 0.3, "lambd": 0.7}


def _moving() -> Iterator[Row]:
    for start, end, step in (
        (0, 3, 1),
        (-2, _FAR, 1),
        (4, 0, -1),
        (_FAR, -_FAR, -2),
        (1, 1, 1),
        (-100, 100, 3),
        (3, 1, 1),
    ):
        yield "Slice", [s(5, 2), i(start), i(end), i(0), i(step)], {}
        yield "Slice", [s(2, 5), i(start), i(end), i(-1), i(step)], {}
    yield "Slice", [s(3, 4), i(1, 1), i(3, 3)], {}
    yield "Slice", [s(3, 4), i(1), i(3), i(1)], {}
    for mode, (before, after) in itertools.product(
        ("constant", "edge", "reflect", "wrap"), ((0, 0), (1, 0), (0, 2), (2, 2), (-1, 2), (2, -1), (-1, -1), (3, 3))
    ):
        if mode == "reflect" and max(before, after) >= 4 + min(before, 0) + min(after, 0):
            continue
        yield "Pad", [s(2, 4), i(0, before, 0, after)], {"mode": mode}
        yield "Pad", [s(4, 2), i(before, after), None, i(-2)], {"mode": mode}
    yield "Pad", [s(2, 2), i(1, 1, 1, 1), np.float32(0.7)], {}
    yield "Pad", [x(0, 2), i(1, 0, 1, 0)], {}
    yield "Pad", [s(1, 1), i(2, 3, 1, 0)], {"mode": "edge"}
    for perm in itertools.permutations(range(3)):
        yield "Transpose", [s(2, 3, 4)], {"perm": list(perm)}
    yield "Transpose", [s(2, 3)], {}
    yield "Transpose", [s()], {}
    for shape in ((6,), (-1,), (3, -1), (0, 3), (1, 2, 3, 1)):
        yield "Reshape", [s(2, 3), i(*shape)], {}
    yield "Reshape", [s(1), i()], {}
    yield "Reshape", [x(0, 3), i(3, 0)], {"allowzero": 1}
    for upper, k in itertools.product((0, 1), (-9, -1, 0, 2, 9)):
        yield "Trilu", [s(3, 4), n(k)], {"upper": upper}
    for mode in ("DCR", "CRD"):
        yield "DepthToSpace", [s(1, 8, 2, 3)], {"blocksize": 2, "mode": mode}
    yield "SpaceToDepth", [s(2, 1, 4, 6)], {"blocksize": 2}
    yield "DepthToSpace", [s(1, 4, 1, 1)], {"blocksize": 1}
    for sizes in ((1, 3), (0, 4), (4, 0), (2, 2)):
        yield "Split", [s(4, 2), i(*sizes)], {"outputs": 2}
    yield "Split", [s(5)], {"num_outputs": 2, "outputs": 2}
    yield "Concat", [s(2)], {"axis": 0}
    yield "Concat", [x(0, 2), s(3, 2), x(0, 2)], {"axis": 0}
    for batch, time in ((0, 1), (1, 0)):
        yield "ReverseSequence", [s(3, 3), i(1, 3, 2)], {"batch_axis": batch, "time_axis": time}
    for indices in (n(1), i(), i(-1), np.asarray([[0, 1], [1, 1]])):
        yield "Gather", [s(3, 2), indices], {}
    yield "GatherND", [s(2, 2), np.asarray([[0, 0], [-1, 1]])], {}
    yield "GatherND", [s(2, 3), np.asarray([[-1], [0], [1]])[:2]], {"batch_dims": 1}
    for reduction in ("none", "add", "mul", "max", "min"):
        yield "ScatterND", [x(4), np.asarray([[1], [3]]), x(2, seed=1)], {"reduction": reduction}
        yield "ScatterElements", [x(4), i(1, -1), x(2, seed=1)], {"reduction": reduction}
    yield "ScatterND", [x(4), np.asarray([[1], [1]]), x(2, seed=1)], {"reduction": "add"}
    yield "ScatterElements", [x(4), i(1, 1), x(2, seed=1)], {"reduction": "add"}
    yield "Range", [np.float32(1), np.float32(3), np.float32(0.5)], {}
    yield "Range", [np.float32(3), np.float32(1), np.float32(-0.7)], {}


def _products() -> Iterator[Row]:
    for left, right in (
        ((3,), (3,)),
        ((2, 3), (3,)),
        ((3,), (3, 2)),
        ((2, 1, 3, 4), (5, 4, 2)),
        ((1, 4), (4, 1)),
        ((2, 0), (0, 3)),
        ((0, 2), (2, 3)),
        ((3, 2, 2), (2, 2)),
        ((2, 2), (3, 2, 2)),
    ):
        yield "MatMul", [s(*left), s(*right, seed=1)], {}
    for trans_a, trans_b in itertools.product((0, 1), repeat=2):
        a, b = s(*((4, 2) if trans_a else (2, 4))), s(*((3, 4) if trans_b else (4, 3)), seed=1)
        for bias in (None, (), (1,), (3,), (1, 3), (2, 1), (2, 3)):
            inputs = [a, b, *([] if bias is None else [s(*bias, seed=2)])]
            yield "Gemm", inputs, {"transA": trans_a, "transB": trans_b, "alpha": 0.5, "beta": 2.0}
    yield "Gemm", [s(2, 3), s(3, 2), s(2)], {"beta": 0.0}
    for equation, shapes in (
        ("ij,jk->ik", [(2, 3), (3, 4)]),
        ("ij->ji", [(2, 3)]),
        ("ii->i", [(3, 3)]),
        ("ii->", [(3, 3)]),
        ("ij->", [(2, 3)]),
        ("i,j->ij", [(2,), (3,)]),
        ("bij,bjk->bik", [(2, 2, 3), (2, 3, 2)]),
        ("...ij,...jk->...ik", [(2, 2, 3), (2, 3, 2)]),
        ("ij,ij->i", [(2, 3), (2, 3)]),
        ("ij,jk", [(2, 3), (3, 4)]),
        ("i,i,i->i", [(3,), (3,), (3,)]),
        ("ij,kj->", [(2, 3), (4, 3)]),
        ("bqhd,bkhd->bhqk", [(1, 2, 2, 3), (1, 4, 2, 3)]),
        ("ij,jk->ik", [(1, 3), (3, 1)]),
    ):
        yield "Einsum", [s(*shape, seed=k) for k, shape in enumerate(shapes)], {"equation": equation}
    yield "Det", [s(3, 3)], {}
    yield "Det", [s(2, 2, 2)], {}


def _windows() -> Iterator[Row]:
    for attributes in (
        {},
        {"pads": [1, 2, 0, 1]},
        {"strides": [2, 3]},
        {"dilations": [2, 1]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
        {"auto_pad": "SAME_LOWER", "strides": [2, 2]},
        {"auto_pad": "VALID"},
        {"pads": [2, 2, 2, 2], "strides": [2, 2]},
    ):
        yield "Conv", [s(1, 2, 5, 6), s(3, 2, 3, 2, seed=1), s(3, seed=2)], attributes
        yield "Conv", [s(2, 4, 5, 5), s(4, 1, 3, 3, seed=1)], {"group": 4, **attributes}
        yield "MaxPool", [s(1, 2, 6, 7)], {"kernel_shape": [3, 2], **_bounded(attributes)}
        if "dilations" not in attributes:
            yield "AveragePool", [s(1, 2, 6, 7)], {"kernel_shape": [3, 3], **attributes}
            yield "AveragePool", [s(1, 2, 6, 7)], {"kernel_shape": [3, 3], "count_include_pad": 1, **attributes}
            yield "LpPool", [s(1, 2, 6, 7)], {"kernel_shape": [3, 3], "p": 3, **attributes}
    for op_type in ("MaxPool", "AveragePool"):
        yield op_type, [s(1, 1, 6, 6)], {"kernel_shape": [3, 3], "strides": [2, 2], "ceil_mode": 1}
        yield op_type, [s(2, 1, 7)], {"kernel_shape": [7]}
        yield op_type, [s(1, 1, 3, 3, 3)], {"kernel_shape": [2, 2, 2]}
        yield op_type, [s(1, 1, 4)], {"kernel_shape": [1], "strides": [3]}
    for op_type in ("GlobalMaxPool", "GlobalAveragePool", "GlobalLpPool"):
        for shape in ((2, 3, 4), (1, 2, 3, 4), (1, 1, 1, 1)):
            yield op_type, [s(*shape)], {}
    yield "Conv", [s(1, 1, 4), s(1, 1, 4, seed=1)], {}
    yield "Conv", [s(1, 2, 3, 3, 3), s(2, 1, 2, 2, 2, seed=1)], {"group": 2}
    yield "Conv", [x(0, 2, 4, 4), s(3, 2, 3, 3, seed=1)], {}
    yield "Conv", [s(1, 2, 5), s(4, 2, 1, seed=1)], {"strides": [2]}
    for attributes in (
        {},
        {"strides": [2, 2]},
        {"strides": [2, 2], "output_padding": [1, 1]},
        {"pads": [1, 0, 1, 1]},
        {"dilations": [2, 2]},
        {"strides": [2, 2], "output_shape": [7, 8]},
        {"auto_pad": "SAME_UPPER", "strides": [2, 2]},
    ):
        yield "ConvTranspose", [s(1, 2, 3, 4), s(2, 3, 3, 3, seed=1), s(3, seed=2)], attributes
        yield "ConvTranspose", [s(1, 4, 3, 4), s(4, 1, 3, 3, seed=1)], {"group": 2, **attributes}
    yield "LRN", [s(1, 5, 2, 2)], {"size": 3}
    yield "LRN", [s(1, 2, 1, 1)], {"size": 5, "alpha": 0.3}
    yield "Col2Im", [s(1, 4, 4), i(3, 3), i(2, 2)], {}


def _bounded(attributes: dict[str, Any]) -> dict[str, Any]:
    """Pads of a pooling are less than its kernel."""
    pads = attributes.get("pads")
    return attributes if pads is None else {**attributes, "pads": [min(pad, 1) for pad in pads]}


def _resizing() -> Iterator[Row]:
    coordinates = ("half_pixel", "half_pixel_symmetric", "pytorch_half_pixel", "align_corners", "asymmetric")
    for mode, coordinate, sizes in itertools.product(
        ("nearest", "linear", "cubic"), coordinates, ((1, 1, 6, 8), (1, 1, 2, 3), (1, 1, 1, 1))
    ):
        attributes = {"mode": mode, "coordinate_transformation_mode": coordinate}
        yield "Resize", [s(1, 1, 3, 4), None, None, i(*sizes)], attributes
    for nearest in ("round_prefer_floor", "round_prefer_ceil", "floor", "ceil"):
        for scales in ((1, 1, 2, 3), (1, 1, 0.6, 0.7), (1, 1, 1.7, 0.5)):
            yield "Resize", [s(1, 1, 4, 4), None, np.asarray(scales, np.float32)], {"nearest_mode": nearest}
    for mode in ("linear", "cubic"):
        yield "Resize", [s(1, 1, 6, 8), None, None, i(1, 1, 3, 4)], {"mode": mode, "antialias": 1}
        yield (
            "Resize",
            [s(1, 1, 3, 4), None, None, i(1, 1, 5, 5)],
            {"mode": mode, "exclude_outside": int(mode == "cubic")},
        )
    for scales in ([1, 1, 0.6, 0.6], [1, 1, 1.7, 0.6], [1, 1, 2, 2], [1, 1, 1, 1], [1, 1, 0.3, 3]):
        yield "Resize", [s(1, 1, 4, 5), np.asarray(scales, np.float32)], {"opset": 10}
        yield "Resize", [s(1, 1, 4, 5), np.asarray(scales, np.float32)], {"opset": 10, "mode": "linear"}
    for mode, padding, align in itertools.product(
        ("linear", "nearest", "cubic"), ("zeros", "border", "reflection"), (0, 1)
    ):
        grid = s(1, 3, 2, 2) * 0.55
        yield "GridSample", [s(1, 2, 3, 4), grid], {"mode": mode, "padding_mode": padding, "align_corners": align}
    for size in ([1, 3, 2, 4], [2, 1, 3, 2], [1, 2, 2, 3, 2]):
        axes = len(size) - 2
        for align in (0, 1):
            yield "AffineGrid", [s(size[0], axes, axes + 1), i(*size)], {"align_corners": align}


def _normalising() -> Iterator[Row]:
    for shape in ((2, 3), (2, 3, 4), (1, 2, 3, 2), (1, 3, 1), (4, 1)):
        channels = [x(shape[1], seed=k) for k in range(4)]
        yield "BatchNormalization", [s(*shape), *channels], {}
        if len(shape) > 2:
            yield "InstanceNormalization", [s(*shape), *channels[:2]], {}
    yield "GroupNormalization", [s(2, 4, 3), x(4), x(4, seed=1)], {"num_groups": 2}
    yield "GroupNormalization", [s(1, 4, 2, 2), x(4), x(4, seed=1)], {"num_groups": 4}
    yield "GroupNormalization", [s(1, 4, 2), x(4), x(4, seed=1)], {"num_groups": 1}
    yield "LayerNormalization", [s(2, 3), x(3), x(3, seed=1)], {"outputs": 3}
    yield "LayerNormalization", [s(2, 3), x(3)], {"epsilon": 0.1}
    yield "MeanVarianceNormalization", [s(2, 3, 2, 2)], {}
    yield "MeanVarianceNormalization", [s(2, 3, 2)], {"axes": [0, -1]}
    for axis, p in itertools.product((0, -1), (1, 2)):
        yield "LpNormalization", [s(2, 3)], {"axis": axis, "p": p}
    for shape in ((1,), (1, 1), (3, 1), (0, 3)):
        yield "Softmax", [s(*shape)], {}
        yield "LogSoftmax", [s(*shape)], {}


def _losses() -> Iterator[Row]:
    for (scores, target), reduction in itertools.product(
        ((s(4, 3), i(0, 2, 1, 1)), (s(2, 3, 2), np.asarray([[0, 1], [2, 2]])), (s(1, 2), i(1))), ("none", "sum", "mean")
    ):
        for rest, ignore in itertools.product(([], [x(scores.shape[1])]), ({}, {"ignore_index": 1})):
            attributes = {"reduction": reduction, **ignore}
            if ignore and reduction == "mean" and scores.shape == (1, 2):
                continue  # nothing counts: 0 / 0
            yield "NegativeLogLikelihoodLoss", [scores, target, *rest], attributes
            yield "SoftmaxCrossEntropyLoss", [scores, target, *rest], attributes
    yield "SoftmaxCrossEntropyLoss", [s(4, 3), i(0, 2, 1, 1)], {"outputs": 2}


def _recurrent() -> Iterator[Row]:
    for op_type, gates in (("RNN", 1), ("GRU", 3), ("LSTM", 4)):
        for direction, layout, steps in itertools.product(("forward", "reverse", "bidirectional"), (0, 1), (1, 3)):
            ways = 2 if direction == "bidirectional" else 1
            shape = (2, steps, 2) if layout else (steps, 2, 2)
            inputs = [
                s(*shape),
                s(ways, gates * 3, 2, seed=1),
                s(ways, gates * 3, 3, seed=2),
                s(ways, 2 * gates * 3, seed=3),
            ]
            attributes = {"hidden_size": 3, "direction": direction, "layout": layout}
            if layout:
                continue  # onnxruntime has none of these
            yield op_type, inputs, attributes
            yield op_type, [*inputs, np.asarray([steps, 1], np.int32)], {**attributes, "outputs": 2}


def _signals() -> Iterator[Row]:
    for axis, inverse, onesided in itertools.product((1, -2), (0, 1), (0, 1)):
        if not (inverse and onesided):
            yield "DFT", [s(1, 5, 1 if not inverse else 2), None, n(axis)], {"inverse": inverse, "onesided": onesided}
    yield "DFT", [s(1, 5, 1), n(8), n(1)], {}
    yield "DFT", [s(1, 5, 1), n(3), n(1)], {}
    yield "STFT", [s(1, 8, 1), n(3), x(4)], {"onesided": 1}
    yield "STFT", [s(1, 8, 1), n(8), None, n(8)], {"onesided": 0}


_TABLE = (
    _axes,
    _reductions,
    _broadcasting,
    _elementwise,
    _moving,
    _products,
    _windows,
    _resizing,
    _normalising,
    _losses,
    _recurrent,
    _signals,
)


@functools.cache
def corner_cases(every: int = 1) -> tuple[Case, ...]:
    """Return the rows of the table as cases, with what is expected of each; or only every so many."""
    rows = (row for part in _TABLE for row in part())
    return tuple(_case(index, *row) for index, row in enumerate(rows) if index % every == 0)


def _case(index: int, op_type: str, inputs: Sequence[Any], attributes: dict[str, Any]) -> Case:
    """Make a case of a row."""
    attributes = dict(attributes)
    opset, outputs = attributes.pop("opset", _OPSET), attributes.pop("outputs", 1)
    names = ["" if value is None else f"x{k}" for k, value in enumerate(inputs)]
    results = [f"y{k}" for k in range(outputs)]
    node = helper.make_node(op_type, names, results, **attributes)
    given = {name: np.asarray(value) for name, value in zip(names, inputs, strict=True) if name}
    declared = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in given.items()
    ]
    graph = helper.make_graph(
        [node], "corner", declared, [helper.make_empty_tensor_value_info(name) for name in results]
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)
    found = _expected(model, given)
    typed = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in zip(results, found, strict=True)
    ]
    del model.graph.output[:]
    model.graph.output.extend(typed)
    return Case(f"corner_{index:04}_{op_type}", "corner", model, list(given.values()), found)


def _expected(model: onnx.ModelProto, given: dict[str, np.ndarray]) -> list[np.ndarray]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        try:
            return [np.asarray(array) for array in by_onnxruntime(model)(given)]
        except Exception:  # of its own kinds: it lacks the kernel
            return [np.asarray(array) for array in by_reference(model)(given)]

"""Element-wise, shape, indexing, reduction and matrix operators of ONNX in torch."""

from __future__ import annotations

from collections.abc import Callable
from functools import reduce
from math import prod

import numpy as np
import torch
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper
from torch.nn import functional

from tests.oracles.torch_registry import OPERATORS, Call, Operator, Result, operator

UNARY: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "Abs": torch.abs,
    "Acos": torch.acos,
    "Asin": torch.asin,
    "Atan": torch.atan,
    "Ceil": torch.ceil,
    "Cos": torch.cos,
    "Cosh": torch.cosh,
    "Erf": torch.erf,
    "Exp": torch.exp,
    "Floor": torch.floor,
    "Identity": torch.clone,
    "IsNaN": torch.isnan,
    "Log": torch.log,
    "Mish": functional.mish,
    "Neg": torch.neg,
    "Not": torch.logical_not,
    "Reciprocal": torch.reciprocal,
    "Relu": torch.relu,
    "Round": torch.round,
    "Sigmoid": torch.sigmoid,
    "Sign": torch.sign,
    "Sin": torch.sin,
    "Sinh": torch.sinh,
    "Softplus": functional.softplus,
    "Softsign": functional.softsign,
    "Sqrt": torch.sqrt,
    "Tan": torch.tan,
    "Tanh": torch.tanh,
}
BINARY: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "Add": torch.add,
    "And": torch.logical_and,
    "Equal": torch.eq,
    "Greater": torch.gt,
    "GreaterOrEqual": torch.ge,
    "Less": torch.lt,
    "LessOrEqual": torch.le,
    "Mul": torch.mul,
    "Or": torch.logical_or,
    "Pow": torch.pow,
    "Sub": torch.sub,
}
VARIADIC: dict[str, Callable[[torch.Tensor, torch.Tensor], torch.Tensor]] = {
    "Max": torch.maximum,
    "Min": torch.minimum,
    "Sum": torch.add,
}


def _fold(function: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> Operator:
    return lambda call: reduce(function, [call[index] for index in range(len(call.inputs))])


def _unary(function: Callable[[torch.Tensor], torch.Tensor]) -> Operator:
    return lambda call: function(call[0])


OPERATORS.update({name: _unary(function) for name, function in UNARY.items()})
OPERATORS.update({name: _fold(function) for name, function in (BINARY | VARIADIC).items()})


@operator("Div")
def div(call: Call) -> Result:
    whole = None if call[0].is_floating_point() else "trunc"
    return torch.div(call[0], call[1], rounding_mode=whole)


@operator("Mean")
def mean(call: Call) -> Result:
    total = OPERATORS["Sum"](call)
    assert isinstance(total, torch.Tensor)
    return total / len(call.inputs)


@operator("Where")
def where(call: Call) -> Result:
    return torch.where(call[0], call[1], call[2])


@operator("Clip")
def clip(call: Call) -> Result:
    lowest, highest = call.optional(1), call.optional(2)
    return call[0] if lowest is None and highest is None else torch.clamp(call[0], lowest, highest)


@operator("PRelu")
def prelu(call: Call) -> Result:
    return torch.where(call[0] < 0, call[0] * call[1], call[0])


@operator("LeakyRelu")
def leaky_relu(call: Call) -> Result:
    return functional.leaky_relu(call[0], call.get("alpha", 0.01))


@operator("Elu")
def elu(call: Call) -> Result:
    return functional.elu(call[0], call.get("alpha", 1.0))


@operator("Selu")
def selu(call: Call) -> Result:
    alpha = call.get("alpha", 1.67326319217681884765625)
    return functional.elu(call[0], alpha) * call.number("gamma", 1.05070102214813232421875)


@operator("Celu")
def celu(call: Call) -> Result:
    return functional.celu(call[0], call.get("alpha", 1.0))


@operator("Gelu")
def gelu(call: Call) -> Result:
    return functional.gelu(call[0], approximate=call.text("approximate", "none"))


@operator("HardSigmoid")
def hard_sigmoid(call: Call) -> Result:
    return torch.clamp(call[0] * call.number("alpha", 0.2) + call.number("beta", 0.5), 0.0, 1.0)


@operator("HardSwish")
def hard_swish(call: Call) -> Result:
    return call[0] * torch.clamp(call[0] / 6 + 0.5, 0.0, 1.0)


@operator("Softmax")
def softmax(call: Call) -> Result:
    return torch.softmax(call[0], call.get("axis", -1))


@operator("LogSoftmax")
def log_softmax(call: Call) -> Result:
    return torch.log_softmax(call[0], call.get("axis", -1))


@operator("Dropout")
def dropout(call: Call) -> Result:
    """In training mode the mask must be given, by the name of the second output."""
    ratio, training = call.optional(1), call.optional(2)
    if training is None or not bool(training):
        return call[0], torch.ones_like(call[0], dtype=torch.bool)
    mask = call.given[1] if len(call.given) > 1 else None
    if mask is None:
        raise NotImplementedError("a Dropout in training mode needs its mask among the inputs")
    return call[0] * mask / (1 - (0.5 if ratio is None else float(ratio))), mask


@operator("MatMul")
def matmul(call: Call) -> Result:
    return torch.matmul(call[0], call[1])


@operator("Gemm")
def gemm(call: Call) -> Result:
    left = call[0].T if call.get("transA", 0) else call[0]
    right = call[1].T if call.get("transB", 0) else call[1]
    result = (left @ right) * call.number("alpha", 1.0)
    bias = call.optional(2)
    return result if bias is None else result + bias * call.number("beta", 1.0)


@operator("Einsum")
def einsum(call: Call) -> Result:
    return torch.einsum(call.text("equation", ""), *[call[index] for index in range(len(call.inputs))])


def _reduction(name: str, function: Callable[[torch.Tensor, list[int]], torch.Tensor]) -> None:
    """Register a reduction; ``function`` keeps the reduced axes."""

    def reduction(call: Call) -> Result:
        value = call[0]
        axes = call.integers(1) or []
        if not axes:
            if call.get("noop_with_empty_axes", 0):
                return value
            axes = list(range(value.ndim))
        axes = [axis % value.ndim for axis in axes]
        # Of a scalar there is one number to reduce: its square, its logarithm, ... still have to be taken.
        result = function(value, axes) if axes else function(value.reshape(1), [0]).reshape(())
        if call.get("keepdims", 1):
            return result
        return result.reshape([size for axis, size in enumerate(value.shape) if axis not in axes])

    operator(name)(reduction)


_reduction("ReduceSum", lambda value, axes: value.sum(axes, keepdim=True))
_reduction("ReduceMean", lambda value, axes: value.mean(axes, keepdim=True))
_reduction("ReduceMax", lambda value, axes: value.amax(axes, keepdim=True))
_reduction("ReduceMin", lambda value, axes: value.amin(axes, keepdim=True))
_reduction("ReduceL1", lambda value, axes: value.abs().sum(axes, keepdim=True))
_reduction("ReduceL2", lambda value, axes: value.square().sum(axes, keepdim=True).sqrt())
_reduction("ReduceSumSquare", lambda value, axes: value.square().sum(axes, keepdim=True))
_reduction("ReduceLogSum", lambda value, axes: value.sum(axes, keepdim=True).log())
_reduction("ReduceLogSumExp", lambda value, axes: value.logsumexp(axes, keepdim=True))
_reduction("ReduceProd", lambda value, axes: reduce(lambda v, axis: v.prod(axis, keepdim=True), axes, value))


@operator("ArgMax")
def arg_max(call: Call) -> Result:
    if call.get("select_last_index", 0):
        raise NotImplementedError("an ArgMax that selects the last index")
    return torch.argmax(call[0], call.get("axis", 0), keepdim=bool(call.get("keepdims", 1)))


@operator("CumSum")
def cumulative_sum(call: Call) -> Result:
    axis = int(call[1])
    value = call[0].flip(axis) if call.get("reverse", 0) else call[0]
    total = value.cumsum(axis)
    total = total - value if call.get("exclusive", 0) else total
    return total.flip(axis) if call.get("reverse", 0) else total


@operator("Reshape")
def reshape(call: Call) -> Result:
    wanted = call.integers(1) or []
    if not call.get("allowzero", 0):
        wanted = [size or call[0].shape[axis] for axis, size in enumerate(wanted)]
    return call[0].reshape(wanted)


@operator("Flatten")
def flatten(call: Call) -> Result:
    axis = call.get("axis", 1)
    axis = axis + call[0].ndim if axis < 0 else axis
    return call[0].reshape(prod(call[0].shape[:axis]), -1)


@operator("Transpose")
def transpose(call: Call) -> Result:
    return call[0].permute(call.get("perm", list(range(call[0].ndim))[::-1]))


@operator("Squeeze")
def squeeze(call: Call) -> Result:
    axes = call.integers(1)
    return call[0].squeeze() if axes is None else call[0].squeeze(axes)


@operator("Unsqueeze")
def unsqueeze(call: Call) -> Result:
    axes = call.integers(1) or []
    rank = call[0].ndim + len(axes)
    sizes = iter(call[0].shape)
    inserted = {axis % rank for axis in axes}
    return call[0].reshape([1 if axis in inserted else next(sizes) for axis in range(rank)])


@operator("Concat")
def concat(call: Call) -> Result:
    return torch.cat([call[index] for index in range(len(call.inputs))], call.attributes["axis"])


@operator("Split")
def split(call: Call) -> Result:
    axis = call.get("axis", 0)
    sizes = call.integers(1)
    if sizes is None:
        parts = call.get("num_outputs", call.outputs)
        step = -(-call[0].shape[axis] // parts)
        sizes = [step] * (parts - 1)
        sizes.append(call[0].shape[axis] - sum(sizes))
    return torch.split_with_sizes(call[0], sizes, axis)


@operator("Slice")
def slice_(call: Call) -> Result:
    starts, ends = call.integers(1) or [], call.integers(2) or []
    axes = call.integers(3) or list(range(len(starts)))
    steps = call.integers(4) or [1] * len(starts)
    value = call[0]
    for start, end, axis, step in zip(starts, ends, axes, steps, strict=True):
        places = list(range(value.shape[axis]))[_slice(start, end, step, value.shape[axis])]
        value = value.index_select(axis, torch.tensor(places, dtype=torch.int64))
    return value


def _slice(start: int, end: int, step: int, size: int) -> slice:
    """As ONNX means it: for a negative step an end below minus the size is "before the first"."""
    return slice(start, None if step < 0 and end < -size else end, step)


@operator("Gather")
def gather(call: Call) -> Result:
    axis = call.get("axis", 0) % call[0].ndim
    size, indices = call[0].shape[axis], call[1]
    flat = torch.where(indices < 0, indices + size, indices).reshape(-1)
    shape = [*call[0].shape[:axis], *indices.shape, *call[0].shape[axis + 1 :]]
    return call[0].index_select(axis, flat).reshape(shape)


@operator("GatherElements")
def gather_elements(call: Call) -> Result:
    axis = call.get("axis", 0)
    indices = torch.where(call[1] < 0, call[1] + call[0].shape[axis], call[1])
    return torch.gather(call[0], axis, indices)


@operator("Expand")
def expand(call: Call) -> Result:
    """The shape is broadcast with the input's own, so a one in it leaves a dimension as it is."""
    wanted = call.integers(1) or []
    missing = len(wanted) - call[0].ndim
    own = [1] * missing + list(call[0].shape)
    wanted = [1] * -missing + wanted
    return call[0].expand([max(pair) if 0 not in pair else 0 for pair in zip(own, wanted, strict=True)])


@operator("Tile")
def tile(call: Call) -> Result:
    return call[0].tile(call.integers(1) or [])


@operator("Trilu")
def trilu(call: Call) -> Result:
    diagonal = call.optional(1)
    function = torch.triu if call.get("upper", 1) else torch.tril
    return function(call[0], 0 if diagonal is None else int(diagonal))


@operator("Shape")
def shape_(call: Call) -> Result:
    sizes = list(call[0].shape)[slice(call.get("start", 0), call.get("end"))]
    return torch.tensor(sizes, dtype=torch.int64)


@operator("Size")
def size_(call: Call) -> Result:
    return torch.tensor(call[0].numel(), dtype=torch.int64)


@operator("ConstantOfShape")
def constant_of_shape(call: Call) -> Result:
    tensor = call.get("value")
    value = torch.zeros(1, dtype=call.dtype) if tensor is None else _from_proto(tensor, call.dtype)
    return value.expand(call.integers(0) or []).clone()


@operator("Constant")
def constant(call: Call) -> Result:
    for name, value in call.attributes.items():
        if name == "value":
            return _from_proto(value, call.dtype)
        if name in ("value_int", "value_ints"):
            return torch.tensor(value, dtype=torch.int64)
        if name in ("value_float", "value_floats"):
            return torch.tensor(value, dtype=call.dtype)
    raise NotImplementedError(f"a Constant with {', '.join(call.attributes)}")


@operator("Range")
def range_(call: Call) -> Result:
    return torch.arange(call[0].item(), call[1].item(), call[2].item(), dtype=call[0].dtype)


@operator("Cast")
def cast(call: Call) -> Result:
    """All floating-point types are the one in which the oracle computes."""
    wanted = call.attributes["to"]
    if wanted in (TensorProto.FLOAT, TensorProto.DOUBLE, TensorProto.FLOAT16, TensorProto.BFLOAT16):
        return call[0].to(call.dtype)
    return call[0].to(torch.from_numpy(_empty(wanted)).dtype)


@operator("CastLike")
def cast_like(call: Call) -> Result:
    return call[0].to(call[1].dtype)


def _empty(element_type: int) -> NDArray[np.generic]:
    return np.empty(0, helper.tensor_dtype_to_np_dtype(element_type))


def _from_proto(tensor: TensorProto, dtype: torch.dtype) -> torch.Tensor:
    value = torch.from_numpy(np.array(numpy_helper.to_array(tensor)))
    return value.to(dtype) if value.is_floating_point() else value

"""Of which dimensions onnxruntime may know the numbers in a planned file, whose activations have names in their place.

A name stands where nothing tells the number: a product has as many rows as what it reads, and the entries of a weight
in each. So it is with a weight's gradient: both of its dimensions are those of weights, and onnxruntime infers them.
What is said here is a guess on the safe side, by the commonest operators; of others all dimensions count as known.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.keys import ROLE
from ckplan.runtime.sizes import SMALL, bytes_of, dimensions_of

# fmt: off
_ELEMENTWISE = frozenset([
    "Add", "Cast", "Clip", "Div", "Dropout", "Equal", "Erf", "Exp", "Gelu", "Greater", "HardSigmoid", "HardSwish",
    "LayerNormalization", "Less", "Log", "LogSoftmax", "Max", "Min", "Mul", "Neg", "Not", "Pow", "Reciprocal",
    "Relu", "Sigmoid", "Sign", "Softmax", "Sqrt", "Sub", "Tanh", "Where",
])
# fmt: on
"""Operators whose outputs have the shape to which their inputs are spread, or that of the first of them."""

_SAMPLES_FIRST = frozenset(
    ["AveragePool", "BatchNormalization", "Conv", "ConvTranspose", "GlobalAveragePool", "MaxPool"]
)
"""Operators whose output has as many samples, along its first axis, as their first input."""


def is_named(value: ir.Value) -> bool:
    """Whether the dimensions of a value are called after its buffer in a planned file (see `buffer_names`).

    Small tensors are too: a mean of known length would give its length away to what is made with it. Not so rows of
    integers, which are shapes and axes, and what is returned, whose shape is the file's to say.
    """
    dims = dimensions_of(value)
    if not dims or value.producer() is None or value.is_graph_output():
        return False
    return tells_shape(value) or len(dims) > 1 or bytes_of(value) >= SMALL


def tells_shape(value: ir.Value) -> bool:
    """Whether a value is one whose shape those of others follow from: no shape or axis itself. Masks are among them.

    Integers are where there are many: indices, and buckets of relative positions.
    """
    if value.dtype is None:
        return False
    return value.dtype.is_floating_point() or value.dtype is ir.DataType.BOOL or bytes_of(value) >= SMALL


class KnownShapes:
    """Which dimensions onnxruntime may know, value by value, each found once."""

    def __init__(self) -> None:
        self._found: dict[ir.Value, tuple[bool, ...]] = {}

    def all_known(self, value: ir.Value) -> bool:
        """Whether onnxruntime may know the whole shape of a value."""
        waiting = [value]
        while waiting:
            current = waiting[-1]
            reads = [] if current in self._found else [read for read in _inputs_of(current) if read not in self._found]
            waiting += reads
            if not reads:
                self._found[waiting.pop()] = self._of(current)
        return all(self._found[value])

    def _of(self, value: ir.Value) -> tuple[bool, ...]:
        if value in self._found:
            return self._found[value]
        rank, node = len(dimensions_of(value) or ()), value.producer()
        nothing, everything = (False,) * rank, (True,) * rank
        if node is None:
            fed = value.is_graph_input() and not value.is_initializer()  # is read through an alias
            return nothing if fed else everything
        if node.metadata_props.get(ROLE) == "control" and node.op_type == "Unsqueeze":
            return nothing
        if not is_named(value):
            return everything
        known = [self._found[read] for read in node.inputs if read is not None]
        first, second = known[0] if known else (), known[1] if len(known) > 1 else ()
        match node.op_type:
            case "Transpose":
                order = node.attributes.get_ints("perm", range(rank)[::-1])
                return tuple(first[axis] for axis in order)
            case "Reshape":
                target = node.inputs[1].const_value if node.inputs[1] is not None else None
                left = -1 if target is None else next(iter(np.flatnonzero(target.numpy() == -1)), 0)
                return tuple(all(first) or axis != left for axis in range(rank))
            case "MatMul" if len(first) > 1 and len(second) > 1:
                return (*_spread([first[:-2], second[:-2]], rank - 2), first[-2], second[-1])
            case "Gemm":
                row, column = node.attributes.get_int("transA", 0), 1 - node.attributes.get_int("transB", 0)
                return first[row], second[column]
            case "Concat":
                along = node.attributes.get_int("axis", 0) % rank
                return tuple(
                    (all if axis == along else any)(told) for axis, told in enumerate(zip(*known, strict=True))
                )
            case "Slice":
                return first
            case op_type if op_type.startswith("Reduce") and len(first) == rank:
                return _or_single(value, first)
            case op_type if op_type in _SAMPLES_FIRST:
                return (first[0], *everything[1:])
            case op_type if op_type in _ELEMENTWISE:
                told = [_beyond_ones(read, self._found[read]) for read in node.inputs if read is not None]
                return _or_single(value, _spread(told, rank))
        return everything


def _inputs_of(value: ir.Value) -> list[ir.Value]:
    node = value.producer()
    return [] if node is None else [read for read in node.inputs if read is not None]


def _beyond_ones(value: ir.Value, known: tuple[bool, ...]) -> tuple[bool, ...]:
    """What a value tells of the dimensions that it is spread to: of those that it has one entry of nothing."""
    return tuple(is_known and size != 1 for is_known, size in zip(known, dimensions_of(value) or (), strict=False))


def _or_single(value: ir.Value, known: tuple[bool, ...]) -> tuple[bool, ...]:
    """The same, with the dimensions of one entry, which no name hides for sure, counted as known."""
    return tuple(is_known or size == 1 for is_known, size in zip(known, dimensions_of(value) or (), strict=True))


def _spread(known: list[tuple[bool, ...]], rank: int) -> tuple[bool, ...]:
    """Which dimensions are known where shapes are aligned at their ends; of one too many, all."""
    if any(len(each) > rank for each in known):
        return (True,) * rank
    return tuple(any(len(each) >= rank - axis and each[axis - rank] for each in known) for axis in range(rank))

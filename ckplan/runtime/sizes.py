"""Sizes of values, also of those whose leading dimension is named after a buffer."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Hashable, Iterable, Sequence
from functools import lru_cache

import onnx_ir as ir

from ckplan.keys import SHAPE
from ckplan.model.node_reads import made_by_name
from ckplan.planner.problem import Problem

SMALL = 4096
"""Tensors below this many bytes do not matter for the peak: they may be copied, and keep a static shape."""

DIMENSIONS = "ckplan.dimensions"
"""Key in ``Value.meta`` for a shape learnt elsewhere, which the value itself does not show."""

_STRING = 32
"""Bytes of a string object in onnxruntime: ``sizeof(std::string)`` of libstdc++."""

_NAMED = re.compile(r"(\d+)@(.+)")
_HIDDEN = re.compile(r"\d{1,18}(x\d{1,18})*")


def named_dimension(size: int, buffer: str) -> str:
    """The name of a dimension of known size, made unique by the buffer it belongs to (see `buffer_names`)."""
    return f"{size}@{buffer}"


@lru_cache(maxsize=1 << 16)
def parts_of_dimension(name: str) -> tuple[int, str] | None:
    """The inverse of `named_dimension`: size and buffer; None for any other name."""
    match = _NAMED.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def dimensions_of(value: ir.Value) -> tuple[int, ...] | None:
    """The static shape of a tensor; None where it is not known, and of what is no tensor, such as an optional one."""
    if isinstance(value.type, ir.OptionalType | ir.SequenceType):
        return None
    if (learnt := value.meta.data.get(DIMENSIONS)) is not None:
        return tuple(learnt)
    if value.shape is None:
        hidden = value.metadata_props.get(SHAPE)
        return None if hidden is None else _numbers(hidden)
    dims = []
    for dim in value.shape:
        if isinstance(dim, int):
            dims.append(dim)
        elif (parts := parts_of_dimension(str(dim.value))) is not None:
            dims.append(parts[0])
        else:
            return None
    return tuple(dims)


def show_dimensions(value: ir.Value, dims: Sequence[int], buffer: str) -> None:
    """Declare the shape of a value by names that only what stands in one buffer shares."""
    value.metadata_props.pop(SHAPE, None)
    value.shape = ir.Shape([named_dimension(dim, buffer) for dim in dims])


def hide_dimensions(value: ir.Value, dims: Sequence[int]) -> None:
    """Declare no shape for a value, so that onnxruntime knows none; ckplan finds it in the metadata."""
    value.metadata_props[SHAPE] = "x".join(map(str, dims))
    value.shape = None


@lru_cache(maxsize=1 << 12)
def _numbers(hidden: str) -> tuple[int, ...] | None:
    """The inverse of what `hide_dimensions` writes; None for anything else."""
    return tuple(map(int, hidden.split("x"))) if _HIDDEN.fullmatch(hidden) else None


def bytes_of(value: ir.Value) -> int:
    """Size of a value in bytes; 0 where it is no tensor of known size (a sequence, an optional).

    Of strings these are the objects; the letters of long ones lie elsewhere, and no graph tells how many there are.
    """
    dims, dtype = dimensions_of(value), value.dtype
    if dims is None or dtype is None:
        return 0
    return math.ceil(math.prod(dims) * (_STRING if dtype is ir.DataType.STRING else dtype.itemsize))


def smallest_fed(inputs: Iterable[ir.Value], besides: Collection[str]) -> ir.Value | None:
    """The smallest tensor of numbers that a graph is fed, weights among them, but for some by name; None if none is."""
    fed = [
        value
        for value in inputs
        if isinstance(value.type, ir.TensorType) and value.name not in besides and bytes_of(value)
        if value.dtype in (ir.DataType.FLOAT, ir.DataType.INT64)
    ]
    return min(fed, key=bytes_of, default=None)


def shape_class(value: ir.Value) -> Hashable | None:
    """What two values must have in common for onnxruntime to give the second the dead buffer of the first.

    None for a value that takes no part in that: of rank 0, or with a dimension that is neither a number nor a name
    (``core/framework/allocation_planner.cc``, ``FindReusableTensor`` and ``SameSize``).
    """
    if value.shape is None or len(value.shape) == 0 or value.dtype is None or value.dtype is ir.DataType.STRING:
        return None
    dims = tuple(dim if isinstance(dim, int) else dim.value for dim in value.shape)
    return None if None in dims else (value.dtype.itemsize, dims)


def shape_classes(nodes: Iterable[ir.Node], problem: Problem) -> list[Hashable | None]:
    """What onnxruntime goes by when it hands dead buffers on, for each tensor of the problem of some nodes."""
    values = made_by_name(nodes)
    return [shape_class(values[tensor.name]) if tensor.name in values else None for tensor in problem.tensors]

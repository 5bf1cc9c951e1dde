"""The cosines and sines of a rotary embedding as the operator reads them.

RotaryEmbedding (https://onnx.ai/onnx/operators/onnx__RotaryEmbedding.html) has one cosine for both elements of a pair,
and a row of them for each position of each sample. So what a file has for both has to be alike, and rows that all
samples share are numbered.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.slices import slice_axes
from ckplan.autodiff.losses.head import SHAPE_ONLY, before_reshapes
from ckplan.autodiff.reading import attr_int, required_input, shape_of, size_of
from ckplan.model.node_reads import fixed_tensor
from ckplan.operators.matching import is_op

_ALONG_ROWS = ("Cast", "Cos", "Expand", "Gather", "Mul", "Neg", "Sin")
"""Operators that make what is the same of what is the same: by one number, or of whole rows."""


@dataclass(frozen=True)
class Rotation:
    """A rotation written out.

    Attributes:
        x: what is rotated, of four axes.
        cos: the cosines, as the file lays them out.
        sin: the sines.
        neighbours: whether the elements of a pair are neighbours and not half a head apart.
    """

    x: ir.Value
    cos: ir.Value
    sin: ir.Value
    neighbours: bool


def rotation_tables(op: Builder, found: Rotation, heads_first: bool, unknown: Collection[ir.Value]) -> list[ir.Value]:
    """Cosines, sines and, where samples share them, the numbers of their rows; nothing where they do not fit.

    Args:
        op: builder of the forward graph.
        found: the rotation.
        heads_first: whether x is (batch, heads, positions, size), or has the positions before the heads.
        unknown: values whose numbers are not to be relied on.
    """
    batch, *middle, size = shape_of(found.x)
    length = middle[heads_first]
    expected = [1, length] if heads_first else [length, 1]
    shapes = {((1,) * 4 + shape_of(table))[-4:] for table in (found.cos, found.sin)}
    (samples, *rows, width), *others = shapes
    if others or samples not in (1, batch) or rows != expected or width not in (size // 2, size):
        return []
    if width == size and not all(_is_alike(table, found.neighbours, unknown) for table in (found.cos, found.sin)):
        return []
    shape = [length, size // 2] if samples < batch else [batch, length, size // 2]
    tables = [_laid_out(op, table, found, shape, unknown) for table in (found.cos, found.sin)]
    if samples < batch:
        tables.append(op.constant(np.tile(np.arange(length), (batch, 1))))
    return tables


def is_along_last(concat: ir.Node) -> bool:
    """Whether a Concat joins along the last axis."""
    return attr_int(concat, "axis", 0) in (-1, len(shape_of(concat.outputs[0])) - 1)


def _laid_out(
    op: Builder, table: ir.Value, found: Rotation, shape: Sequence[int], unknown: Collection[ir.Value]
) -> ir.Value:
    """A table in another shape, with one column for each pair; what the file fixes, as a constant."""
    *outer, width = shape_of(table)
    step = 2 if found.neighbours and width > shape[-1] else 1
    array = _known(table, unknown)
    if array is not None:
        return op.constant(array.reshape(-1, width)[:, : step * shape[-1] : step].reshape(tuple(shape)))
    if width > shape[-1]:
        table = slice_axes(op, table, [len(outer)], [0], [step * shape[-1]], [step])
    return op.reshape(table, shape)


def _known(value: ir.Value, unknown: Collection[ir.Value]) -> np.ndarray | None:
    """The numbers of a value in its shape that the file fixes; None if it does not."""
    data = before_reshapes(value)
    tensor = None if data in unknown else fixed_tensor(data)
    return None if tensor is None else tensor.numpy().reshape(shape_of(value))


def _is_alike(value: ir.Value, neighbours: bool, unknown: Collection[ir.Value]) -> bool:
    """Whether both elements of each pair along the last axis of a value are certain to be the same."""
    size = shape_of(value)[-1]
    array = _known(value, unknown)
    if array is not None:
        pairs = (array[..., ::2], array[..., 1::2]) if neighbours else np.split(array, 2, axis=-1)
        return bool(np.array_equal(*pairs))
    node = value.producer()
    if node is None or node.domain:
        return False
    source, *others = [one for one in node.inputs if one is not None] or [value]
    if node.op_type == "Concat":
        return not neighbours and others == [source] and is_along_last(node)
    if neighbours and node.op_type == "Reshape" and shape_of(source)[-2:] == (size // 2, 2):
        return _repeats(source)
    if node.op_type == "Mul" and size_of(source) == 1:
        source, others = others[0], [source]
    if node.op_type == "Mul" and size_of(others[0]) != 1:
        return False
    if node.op_type == "Gather" and attr_int(node, "axis", 0) % len(shape_of(source)) == len(shape_of(source)) - 1:
        return False
    is_kept = node.op_type in (*SHAPE_ONLY, *_ALONG_ROWS) and shape_of(source)[-1:] == (size,)
    return is_kept and _is_alike(source, neighbours, unknown)


def _repeats(value: ir.Value) -> bool:
    """Whether a value has columns that are all the same: of one that is repeated, or joined with itself."""
    node = value.producer()
    if is_op(node, "Concat"):
        first, *others = node.inputs
        return is_along_last(node) and all(other is first for other in others) and shape_of(value)[-1] == 2
    return is_op(node, "Expand") and shape_of(required_input(node, 0))[-1:] == (1,)

"""Where numbers at columns of places lie in a tensor, and the tensor with the axes of the mask ahead."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.masks.mask_rewriting import Rewriting
from ckplan.model.masks.place_columns import Column


@dataclass(frozen=True)
class Layout:
    """Where numbers at columns of places lie in a tensor.

    Attributes:
        axes: of the mask, of more than one element, that the columns tell, in the order in which the numbers lie.
        numbers: along the tensor's first axes, those that columns are of, taken as one; [sizes of these axes].
        size: of the tensor's first axes, taken as one.
        rest: sizes of its other axes.
    """

    axes: list[int]
    numbers: np.ndarray
    size: int
    rest: tuple[int, ...]

    @property
    def is_whole(self) -> bool:
        """Whether these are all numbers of the tensor, in their order."""
        return bool(np.array_equal(self.numbers.reshape(-1), np.arange(self.size)))


def layout_of(data: ir.Value, columns: Sequence[Column], shape: Sequence[int]) -> Layout | None:
    """Tell where numbers at columns of places lie.

    Args:
        data: of a static shape; a column for each of its first axes.
        columns: of the places of a mask.
        shape: of the mask.

    Returns:
        None if some would lie outside the tensor, or the columns tell nothing.
    """
    sizes = static_shape(data) or ()
    ahead, rest = sizes[: len(columns)], sizes[len(columns) :]
    if len(ahead) < len(columns):
        return None
    strides = [math.prod(ahead[place + 1 :]) for place in range(len(ahead))]
    *steps, start = (
        sum(stride * column[part] for stride, column in zip(strides, columns, strict=True))
        for part in range(len(shape) + 1)
    )
    axes = [axis for axis, step in enumerate(steps) if step and shape[axis] != 1]
    axes.sort(key=lambda axis: -steps[axis])
    numbers = np.full([shape[axis] for axis in axes], start, np.int64)
    for place, axis in enumerate(axes):
        along = [1] * len(axes)
        along[place] = -1
        numbers += steps[axis] * np.arange(shape[axis]).reshape(along)
    size = math.prod(ahead)
    is_inside = bool(axes) and numbers.size > 0 and numbers.min() >= 0 and numbers.max() < size
    return Layout(axes, numbers, size, rest) if is_inside else None


def by_axes(rewriting: Rewriting, before: ir.Node, data: ir.Value, layout: Layout, wanted: Sequence[int]) -> ir.Value:
    """Emit a tensor with axes of the mask ahead, and its rest behind.

    Args:
        rewriting: the model.
        before: the node that reads it.
        data: the tensor.
        layout: where its numbers lie.
        wanted: axes of the mask, ascending; those of the layout are among them, others have a size of 1.
    """
    laid, sizes = data, [*layout.numbers.shape, *layout.rest]
    if not layout.is_whole:
        laid = rewriting.emit(before, "Reshape", laid, rewriting.numbers(layout.size, *layout.rest))
        laid = rewriting.emit(before, "Gather", laid, rewriting.numbers(*layout.numbers.reshape(-1).tolist()), axis=0)
    if laid is not data or static_shape(data) != tuple(sizes):
        laid = rewriting.emit(before, "Reshape", laid, rewriting.numbers(*sizes))
    order = [layout.axes.index(axis) for axis in sorted(layout.axes)]
    laid = _turned(rewriting, before, laid, order, len(layout.rest))
    if len(layout.axes) == len(wanted):
        return laid
    ones = [layout.numbers.shape[layout.axes.index(axis)] if axis in layout.axes else 1 for axis in wanted]
    return rewriting.emit(before, "Reshape", laid, rewriting.numbers(*ones, *layout.rest))


def as_before(rewriting: Rewriting, before: ir.Node, laid: ir.Value, data: ir.Value, layout: Layout) -> ir.Value:
    """Emit a tensor with the mask's axes of a layout ahead, ascending, in the shape that it had before `by_axes`."""
    order = sorted(layout.axes)
    laid = _turned(rewriting, before, laid, [order.index(axis) for axis in layout.axes], len(layout.rest))
    sizes = static_shape(data) or ()
    if sizes == (*layout.numbers.shape, *layout.rest):
        return laid
    return rewriting.emit(before, "Reshape", laid, rewriting.numbers(*sizes))


def _turned(rewriting: Rewriting, before: ir.Node, value: ir.Value, order: Sequence[int], rest: int) -> ir.Value:
    """Emit a tensor with its first axes in another order."""
    behind = range(len(order), len(order) + rest)
    return value if order == sorted(order) else rewriting.emit(before, "Transpose", value, perm=[*order, *behind])

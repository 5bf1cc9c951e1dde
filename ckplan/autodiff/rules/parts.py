"""Gradients of parts of a tensor, which are zeros elsewhere, joined where parts lie beside each other.

A roll along an axis, or the patches that a Swin merges, are written as slices that are a whole axis together. Each for
itself has a gradient of the size of the whole, and these are added; joined they are one copy without a zero.
"""

from __future__ import annotations

from dataclasses import dataclass

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.rules.windows import pad_axes

_KEY = "ckplan.part"
"""Key in ``Value.meta``: the part that a value is zero beside."""


@dataclass(frozen=True)
class _Part:
    """What stands along an axis from ``start`` on; zeros stand in the rest of the ``size`` elements."""

    value: ir.Value
    axis: int
    start: int
    size: int

    @property
    def end(self) -> int:
        """Where the zeros behind it begin."""
        return self.start + shape_of(self.value)[self.axis]


def is_part(size: int, taken: range) -> bool:
    """Whether what is taken of an axis is a stretch of it, or of each so many elements the same one."""
    return taken.step == 1 or (taken.start < taken.step and len(taken) * taken.step == size)


def gradient_of_part(op: Builder, whole: ir.Value, g: ir.Value, axis: int, taken: range) -> ir.Value:
    """Emit the gradient of a tensor by a part, or by that and the parts beside it that have been through before.

    Args:
        op: the builder.
        whole: the tensor.
        g: gradient of the part.
        axis: along which it is a part.
        taken: its elements, see :func:`is_part`.
    """
    shape, step = shape_of(whole), taken.step
    if step > 1:
        g = op.reshape(g, [*shape[:axis], len(taken), 1, *shape[axis + 1 :]])
        part = _Part(g, axis + 1, taken.start, step)
    else:
        part = _Part(g, axis, taken.start, shape[axis])
    sofar = op.partials.get(whole)
    other = sofar.meta.get(_KEY) if sofar is not None and op.pending.get(whole, 1.0) == 1.0 else None
    if other is not None and (joined := _joined(op, part, other)):
        op.take_partial(whole)
        part = joined
    padded = pad_axes(op, part.value, [part.axis], [part.start], [part.size - part.end])
    gradient = op.reshape(padded, shape)
    if padded is not part.value:
        gradient.meta[_KEY] = part
    return gradient


def _joined(op: Builder, one: _Part, other: _Part) -> _Part | None:
    """Both parts as one, if one begins where the other ends."""
    first, last = sorted((one, other), key=lambda part: part.start)
    if (one.axis, one.size, len(shape_of(one.value))) != (other.axis, other.size, len(shape_of(other.value))):
        return None
    if first.end != last.start:
        return None
    return _Part(op.Concat(first.value, last.value, axis=one.axis), one.axis, first.start, one.size)

"""Gradients of parts of a tensor, which are zeros elsewhere, joined where parts lie beside each other.

A roll along an axis, the patches that a Swin merges, or the steps that an unrolled recurrence reads, are written as
parts that are a whole axis together. Each for itself has a gradient of the size of the whole, and these are added, n
times the whole for n steps; joined they are one copy without a zero.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.pieces.running_sums import add_to
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.rules.windows import pad_axes

_KEY = "ckplan.part"
"""Key in ``Value.meta``: the part that a value is zero beside, or what others gave."""

_MOST_PIECES = 64
"""Pieces that are one from then on. Each part that joins them makes a Concat of all, of which the last one stays."""


@dataclass(frozen=True)
class _Part:
    """What stands along an axis from ``start`` on; zeros stand in the rest of the ``size`` elements.

    Attributes:
        pieces: of it, one behind the other.
        axis: along which they stand.
        start: where the first one begins.
        size: of the whole along the axis.
        others: what was given to all of the whole before; None if that is nothing.
    """

    pieces: tuple[ir.Value, ...]
    axis: int
    start: int
    size: int
    others: ir.Value | None = None

    @property
    def end(self) -> int:
        """Where the zeros behind it begin."""
        return self.start + sum(shape_of(piece)[self.axis] for piece in self.pieces)


def is_part(size: int, taken: range) -> bool:
    """Whether what is taken of an axis is a stretch of it, or of each so many elements the same one."""
    return taken.step == 1 or (taken.start < taken.step and len(taken) * taken.step == size)


def gradient_of_part(op: Builder, whole: ir.Value, g: ir.Value, axis: int, taken: range) -> ir.Value:
    """Emit the gradient of a tensor by a part, with what the tensor was given before.

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
        part = _Part((g,), axis + 1, taken.start, step)
    else:
        part = _Part((g,), axis, taken.start, shape[axis])
    before = op.partials.get(whole) if op.pending.get(whole, 1.0) == 1.0 else None
    if before is not None:
        op.take_partial(whole)
        other = before.meta.get(_KEY)
        joined = None if other is None else _joined(part, other)
        part = joined or replace(part, others=before)
    value = part.pieces[0] if len(part.pieces) == 1 else op.Concat(*part.pieces, axis=part.axis)
    gradient = op.reshape(pad_axes(op, value, [part.axis], [part.start], [part.size - part.end]), shape)
    if part.others is not None:
        gradient = add_to(op, part.others, gradient)
    if part.end - part.start < part.size:
        gradient.meta[_KEY] = replace(part, pieces=(value,)) if len(part.pieces) >= _MOST_PIECES else part
    return gradient


def _joined(one: _Part, other: _Part) -> _Part | None:
    """Both parts as one, if one begins where the other ends."""
    if (one.axis, one.size, len(shape_of(one.pieces[0]))) != (other.axis, other.size, len(shape_of(other.pieces[0]))):
        return None
    first, last = sorted((one, other), key=lambda part: part.start)
    if first.end != last.start:
        return None
    return replace(other, pieces=(*first.pieces, *last.pieces), start=first.start)

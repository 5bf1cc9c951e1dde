"""Attention in pieces of its heads: the scores of some are there at a time.

Heads have nothing in common but a mask. So a Scan over groups of them, of all members of the batch, carries no state:
its inputs and its outputs are parts of tensors that are there, and nothing is summed up over pieces. The square of the
tokens remains, divided by the number of pieces; pieces of queries (`ckplan.autodiff.attention.queries`) are for where
the scores of one head are too large.
"""

from __future__ import annotations

import math
from collections.abc import Container
from functools import partial

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.attention.masks import part_of_mask
from ckplan.autodiff.attention.pattern import Attention
from ckplan.autodiff.attention.replacement import emit_pieces, fill_body
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder, new_value
from ckplan.autodiff.paths import depends
from ckplan.autodiff.pieces.regions import largest_divisor
from ckplan.autodiff.reading import shape_of


def most_pieces(attention: Attention, pieces: int, wanted: Container[ir.Value]) -> int:
    """Into how many pieces the heads of an attention go, at most so many; 1 where they cannot be told apart.

    Args:
        attention: the attention.
        pieces: the most that is wanted.
        wanted: the values that gradients are asked for.
    """
    batch = shape_of(attention.scores.outputs[0])[:-2]
    if any(shape_of(value)[:-2] != batch for value in attention.operands):
        return 1
    for value in attention.outside:
        ahead = _ahead(value, len(batch))
        if any(size > 1 for size in ahead[1:]) or (ahead[0] > 1 and (len(batch) == 1 or depends(value, wanted))):
            return 1
    unit = batch[0] if _by_member(attention) else 1  # no piece has heads of two members, where each has its own mask
    return unit * largest_divisor(math.prod(batch) // unit, pieces // unit) if pieces >= unit else 1


def emit(op: Builder, attention: Attention, count: int) -> ir.Value:
    """Emit a Scan over groups of heads, in the scope of an attention; return its result."""
    shape = shape_of(attention.result.outputs[0])
    batch = shape[:-2]
    group = (*[1] * (len(batch) - 1), math.prod(batch) // count)
    inputs = [op.reshape(value, (count, *group, *shape_of(value)[-2:])) for value in attention.operands]
    if _by_member(attention):
        inputs.append(op.constant(np.arange(count, dtype=np.int64) * batch[0] // count))
    body = _body(op, attention, group)
    return op.reshape(emit_pieces(op, attention, inputs, body, (count, *group, *shape[-2:])), shape)


def _ahead(value: ir.Value, axes: int) -> tuple[int, ...]:
    """The sizes of the axes before the last two, as many as the scores have."""
    ahead = shape_of(value)[:-2]
    return (*[1] * (axes - len(ahead)), *ahead)


def _by_member(attention: Attention) -> list[ir.Value]:
    """What is read from outside and is another for each member of the batch."""
    axes = len(shape_of(attention.scores.outputs[0])) - 2
    return [value for value in attention.outside if _ahead(value, axes)[0] > 1]


def _body(op: Builder, attention: Attention, group: tuple[int, ...]) -> ir.Graph:
    """What is done for a group of heads: the same nodes, and of masks the part of its member of the batch."""
    name, masks = attention.name, _by_member(attention)
    operands = [
        new_value(op, f"{name}/{part}", value.dtype, (*group, *shape_of(value)[-2:]))
        for part, value in zip("qkv", attention.operands, strict=True)
    ]
    member = [new_value(op, f"{name}/member", ir.DataType.INT64, ())] if masks else []
    inner = BodyBuilder(op, ir.Graph([*operands, *member], [], nodes=[], name=op.unique_name(f"{name}/heads")))
    parts: dict[ir.Value, ir.Value] = {}
    with inner.scope(name, "forward"):
        places = [inner.reshape(number, (1,)) for number in member]

        def cut(value: ir.Value) -> ir.Value:
            return inner.Gather(value, places[0], axis=0)

        for mask in masks:
            part_of_mask(inner, mask, parts, partial(_has_members, rank=len(shape_of(mask))), cut)
    fill_body(inner, attention, operands, parts, lambda shape: (*group, *shape[-2:]))
    return inner.graph


def _has_members(shape: tuple[int, ...], rank: int) -> bool:
    """Whether a value of a shape is another for each member of the batch, as a mask of a rank is."""
    return len(shape) == rank and shape[0] > 1

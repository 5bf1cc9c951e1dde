"""Attention in pieces of its queries: scores and their softmax, queries by keys, never exist whole.

What stands between two products, ``softmax(q kᵀ · scale + mask) v``, is made by a Scan over chunks of queries. It keeps
nothing of a chunk: the backward pass makes the scores and the softmax of a chunk again, writes the chunk's gradient of
the queries, and adds to those of keys and values, which are states. So memory grows with the tokens and not with their
square, as in Rabe & Staats, "Self-attention Does Not Need O(n²) Memory" (arXiv:2112.05682); but a row of scores stays
whole, so that nothing is rescaled and a row of the softmax is what it is without chunks.
"""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.attention.masks import part_of_mask
from ckplan.autodiff.attention.pattern import Attention
from ckplan.autodiff.attention.replacement import emit_pieces, fill_body
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder, new_value
from ckplan.autodiff.reading import shape_of


def emit(op: Builder, attention: Attention, count: int) -> ir.Value:
    """Emit a Scan over chunks of queries, in the scope of an attention; return its result."""
    queries, shape = attention.operands[0], shape_of(attention.result.outputs[0])
    *batch, tokens, depth = shape_of(queries)
    ahead, length = len(batch), tokens // count
    chunked = op.reshape(queries, (*batch, count, length, depth))
    chunks = op.transpose(chunked, (ahead, *range(ahead), ahead + 1, ahead + 2))
    starts = op.constant(np.arange(count, dtype=np.int64) * length)
    body = _body(op, attention, length)
    made = emit_pieces(op, attention, [chunks, starts], body, (count, *shape[:-2], length, shape[-1]))
    ahead = len(shape) - 2
    return op.reshape(op.transpose(made, (*range(1, ahead + 1), 0, ahead + 1, ahead + 2)), shape)


def _body(op: Builder, attention: Attention, length: int) -> ir.Graph:
    """What is done for a chunk of queries: the same nodes, on rows of what has rows."""

    def rows_of(shape: tuple[int, ...]) -> tuple[int, ...]:
        return (*shape[:-2], length, shape[-1])

    name = attention.name
    queries, keys, values = attention.operands
    chunk = new_value(op, f"{name}/q", queries.dtype, rows_of(shape_of(queries)))
    start = new_value(op, f"{name}/start", ir.DataType.INT64, ())
    inner = BodyBuilder(op, ir.Graph([chunk, start], [], nodes=[], name=op.unique_name(f"{name}/queries")))
    parts: dict[ir.Value, ir.Value] = {}
    with inner.scope(name, "forward"):
        first = inner.reshape(start, (1,))
        last = inner.Add(first, np.asarray([length], dtype=np.int64))

        def cut(value: ir.Value) -> ir.Value:
            axis = np.asarray([len(shape_of(value)) - 2], dtype=np.int64)
            part: ir.Value = inner.emit("Slice", value, first, last, axis, _shape=rows_of(shape_of(value)))
            part.type = value.type
            return part

        tokens = shape_of(queries)[-2]
        for value in attention.by_rows:
            part_of_mask(inner, value, parts, lambda shape: shape[-2:-1] == (tokens,), cut)
    fill_body(inner, attention, [chunk, keys, values], parts, rows_of)
    return inner.graph

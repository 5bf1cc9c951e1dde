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

from ckplan.autodiff.attention import Attention
from ckplan.autodiff.builder import Builder, required_input, shape_of
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, copy_nodes, emit_control, new_value
from ckplan.autodiff.control_flow.policy import keep_patterns
from ckplan.autodiff.paths import discard
from ckplan.keys import PHASE, PIECES


def replace(op: Builder, attention: Attention, count: int) -> ir.Value:
    """Put a Scan over chunks of queries in the place of an attention; return its result."""
    queries, old = required_input(attention.scores, 0), attention.result.outputs[0]
    shape, name = shape_of(old), str(attention.softmax.name)
    batch, length = shape_of(queries)[:-2], shape[-2] // count
    ahead = len(batch)
    with op.scope(name, "forward", before=attention.result):
        chunked = op.reshape(queries, (*batch, count, length, shape_of(queries)[-1]))
        chunks = op.transpose(chunked, (ahead, *range(ahead), ahead + 1, ahead + 2))
        starts = op.constant(np.arange(count, dtype=np.int64) * length)
        body = _body(op, attention, name, length)
        rows = (*shape[:-2], length, shape[-1])
        output = new_value(op, f"{name}/rows", old.dtype, (count, *rows))
        attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", 2)]
        about = {PHASE: "forward", PIECES: str(count)}
        scan = emit_control(op, "Scan", f"{name}/Scan", [chunks, starts], attributes, [output], about)
        keep_patterns(scan, [])
        ahead = len(shape) - 2
        new = op.reshape(op.transpose(output, (*range(1, ahead + 1), 0, ahead + 1, ahead + 2)), shape)
    new.name, old.name = old.name, None
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    discard(op.graph, list(reversed(attention.nodes)))
    return new


def _body(op: Builder, attention: Attention, name: str, length: int) -> ir.Graph:
    """What is done for a chunk of queries: the same nodes, on rows of what has rows."""
    queries = required_input(attention.scores, 0)
    chunk = new_value(op, f"{name}/q", queries.dtype, (*shape_of(queries)[:-2], length, shape_of(queries)[-1]))
    start = new_value(op, f"{name}/start", ir.DataType.INT64, ())
    graph = ir.Graph([chunk, start], [], nodes=[], name=op.unique_name(f"{name}/queries"))
    inner = BodyBuilder(op, graph)
    values: dict[ir.Value, ir.Value] = {}
    with inner.scope(name, "forward"):
        first = inner.reshape(start, (1,))
        last = inner.Add(first, np.asarray([length], dtype=np.int64))
        for value in attention.by_rows:
            axis = np.asarray([len(shape_of(value)) - 2], dtype=np.int64)
            part = (*shape_of(value)[:-2], length, shape_of(value)[-1])
            values[value] = cut = inner.emit("Slice", value, first, last, axis, _shape=part)
            cut.type = value.type
    for node in attention.nodes:
        # The queries are read in rows by the first product alone: keys or values may be the same tensor.
        own = {**values, queries: chunk} if node is attention.scores else dict(values)
        (copy,) = copy_nodes(op, [node], own, "forward")
        if node is attention.scores and copy.inputs[1] is chunk:
            copy.replace_input_with(1, queries)
        for output, made in zip(node.outputs, copy.outputs, strict=True):
            values[output] = made
            made.shape = ir.Shape((*shape_of(output)[:-2], length, shape_of(output)[-1]))
        graph.append(copy)
    graph.outputs.append(values[attention.result.outputs[0]])
    close_body(inner)
    return graph

"""Attention in pieces of its queries: scores and their softmax, queries by keys, never exist whole.

What stands between two products, ``softmax(q kᵀ · scale + mask) v``, is made by a Scan over chunks of queries. It keeps
nothing of a chunk: the backward pass makes the scores and the softmax of a chunk again, writes the chunk's gradient of
the queries, and adds to those of keys and values, which are states. So memory grows with the tokens and not with their
square, as in Rabe & Staats, "Self-attention Does Not Need O(n²) Memory" (arXiv:2112.05682); but a row of scores stays
whole, so that nothing is rescaled and a row of the softmax is what it is without chunks.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, attr_int, dtype_of, required_input, shape_of, size_of
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, copy_nodes, emit_control, new_value
from ckplan.autodiff.control_flow.policy import keep_patterns
from ckplan.autodiff.paths import depends, discard
from ckplan.autodiff.regions import Region, largest_divisor
from ckplan.keys import PHASE, PIECES

_ELEMENTWISE = frozenset(
    {"Add", "Sub", "Mul", "Div", "Neg", "Where", "Cast", "Identity", "IsNaN", "Min", "Max", "Clip", "Tanh", "Softmax"}
)
"""Operators that may stand between the products; Softmax along the keys."""

_DROPOUTS = frozenset({"Dropout", "TrainingDropout"})


@dataclass(frozen=True)
class Attention:
    """The nodes of an attention.

    Attributes:
        nodes: from the product that makes the scores to the one with the values, in the order of the graph.
        scores: the first of them.
        result: the last of them.
        softmax: the one in between that gives its name.
        by_rows: what the nodes between the products read from outside that has a row for each query.
    """

    nodes: tuple[ir.Node, ...]
    scores: ir.Node
    result: ir.Node
    softmax: ir.Node
    by_rows: tuple[ir.Value, ...]


def chunk_attentions(
    op: Builder, pieces: int, wanted: Container[ir.Value]
) -> tuple[dict[ir.Value, ir.Value], list[Region], list[str]]:
    """Put a Scan over chunks of queries in the place of each attention.

    An attention is left as it is where anybody else reads what is between its products, where its mask is trained, and
    where a Dropout stands in it, which draws one mask for all rows.

    Args:
        op: builder of the forward graph.
        pieces: into how many chunks the queries go, at most; a number that divides that of the queries is taken. 1
            cuts nothing.
        wanted: the values that gradients are asked for.

    Returns:
        What took the place of results; the attentions, whether they were cut or not; and notes.
    """
    found, notes, made = [], [], {}
    for node in [n for n in op.graph if n.op_type == "MatMul" and not n.domain]:
        attention = attention_of(node, wanted)
        if isinstance(attention, str):
            notes += [attention] if pieces > 1 and attention else []
            continue
        score = attention.softmax.outputs[0]
        rows = shape_of(score)[-2]
        count = largest_divisor(rows, pieces)
        size = size_of(score) * dtype_of(score).itemsize
        found.append(Region("attention", str(score.name), "queries", rows, size, str(attention.softmax.name), count))
        if count > 1:
            made[node.outputs[0]] = _replace(op, attention, count)
    return made, found, notes


def attention_of(result: ir.Node, wanted: Container[ir.Value]) -> Attention | str:
    """The attention that a product is the end of; else why it is none that can be cut, if that is worth a note."""
    weights, values = required_input(result, 0), required_input(result, 1)
    shape = shape_of(weights)
    if len(shape) < 3 or len(shape_of(values)) < 2 or shape[-2] < 2:
        return ""
    members, outside = _between(weights, shape)
    products = [node for node in members if node.op_type == "MatMul"]
    softmaxes = [node for node in members if node.op_type == "Softmax"]
    if len(softmaxes) == 1 and any(_is_dropout(value.producer()) for value in (weights, *outside)):
        return f"the attention of '{softmaxes[0].name}' stays whole: a Dropout in it draws one mask for all queries"
    if len(products) != 1 or len(softmaxes) != 1 or len(shape_of(required_input(products[0], 0))) != len(shape):
        return _dropped_out(weights)
    inside, made = {result, *members}, [value for node in members for value in node.outputs]
    if any(value.is_graph_output() or value in wanted for value in made):
        return ""
    if any(use.node not in inside for value in made for use in value.uses()):
        return ""
    by_rows = [value for value in outside if shape_of(value)[-2:-1] == shape[-2:-1]]
    if any(depends(value, wanted) for value in by_rows):
        return f"the attention of '{softmaxes[0].name}' stays whole: what is added to its scores is trained"
    graph = result.graph
    assert graph is not None
    ordered = tuple(node for node in graph if node in inside)
    return Attention(ordered, products[0], result, softmaxes[0], tuple(by_rows))


def _dropped_out(weights: ir.Value) -> str:
    """The note on an attention whose softmax goes through a Dropout before it meets the values."""
    node = weights.producer()
    if not _is_dropout(node) or node is None:
        return ""
    softmax = required_input(node, 0).producer()
    if softmax is None or softmax.op_type != "Softmax":
        return ""
    return f"the attention of '{softmax.name}' stays whole: a Dropout in it draws one mask for all queries"


def _is_dropout(node: ir.Node | None) -> bool:
    return node is not None and node.op_type in _DROPOUTS


def _between(weights: ir.Value, shape: tuple[int, ...]) -> tuple[list[ir.Node], list[ir.Value]]:
    """The nodes on the way from the product that makes the scores, and what those behind it read from outside."""
    known: dict[ir.Value, bool] = {}

    def comes_from_scores(value: ir.Value) -> bool:
        if value not in known:
            node = value.producer()
            known[value] = False
            if node is not None and not node.domain and shape_of(value) == shape:
                along = node.op_type != "Softmax" or attr_int(node, "axis", -1) % len(shape) == len(shape) - 1
                elementwise = along and node.op_type in _ELEMENTWISE
                read = [comes_from_scores(v) for v in node.inputs if v is not None] if elementwise else []
                known[value] = node.op_type == "MatMul" or any(read)
        return known[value]

    comes_from_scores(weights)
    members: list[ir.Node] = []
    outside: list[ir.Value] = []
    for value, inside in known.items():
        node = value.producer()
        if not inside or node is None:
            continue
        members.append(node)
        if node.op_type != "MatMul":
            outside += [v for v in node.inputs if v is not None and not known.get(v, False) and v not in outside]
    return members, outside


def _replace(op: Builder, attention: Attention, count: int) -> ir.Value:
    """Put a Scan in the place of an attention; return its result."""
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

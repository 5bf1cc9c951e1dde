"""Attention in pieces of its heads: the scores of some are there at a time.

Heads have nothing in common but a mask. So a Scan over groups of them, of all members of the batch, carries no state:
its inputs and its outputs are parts of tensors that are there, and nothing is summed up over pieces. The square of the
tokens remains, divided by the number of pieces; pieces of queries (`ckplan.autodiff.attention_rows`) are for where the
scores of one head are too large.
"""

from __future__ import annotations

import math
from collections.abc import Container

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.attention import Attention
from ckplan.autodiff.builder import Builder, required_input, shape_of
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close_body, copy_nodes, emit_control, new_value
from ckplan.autodiff.control_flow.policy import keep_patterns
from ckplan.autodiff.paths import depends, discard
from ckplan.autodiff.regions import largest_divisor
from ckplan.keys import PHASE, PIECES


def most_pieces(attention: Attention, pieces: int, wanted: Container[ir.Value]) -> int:
    """Into how many pieces the heads of an attention go, at most so many; 1 where they cannot be told apart.

    Args:
        attention: the attention.
        pieces: the most that is wanted.
        wanted: the values that gradients are asked for.
    """
    batch = shape_of(attention.scores.outputs[0])[:-2]
    if any(shape_of(value)[:-2] != batch for value in _products(attention)):
        return 1
    for value in attention.outside:
        ahead = _ahead(value, len(batch))
        if any(size > 1 for size in ahead[1:]) or (ahead[0] > 1 and (len(batch) == 1 or depends(value, wanted))):
            return 1
    unit = batch[0] if _by_member(attention) else 1  # no piece has heads of two members, where each has its own mask
    return unit * largest_divisor(math.prod(batch) // unit, pieces // unit) if pieces >= unit else 1


def replace(op: Builder, attention: Attention, count: int) -> ir.Value:
    """Put a Scan over groups of heads in the place of an attention; return its result."""
    old = attention.result.outputs[0]
    shape, name = shape_of(old), str(attention.softmax.name)
    batch = shape[:-2]
    group = (*[1] * (len(batch) - 1), math.prod(batch) // count)
    with op.scope(name, "forward", before=attention.result):
        inputs = [op.reshape(value, (count, *group, *shape_of(value)[-2:])) for value in _products(attention)]
        if _by_member(attention):
            inputs.append(op.constant(np.arange(count, dtype=np.int64) * batch[0] // count))
        body = _body(op, attention, name, group)
        output = new_value(op, f"{name}/heads", old.dtype, (count, *group, *shape[-2:]))
        attributes = [ir.AttrGraph("body", body), ir.AttrInt64("num_scan_inputs", len(inputs))]
        about = {PHASE: "forward", PIECES: str(count)}
        scan = emit_control(op, "Scan", f"{name}/Scan", inputs, attributes, [output], about)
        keep_patterns(scan, [])
        new = op.reshape(output, shape)
    new.name, old.name = old.name, None
    old.replace_all_uses_with(new, replace_graph_outputs=True)
    discard(op.graph, list(reversed(attention.nodes)))
    return new


def _products(attention: Attention) -> list[ir.Value]:
    """Queries, keys and values, as the two products read them."""
    return [*(required_input(attention.scores, i) for i in (0, 1)), required_input(attention.result, 1)]


def _ahead(value: ir.Value, axes: int) -> tuple[int, ...]:
    """The sizes of the axes before the last two, as many as the scores have."""
    ahead = shape_of(value)[:-2]
    return (*[1] * (axes - len(ahead)), *ahead)


def _by_member(attention: Attention) -> list[ir.Value]:
    """What is read from outside and is another for each member of the batch."""
    axes = len(shape_of(attention.scores.outputs[0])) - 2
    return [value for value in attention.outside if _ahead(value, axes)[0] > 1]


def _body(op: Builder, attention: Attention, name: str, group: tuple[int, ...]) -> ir.Graph:
    """What is done for a group of heads: the same nodes, and of masks the part of its member of the batch."""
    parts = [
        new_value(op, f"{name}/{part}", value.dtype, (*group, *shape_of(value)[-2:]))
        for part, value in zip("qkv", _products(attention), strict=True)
    ]
    masks = _by_member(attention)
    member = [new_value(op, f"{name}/member", ir.DataType.INT64, ())] if masks else []
    graph = ir.Graph([*parts, *member], [], nodes=[], name=op.unique_name(f"{name}/heads"))
    inner = BodyBuilder(op, graph)
    values: dict[ir.Value, ir.Value] = {}
    with inner.scope(name, "forward"):
        for value in masks:
            place = inner.reshape(member[0], (1,))
            values[value] = inner.Gather(value, place, axis=0)
    for node in attention.nodes:
        (copy,) = copy_nodes(op, [node], dict(values), "forward")
        # Queries, keys and values may be one tensor, so that they are told apart by who reads them.
        if node is attention.scores:
            copy.replace_input_with(0, parts[0])
            copy.replace_input_with(1, parts[1])
        if node is attention.result:
            copy.replace_input_with(1, parts[2])
        for output, made in zip(node.outputs, copy.outputs, strict=True):
            values[output] = made
            made.shape = ir.Shape((*group, *shape_of(output)[-2:]))
        graph.append(copy)
    graph.outputs.append(values[attention.result.outputs[0]])
    close_body(inner)
    return graph

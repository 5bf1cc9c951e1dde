"""Attention without the keys that a mask hides from all queries of a block.

A causal mask hides half of all scores. They are made all the same, take part in two products, a softmax and the
gradients of all that, and are kept for the backward pass as zeros. So queries go in blocks of neighbours, and each
block reads the keys and values from the first one that any of its queries is shown to the last: three quarters of the
scores with two blocks, five eighths with four, and of a window that slides along the keys little more than the window.
What is left out is zero in the file, too, so that nothing is approximated.
"""

from __future__ import annotations

import math
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.attention.fixed import Fixed, fixed_arrays
from ckplan.autodiff.attention.hidden import hidden_scores
from ckplan.autodiff.attention.pattern import Attention, attention_of
from ckplan.autodiff.attention.replacement import replace
from ckplan.autodiff.attention.stretches import cut_stretch, split_stretches
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import copy_nodes
from ckplan.autodiff.reading import required_input, shape_of
from ckplan.autodiff.slices import stretch
from ckplan.operators.matching import is_op
from ckplan.operators.table import ELEMENTWISE

_LEAST_LEFT_OUT = 16
"""Queries whose scores each of twice as many blocks has to leave out more, to be worth its nodes: behind a causal mask
128 queries go in two blocks, 512 in four, 2048 in eight."""


@dataclass(frozen=True)
class Block:
    """Neighbouring queries, and the keys that any of them is shown.

    Attributes:
        queries: from where to before where.
        keys: likewise.
    """

    queries: tuple[int, int]
    keys: tuple[int, int]

    @property
    def scores(self) -> int:
        """Of one head."""
        return math.prod(end - start for start, end in (self.queries, self.keys))


_Parts = dict[tuple[ir.Value, Block], ir.Value]


def leave_out_hidden_keys(
    op: Builder, wanted: Container[ir.Value], held: Container[ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Put attentions of blocks of queries in the place of those that hide enough; return what took whose place.

    Args:
        op: builder of the forward graph.
        wanted: the values that gradients are asked for.
        held: these, the values that are differentiated, and parameters: none of them is fixed.
    """
    made: dict[ir.Value, ir.Value] = {}
    fixed = fixed_arrays(op, held)
    parts: _Parts = {}
    for node in [n for n in op.graph if is_op(n, "MatMul")]:
        attention = attention_of(node, wanted)
        if isinstance(attention, str):
            continue
        hidden = hidden_scores(attention, fixed)
        blocks = [] if hidden is None else blocks_of(hidden)
        if len(blocks) > 1:
            with op.scope(attention.name, "forward", before=attention.result):
                new = _emit(op, attention, blocks, fixed, parts)
            made[node.outputs[0]] = replace(op, attention, new)
    return made


def blocks_of(hidden: np.ndarray) -> list[Block]:
    """The blocks that queries go in: twice as many as long as that leaves out enough.

    Args:
        hidden: which scores are hidden, [queries, keys]; no query is shown nothing.
    """
    queries, keys = hidden.shape
    blocks = _equal_blocks(hidden, 1)
    while 2 * len(blocks) <= queries:
        more = _equal_blocks(hidden, 2 * len(blocks))
        left_out = sum(block.scores for block in blocks) - sum(block.scores for block in more)
        if left_out < _LEAST_LEFT_OUT * keys * len(more):
            break
        blocks = more
    return blocks


def _equal_blocks(hidden: np.ndarray, count: int) -> list[Block]:
    bounds = [len(hidden) * number // count for number in range(count + 1)]
    blocks = []
    for start, end in pairwise(bounds):
        shown = np.flatnonzero(~hidden[start:end].all(axis=0))
        blocks.append(Block((start, end), (int(shown[0]), int(shown[-1]) + 1)))
    return blocks


def _emit(op: Builder, attention: Attention, blocks: Sequence[Block], fixed: Fixed, parts: _Parts) -> ir.Value:
    """Emit the attentions of blocks, in the scope of the whole one; return their results, end to end."""
    queries, keys, values = attention.operands
    sizes = [end - start for start, end in (block.queries for block in blocks)]
    rows = split_stretches(op, queries, len(shape_of(queries)) - 2, sizes)
    results = []
    for block, some in zip(blocks, rows, strict=True):
        read = {value: _part(op, value, block, attention, fixed, parts) for value in attention.outside}
        copies = dict(zip(attention.nodes, copy_nodes(op, attention.nodes, read, "forward"), strict=True))
        shown_keys = cut_stretch(op, keys, len(shape_of(keys)) - 1, *block.keys)
        shown_values = cut_stretch(op, values, len(shape_of(values)) - 2, *block.keys)
        for (reader, place), operand in zip(attention.readers, (some, shown_keys, shown_values), strict=True):
            copies[reader].replace_input_with(place, operand)
        for copy in copies.values():
            op.insert(copy)
            op.infer(copy)
        results.append(copies[attention.result].outputs[0])
    whole: ir.Value = op.Concat(*results, axis=len(shape_of(results[0])) - 2)
    return whole


def _part(op: Builder, value: ir.Value, block: Block, attention: Attention, fixed: Fixed, parts: _Parts) -> ir.Value:
    """Emit the part of a mask, or of another value that stretches to the scores, which a block reads.

    It is computed as the whole one is, where the file fixes what that is computed of: of parts of that.
    """
    queries, keys = shape_of(attention.softmax.outputs[0])[-2:]
    cuts = [
        (axis, *bounds)
        for axis, size, bounds in ((-2, queries, block.queries), (-1, keys, block.keys))
        if shape_of(value)[axis:][:1] == (size,) and size > 1
    ]
    if not cuts:
        return value
    if (value, block) in parts:
        return parts[value, block]
    known = fixed(value)
    node = value.producer()
    if known is None:
        part = value
        for axis, start, end in cuts:
            part = stretch(op, part, len(shape_of(value)) + axis, start, end)
    elif is_op(node, "Expand"):
        part = _part(op, required_input(node, 0), block, attention, fixed, parts)
    elif node is not None and not node.domain and node.op_type in ELEMENTWISE:
        read = {v: _part(op, v, block, attention, fixed, parts) for v in node.inputs if v is not None}
        (copy,) = copy_nodes(op, [node], read, "forward")
        op.insert(copy)
        op.infer(copy)
        part = copy.outputs[0]
    else:
        for axis, start, end in cuts:
            known = known.take(range(start, end), axis)
        part = op.constant(known)
    parts[value, block] = part
    return part

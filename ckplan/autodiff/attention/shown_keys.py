"""Attention without the keys that a mask hides from all queries of a block.

A causal mask hides half of all scores. They are made all the same, take part in two products, a softmax and the
gradients of all that, and are kept for the backward pass as zeros. So queries go in blocks of neighbours, and each
block reads the keys and values from the first one that any of its queries is shown to the last: three quarters of the
scores with two blocks, five eighths with four, and of a window that slides along the keys little more than the window.
What is left out is zero in the file, too, so that nothing is approximated.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Container, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.attention.fixed import Fixed, fixed_arrays
from ckplan.autodiff.attention.hidden import hidden_scores
from ckplan.autodiff.attention.masks import part_of_mask
from ckplan.autodiff.attention.pattern import Attention, attention_of
from ckplan.autodiff.attention.replacement import replace
from ckplan.autodiff.attention.stretches import cut_stretch, split_stretches
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import copy_nodes
from ckplan.autodiff.idioms.slices import stretch
from ckplan.autodiff.reading import shape_of
from ckplan.operators.matching import is_op

BLOCKS = "ckplan/blocks"
"""Key in the ``meta`` of the last product of a block: how many blocks there are."""

_LEAST_QUERIES = 64
"""Of a block: fewer leave out too little for the nodes that they take."""
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


_Parts = dict[Block, dict[ir.Value, ir.Value]]
"""What blocks read of masks, by block."""


def leave_out_hidden_keys(
    op: Builder, wanted: Container[ir.Value], held: Container[ir.Value], zeroed: Container[ir.Node]
) -> dict[ir.Value, ir.Value]:
    """Put attentions of blocks of queries in the place of those that hide enough; return what took whose place.

    Args:
        op: builder of the forward graph.
        wanted: the values that gradients are asked for.
        held: these, the values that are differentiated, and parameters: none of them is fixed.
        zeroed: products with the values whose results are multiplied by 0 for a query that is shown nothing.
    """
    made: dict[ir.Value, ir.Value] = {}
    fixed = fixed_arrays(op, held)
    parts: _Parts = defaultdict(dict)
    known: dict[tuple[object, ...], list[Block]] = {}  # layers have their mask in common
    for node in [n for n in op.graph if is_op(n, "MatMul")]:
        attention = attention_of(node, wanted)
        if isinstance(attention, str) or shape_of(attention.softmax.outputs[0])[-2] < 2 * _LEAST_QUERIES:
            continue
        like = (tuple(inner.op_type for inner in attention.nodes), attention.outside, node in zeroed)
        if like not in known:
            hidden = hidden_scores(attention, fixed, may_show_nothing=node in zeroed)
            known[like] = [] if hidden is None else blocks_of(hidden)
        blocks = known[like]
        if len(blocks) > 1:
            with op.scope(attention.name, "forward", before=attention.result):
                new = _emit(op, attention, blocks, fixed, parts)
            made[node.outputs[0]] = replace(op, attention, new)
    return made


def blocks_of(hidden: np.ndarray) -> list[Block]:
    """The blocks that queries go in: twice as many as long as that leaves out enough.

    Args:
        hidden: which scores are hidden, [queries, keys].
    """
    queries, keys = hidden.shape
    blocks = _equal_blocks(hidden, 1)
    while 2 * len(blocks) * _LEAST_QUERIES <= queries:
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
        keys = (
            (int(shown[0]), int(shown[-1]) + 1) if shown.size else (0, 1)
        )  # queries whose results are multiplied by 0
        blocks.append(Block((start, end), keys))
    return blocks


def _emit(op: Builder, attention: Attention, blocks: Sequence[Block], fixed: Fixed, parts: _Parts) -> ir.Value:
    """Emit the attentions of blocks, in the scope of the whole one; return their results, end to end."""
    queries, keys, values = attention.operands
    sizes = [end - start for start, end in (block.queries for block in blocks)]
    rows = split_stretches(op, queries, len(shape_of(queries)) - 2, sizes)
    results = []
    for block, some in zip(blocks, rows, strict=True):
        read = dict(_parts_of(op, attention, block, fixed, parts[block]))
        copies = dict(zip(attention.nodes, copy_nodes(op, attention.nodes, read, "forward"), strict=True))
        shown_keys = cut_stretch(op, keys, len(shape_of(keys)) - 1, *block.keys)
        shown_values = cut_stretch(op, values, len(shape_of(values)) - 2, *block.keys)
        for (reader, place), operand in zip(attention.readers, (some, shown_keys, shown_values), strict=True):
            copies[reader].replace_input_with(place, operand)
        for copy in copies.values():
            op.insert(copy)
            op.infer(copy)
        copies[attention.result].meta[BLOCKS] = len(blocks)
        results.append(copies[attention.result].outputs[0])
    whole: ir.Value = op.Concat(*results, axis=len(shape_of(results[0])) - 2)
    return whole


def _parts_of(
    op: Builder, attention: Attention, block: Block, fixed: Fixed, parts: dict[ir.Value, ir.Value]
) -> dict[ir.Value, ir.Value]:
    """Emit the parts that a block reads of masks and of what else stretches to the scores; return all that are known.

    Args:
        op: the builder.
        attention: the whole attention.
        block: the block.
        fixed: tells what the file fixes: of that the part is stored.
        parts: those of other attentions; what is emitted is added.
    """
    sizes = shape_of(attention.softmax.outputs[0])[-2:]

    def cuts(shape: tuple[int, ...]) -> list[tuple[int, int, int]]:
        bounds = zip((-2, -1), sizes, (block.queries, block.keys), strict=True)
        return [(axis, *ends) for axis, size, ends in bounds if len(shape) >= -axis and shape[axis] == size > 1]

    def cut(value: ir.Value) -> ir.Value:
        known, shape = fixed(value), shape_of(value)
        for axis, start, end in cuts(shape):
            if known is None:
                value = stretch(op, value, len(shape) + axis, start, end)
            else:
                known = known.take(range(start, end), axis)
        return value if known is None else op.constant(known)

    for value in attention.outside:
        if cuts(shape_of(value)):
            part_of_mask(op, value, parts, lambda shape: bool(cuts(shape)), cut)
    return parts

"""Attentions of a forward graph in pieces, so that scores and their softmax never exist whole."""

from __future__ import annotations

import math
from collections.abc import Container

import onnx_ir as ir

from ckplan.autodiff.attention import heads, queries
from ckplan.autodiff.attention.pattern import attention_of
from ckplan.autodiff.attention.replacement import replace
from ckplan.autodiff.attention.shown_keys import BLOCKS
from ckplan.autodiff.builder import Builder
from ckplan.autodiff.pieces.regions import Region, largest_divisor
from ckplan.autodiff.reading import dtype_of, shape_of, size_of
from ckplan.operators.matching import is_op


def chunk_attentions(
    op: Builder, pieces: int, wanted: Container[ir.Value]
) -> tuple[dict[ir.Value, ir.Value], list[Region], list[str]]:
    """Put a Scan over pieces of an attention in the place of each.

    The pieces are heads, of all members of the batch, where there are that many; else they are of queries. Where
    queries are in blocks already, pieces are spread over these, at least two for each.

    An attention is left as it is where anybody else reads what is between its products, where its mask is trained, and
    where a Dropout stands in it, which draws one mask for all rows.

    Args:
        op: builder of the forward graph.
        pieces: into how many an attention goes, at most; a number that divides that of the heads, or of the queries,
            is taken. 1 cuts nothing.
        wanted: the values that gradients are asked for.

    Returns:
        What took the place of results; the attentions, whether they were cut or not; and notes.
    """
    found, notes, made = [], [], {}
    for node in [n for n in op.graph if is_op(n, "MatMul")]:
        attention = attention_of(node, wanted)
        if isinstance(attention, str):
            notes += [attention] if pieces > 1 and attention else []
            continue
        score = attention.softmax.outputs[0]
        rows, size = shape_of(score)[-2], size_of(score) * dtype_of(score).itemsize
        blocks = node.meta.get(BLOCKS, 1)
        most = max(min(2, pieces), -(-pieces // blocks))
        by_heads, by_queries = heads.most_pieces(attention, most, wanted), largest_divisor(rows, most)
        if by_heads >= by_queries > 1:
            along, number, count, cut = "heads", math.prod(shape_of(score)[:-2]), by_heads, heads.emit
        else:
            along, number, count, cut = "queries", rows, by_queries, queries.emit
        found.append(Region("attention", str(score.name), along, number, size, attention.name, count, blocks=blocks))
        if count > 1:
            with op.scope(attention.name, "forward", before=attention.result):
                new = cut(op, attention, count)
            made[node.outputs[0]] = replace(op, attention, new)
    return made, found, notes

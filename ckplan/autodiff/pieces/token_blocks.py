"""What works token by token, in blocks of the tokens: norms and MLPs between two attentions.

Inside an MLP a token has several times the numbers that it has between layers. In blocks these never exist for all
tokens. Where tokens meet, in attention, all of them are joined, and a new stretch begins behind it.
"""

from __future__ import annotations

from collections.abc import Set as AbstractSet
from itertools import groupby

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.pieces.blocks import Stretch, bytes_of, reorder, write_blocks
from ckplan.autodiff.pieces.regions import Region, largest_divisor
from ckplan.autodiff.reading import shape_of, size_of
from ckplan.model.inference.infer import static_shape
from ckplan.model.node_reads import reads
from ckplan.model.sample_axis import Along, along_samples
from ckplan.model.traits import is_heavy, is_random


def cut_tokens(op: Builder, count: int, stops: AbstractSet[ir.Value]) -> tuple[dict[ir.Value, ir.Value], list[Region]]:
    """Let stretches that work token by token run in blocks of the tokens, where what is inside is larger than its ends.

    Args:
        op: builder of the forward graph, losses and all.
        count: into how many blocks the tokens go, at most; a number that divides theirs is taken. 1 cuts nothing.
        stops: values that have to stay whole, such as those that gradients are asked for.

    Returns:
        What took the place of values that were made token by token; and the stretches, whether they were cut or not.
    """
    tokens = _tokens(op.graph)
    if tokens < 2:
        return {}, []
    number = largest_divisor(tokens, count)
    made: dict[ir.Value, ir.Value] = {}
    regions = []
    order, stretches = _stretches(op.graph, tokens, stops)
    if number > 1:
        reorder(op.graph, order)
    following = dict(zip(order, [*order[1:], None], strict=True))
    for stretch in stretches:
        ends = {*stretch.left, *(v for node in stretch.nodes for v in node.inputs if v in stretch.axes)}
        ends -= {value for value in stretch.made if value not in stretch.left}
        inner = [value for value in stretch.made if value not in ends]
        widest = max(inner, key=bytes_of, default=None)
        heavy = any(is_heavy(node) for node in stretch.nodes)
        if widest is None or not heavy or bytes_of(widest) <= max(bytes_of(v) for v in ends if v is not None):
            continue
        first, *_, last = [next(iter(stretch.nodes)), *stretch.nodes]
        name = f"{first.name}/blocks"
        regions.append(Region("tokens", str(widest.name), "tokens", tokens, bytes_of(widest), name, number))
        if number > 1:
            made |= write_blocks(op, stretch, number, name, following[last])
    return made, regions


def _tokens(graph: ir.Graph) -> int:
    """The number of tokens: the second axis of the largest input that has two axes, or three; 1 where there is none."""
    fed = [value for value in graph.inputs if not value.is_initializer() and value.shape is not None]
    largest = max((value for value in fed if len(shape_of(value)) in (2, 3)), key=size_of, default=None)
    return 1 if largest is None else shape_of(largest)[1]


def _stretches(graph: ir.Graph, tokens: int, stops: AbstractSet[ir.Value]) -> tuple[list[ir.Node], list[Stretch]]:
    """The nodes in an order in which those of a stretch stand together; and the stretches, the first one first.

    A value is as deep as the number of nodes on the way to it that do not work token by token. Of what these make,
    tokens are taken to lie along the one axis of their number: whatever lies there, blocks of it are blocks.
    """
    axes: dict[ir.Value, int] = {value: 1 for value in graph.inputs if _has_tokens(value, tokens)}
    depth: dict[ir.Value, int] = dict.fromkeys(axes, 0)
    works: dict[ir.Node, Along] = {}
    place: dict[ir.Node, tuple[int, bool]] = {}
    for node in graph:
        read = reads(node)
        deepest = max((depth[value] for value in read if value in depth), default=-1)
        place[node] = deepest, False
        if deepest < 0:
            continue
        given = [None if value is None else axes.get(value) for value in node.inputs]
        along = None
        whole = is_random(node) or not stops.isdisjoint(node.outputs)
        if not whole and any(axis is not None for axis in given) and all(v in axes for v in read if v in depth):
            along = along_samples(node, given, tokens)
        if along is not None:
            works[node] = along
            axes.update((value, along.axis) for value in node.outputs if value.name)
            depth.update((value, deepest) for value in node.outputs)
            continue
        place[node] = deepest, True
        depth.update((value, deepest + 1) for value in node.outputs)
        shapes = {value: static_shape(value) or () for value in node.outputs if value.name}
        axes.update((value, shape.index(tokens)) for value, shape in shapes.items() if shape.count(tokens) == 1)
    order = sorted(graph, key=place.__getitem__)
    groups = groupby((node for node in order if node in works), key=place.__getitem__)
    return order, [Stretch(axes, {node: works[node] for node in nodes}) for _, nodes in groups]


def _has_tokens(value: ir.Value, tokens: int) -> bool:
    shape = () if value.is_initializer() else static_shape(value) or ()
    return len(shape) > 1 and shape[1] == tokens

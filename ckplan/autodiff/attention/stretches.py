"""Stretches of queries, keys and values: tokens next to each other, of all heads.

They are cut before heads are parted, turned and given copies of what they share: a product finds right before it what
it reads best, and the backward pass finds the tensor that it keeps anyway. All of the keys are kept for the last block
of queries; so a backward pass cuts the stretches for the others again in place of keeping copies, which would take as
much again with four blocks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import copy_nodes
from ckplan.autodiff.idioms.slices import slice_axes, stretch
from ckplan.autodiff.reading import attr_int, attr_ints, factor_of, required_input, shape_of
from ckplan.model.nested_graphs import all_nodes, graphs_in
from ckplan.model.traits import is_backward
from ckplan.operators.matching import is_op

_BOUNDS = "ckplan/bounds"
_VIEWS = frozenset({"Cast", "Div", "Expand", "Mul", "Reshape", "Transpose"})
"""What stands between a stretch and the product that reads it."""


@dataclass(frozen=True)
class _Source:
    """Where stretches of a value are cut.

    Attributes:
        value: what is cut.
        axis: the tokens.
        views: the nodes from there on, and the axis of the tokens in what each makes.
    """

    value: ir.Value
    axis: int
    views: tuple[tuple[ir.Node, int], ...]


def split_stretches(op: Builder, value: ir.Value, axis: int, sizes: Sequence[int]) -> list[ir.Value]:
    """Emit the stretches that a value is made of.

    Args:
        op: the builder.
        value: what an attention reads.
        axis: the tokens.
        sizes: of the stretches.
    """
    source = _source_of(value, axis)
    lengths = np.asarray(sizes, dtype=np.int64)
    parts = op.Split(source.value, lengths, axis=source.axis, _outputs=len(sizes))
    return [_viewed(op, source, part, size) for part, size in zip(parts, sizes, strict=True)]


def cut_stretch(op: Builder, value: ir.Value, axis: int, start: int, end: int) -> ir.Value:
    """Emit a stretch from ``start`` to before ``end``, which `cut_again` will know; the value itself if that is all."""
    if (start, end) == (0, shape_of(value)[axis]):
        return value
    source = _source_of(value, axis)
    made = stretch(op, source.value, source.axis, start, end)
    node = made.producer()
    assert node is not None
    node.meta[_BOUNDS] = (source.axis, start, end)
    return _viewed(op, source, made, end - start)


def _source_of(value: ir.Value, axis: int) -> _Source:
    views: list[tuple[ir.Node, int]] = []
    while (node := value.producer()) is not None and not value.is_graph_output():
        before = _axis_before(node, axis)
        if before is None:
            break
        views.append((node, axis))
        value, axis = required_input(node, 0), before
    while views and is_op(views[-1][0], "Reshape"):  # which is no copy and would be made for each stretch
        node, axis = views.pop()
        value = node.outputs[0]
    return _Source(value, axis, tuple(reversed(views)))


def _axis_before(node: ir.Node, axis: int) -> int | None:
    """Along which axis of what a node reads the same stretches lie; None if it does more than view them."""
    if node.domain or node.op_type not in _VIEWS:
        return None
    source, shape = shape_of(required_input(node, 0)), shape_of(node.outputs[0])
    match node.op_type:
        case "Transpose":
            perm = attr_ints(node, "perm") or tuple(reversed(range(len(shape))))
            return perm[axis]
        case "Reshape":
            behind = math.prod(shape[axis + 1 :])
            places = [place for place, size in enumerate(source) if size == shape[axis] > 1]
            return next((place for place in places if math.prod(source[place + 1 :]) == behind), None)
        case "Expand":
            before = axis + len(source) - len(shape)
            return before if before >= 0 and source[before] == shape[axis] else None
        case "Cast":
            return axis
        case _:
            return axis if factor_of(node) is not None and source == shape else None


def _viewed(op: Builder, source: _Source, part: ir.Value, size: int) -> ir.Value:
    """Emit the views of a stretch of a source."""
    for node, axis in source.views:
        shape = list(shape_of(node.outputs[0]))
        shape[axis] = size
        match node.op_type:
            case "Transpose":
                part = op.Transpose(part, perm=attr_ints(node, "perm"))
            case "Reshape":
                part = op.reshape(part, shape)
            case "Expand":
                part = op.expand(part, shape)
            case "Cast":
                part = op.Cast(part, to=attr_int(node, "to", 0))
            case _:
                part = op.emit(node.op_type, part, required_input(node, 1))
    return part


def cut_again(op: Builder) -> None:
    """Let nodes of the backward pass read stretches of their own, cut where the first of them needs one.

    A second axis, which stays whole, is named: onnxruntime makes one node of two that are equal.

    Args:
        op: builder of the finished graph.
    """
    known = [node for node in op.graph if _BOUNDS in node.meta]
    if not known:
        return
    places = {inner: (place, node) for place, node in enumerate(op.graph) for inner in _with_bodies(node)}

    def read_backward(node: ir.Node) -> list[tuple[ir.Node, int]]:
        """Who reads what a node makes in the backward pass, and as which input."""
        return [(use.node, use.idx) for use in node.outputs[0].uses() if is_backward(places[use.node][1])]

    for node in known:
        views = [view for view in _views_behind(node) if not is_backward(view)]
        read = {view: read_backward(view) for view in views}
        readers = [reader for view in views for reader, _ in read[view]]
        if not readers:
            continue
        axis, start, end = node.meta[_BOUNDS]
        _, first = min((places[reader] for reader in readers), key=itemgetter(0))
        with op.scope(str(node.name), "backward", before=first):
            again = {node.outputs[0]: slice_axes(op, required_input(node, 0), [axis], [start], [end])}
            for view in views[1:]:
                if any(read.get(behind) for behind in _views_behind(view)):
                    (copy,) = copy_nodes(op, [view], again, "backward")
                    op.insert(copy)
        for view in views:
            for reader, index in read[view]:
                reader.replace_input_with(index, again[view.outputs[0]])


def _with_bodies(node: ir.Node) -> list[ir.Node]:
    return [node, *(inner for body in graphs_in(node) for inner in all_nodes(body))]


def _views_behind(node: ir.Node) -> list[ir.Node]:
    """A node and those that view what it makes, before those that view what they make."""
    found = [node]
    for one in found:
        for use in one.outputs[0].uses():
            if is_op(use.node, _VIEWS) and not use.idx and use.node.graph is node.graph and use.node not in found:
                found.append(use.node)
    return found

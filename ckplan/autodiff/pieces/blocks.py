"""A stretch of a forward graph in blocks: what works sample by sample, or token by token, written once for each block.

The blocks stand one after the other in the graph and share the weights; where something reads all of them, they are
joined. So the backward pass goes block by block as well, gradients of weights are sums over blocks, and a plan
recomputes each block right before it: activations of one block are alive at a time, and the working set of each node is
that of a block. Sums over blocks apart, all that is computed stays the same.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.idioms.slices import slice_axes
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import dtype_of, shape_of, size_of
from ckplan.model.sample_axis import TO_SHAPE, Along


@dataclass(frozen=True)
class Stretch:
    """Nodes between which nothing reads several samples at once.

    Attributes:
        axes: the axis that samples lie along, by value: of what the nodes make, and of what they read from elsewhere;
            stretches behind each other have them in common, and what joins the blocks of one is added for the next.
        nodes: the nodes in order, with what they do sample by sample.
    """

    axes: dict[ir.Value, int]
    nodes: Mapping[ir.Node, Along]

    @property
    def made(self) -> list[ir.Value]:
        """All that the nodes make."""
        return [value for node in self.nodes for value in node.outputs if value.name]

    @property
    def left(self) -> list[ir.Value]:
        """What of it is read elsewhere."""
        return [v for v in self.made if v.is_graph_output() or any(use.node not in self.nodes for use in v.uses())]


def bytes_of(value: ir.Value) -> int:
    """Bytes of a value."""
    return size_of(value) * dtype_of(value).itemsize


def reorder(graph: ir.Graph, nodes: Iterable[ir.Node]) -> None:
    """Put all nodes of a graph into an order."""
    nodes = list(nodes)
    graph.remove(nodes)
    graph.extend(nodes)


def write_blocks(
    op: Builder, stretch: Stretch, number: int, name: str, before: ir.Node | None, phase: str = "forward"
) -> dict[ir.Value, ir.Value]:
    """Put blocks in the place of a stretch.

    Args:
        op: builder of the forward graph.
        stretch: its nodes stand behind all that they read from elsewhere.
        number: of blocks; divides the number of samples.
        name: prefix of the names of what cuts and joins.
        before: the node that the blocks stand before, None for the end of the graph.
        phase: of what cuts and joins, ``forward`` or ``backward``.

    Returns:
        What took the place of the values that are read elsewhere.
    """
    left = stretch.left
    with op.scope(name, phase, before=before):
        cuts = _cuts(op, stretch, number)
        parts = [_block(op, stretch, number, block, cuts) for block in range(number)]
        joined = {value: op.Concat(*(part[value] for part in parts), axis=stretch.axes[value]) for value in left}
    for value, new in joined.items():
        value.replace_all_uses_with(new, replace_graph_outputs=True)
        new.name, value.name = value.name, None
        stretch.axes[new] = stretch.axes[value]
    discard(op.graph, reversed(list(stretch.nodes)))
    return joined


def _cuts(op: Builder, stretch: Stretch, number: int) -> dict[ir.Value, Sequence[ir.Value]]:
    """Split what nodes have made elsewhere: its gradient is joined, where those of slices would be summed up."""
    read = {value: None for node in stretch.nodes for value in node.inputs if value in stretch.axes}
    made = [v for v in read if v is not None and v.producer() not in (None, *stretch.nodes)]
    return {v: op.Split(v, axis=stretch.axes[v], num_outputs=number, _outputs=number) for v in made}


def _block(
    op: Builder, stretch: Stretch, number: int, block: int, cuts: Mapping[ir.Value, Sequence[ir.Value]]
) -> dict[ir.Value, ir.Value]:
    """Write one block; return its part of each value."""
    parts = {value: found[block] for value, found in cuts.items()}
    slices: dict[tuple[ir.Value, int], ir.Value] = {}

    def read(along: Along, place: int, value: ir.Value | None) -> ir.Value | None:
        if value is None or value in parts:
            return None if value is None else parts[value]
        axis = along.cut.get(place, stretch.axes.get(value))
        if axis is None:
            return value
        if (value, axis) not in slices:
            size = shape_of(value)[axis] // number
            slices[value, axis] = slice_axes(op, value, [axis], [block * size], [(block + 1) * size])
        return slices[value, axis]

    for node, along in stretch.nodes.items():
        inputs = [read(along, place, value) for place, value in enumerate(node.inputs)]
        shapes = [_shape_of_part(value, along.axis, number) for value in node.outputs]
        parts.update(zip(node.outputs, _copy(op, node, inputs, shapes, f"block{block}"), strict=True))
    return parts


def _shape_of_part(value: ir.Value, axis: int, number: int) -> tuple[int, ...]:
    if not value.name:
        return ()
    shape = list(shape_of(value))
    shape[axis] //= number
    return tuple(shape)


def _copy(
    op: Builder, node: ir.Node, inputs: Sequence[ir.Value | None], shapes: Sequence[tuple[int, ...]], ending: str
) -> Sequence[ir.Value]:
    """Write a node for a block; return its outputs."""
    op_type, attributes = node.op_type, list(node.attributes.values())
    if op_type in TO_SHAPE:
        target = op.constant(np.asarray(shapes[0], dtype=np.int64))
        op_type, inputs, attributes = ("Expand" if op_type == "Expand" else "Reshape"), [inputs[0], target], []
    outputs = [_part(op, value, shape, ending) for value, shape in zip(node.outputs, shapes, strict=True)]
    name, props = op.unique_name(f"{node.name}/{ending}"), dict(node.metadata_props)
    op.insert(ir.Node(node.domain, op_type, inputs, attributes, outputs=outputs, name=name, metadata_props=props))
    return outputs


def _part(op: Builder, value: ir.Value, shape: tuple[int, ...], ending: str) -> ir.Value:
    if not value.name:
        return ir.Value(name="")
    return ir.Value(name=op.unique_name(f"{value.name}/{ending}"), type=value.type, shape=ir.Shape(shape))

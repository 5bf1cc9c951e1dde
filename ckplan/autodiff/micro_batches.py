"""A forward pass in micro-batches: all that works sample by sample, written once for each block of the samples.

The blocks stand one after the other in the graph and share the weights; where something reads all samples, a loss or an
output, blocks are joined. So the backward pass goes block by block as well, gradients of weights are sums over blocks,
and a plan recomputes each block right before it: activations of one block, not of the batch, are alive at a time, and
the working set of each node is that of a block. Sums over blocks apart, all that is computed stays the same.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import partial

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, dtype_of, shape_of, size_of
from ckplan.autodiff.paths import discard, reads
from ckplan.autodiff.regions import Region, largest_divisor
from ckplan.autodiff.slices import slice_axes
from ckplan.model.sample_axis import TO_SHAPE, Along, along_samples
from ckplan.model.traits import is_heavy, is_random


@dataclass(frozen=True)
class _Batch:
    """What of a graph works sample by sample.

    Attributes:
        samples: their number.
        axes: the axis that samples lie along, by value, the graph's inputs included.
        nodes: the nodes that work sample by sample, in order, with how they do.
        after: the nodes that read several samples at once, and all behind them.
    """

    samples: int
    axes: dict[ir.Value, int]
    nodes: dict[ir.Node, Along]
    after: list[ir.Node]


def cut_batch(
    op: Builder, count: int, stops: AbstractSet[ir.Value]
) -> tuple[dict[ir.Value, ir.Value], list[Region], list[str]]:
    """Let what works sample by sample run in blocks of the samples.

    Args:
        op: builder of the forward graph, losses and all.
        count: into how many blocks the samples go, at most; a number that divides theirs is taken. 1 cuts nothing.
        stops: values that have to stay whole, such as those that gradients are asked for.

    Returns:
        What took the place of values that were made sample by sample; the region, whether it was cut or not, and none
        where nothing works sample by sample; and what is to be said of it.
    """
    batch = _batch_of(op.graph, stops)
    if batch is None or not any(is_heavy(node) for node in batch.nodes):
        return {}, [], []
    number = largest_divisor(batch.samples, count)
    largest = max((value for node in batch.nodes for value in node.outputs if value.name), key=_bytes)
    name = f"{next(iter(batch.axes)).name}/blocks"
    region = Region("batch", str(largest.name), "samples", batch.samples, _bytes(largest), name, number)
    if number == 1:
        return {}, [region], []
    return _cut(op, batch, number, name), [region], _notes(batch)


def _bytes(value: ir.Value) -> int:
    return size_of(value) * dtype_of(value).itemsize


def _batch_of(graph: ir.Graph, stops: AbstractSet[ir.Value]) -> _Batch | None:
    """Find out what works sample by sample: samples lie along the first axis of the largest input."""
    fed = [value for value in graph.inputs if not value.is_initializer() and value.shape]
    largest = max(fed, key=size_of, default=None)
    samples = 1 if largest is None else shape_of(largest)[0]
    if samples < 2:
        return None
    batch = _Batch(samples, {value: 0 for value in fed if shape_of(value)[0] == samples}, {}, [])
    mixed: set[ir.Value] = set()
    for node in graph:
        read = reads(node)
        if mixed.isdisjoint(read) and batch.axes.keys().isdisjoint(read):
            continue
        axes = [None if value is None else batch.axes.get(value) for value in node.inputs]
        along = None
        if mixed.isdisjoint(read) and not is_random(node):
            along = along_samples(node, axes, samples)
        held = not stops.isdisjoint(node.outputs)
        if along is None or (held and any(value.producer() in batch.nodes for value in read)):
            mixed.update(node.outputs)
            batch.after.append(node)
            continue
        batch.axes.update((value, along.axis) for value in node.outputs if value.name)
        if held:  # whole before the blocks, which are cut from it as from an input
            continue
        batch.nodes[node] = along
    return batch


def _notes(batch: _Batch) -> list[str]:
    """What is to be said where much of the network stays whole."""
    heavy = next((node for node in batch.after if is_heavy(node)), None)
    if heavy is None:
        return []
    first = batch.after[0]
    return [f"{first.op_type} '{first.name}' reads all samples at once: what stands behind it is not cut"]


def _cut(op: Builder, batch: _Batch, number: int, name: str) -> dict[ir.Value, ir.Value]:
    """Write the nodes of a batch once for each block, and join what others read; return what took whose place."""
    graph, region = op.graph, set(batch.nodes)
    made = [value for node in batch.nodes for value in node.outputs if value.name]
    left = [v for v in made if v.is_graph_output() or any(use.node not in region for use in v.uses())]
    graph.remove(batch.after)
    parts: list[dict[ir.Value, ir.Value]] = []
    for block in range(number):
        with op.scope(f"{name}/{block}", "forward"):
            parts.append(_block(op, batch, number, block))
    joined = {}
    with op.scope(name, "forward"):
        for value in left:
            new = op.Concat(*(part[value] for part in parts), axis=batch.axes[value])
            value.replace_all_uses_with(new, replace_graph_outputs=True)
            new.name, value.name = value.name, None
            joined[value] = new
    graph.extend(batch.after)
    discard(graph, reversed(list(batch.nodes)))
    return joined


def _block(op: Builder, batch: _Batch, number: int, block: int) -> dict[ir.Value, ir.Value]:
    """Write one block; return its part of each value."""
    parts: dict[ir.Value, ir.Value] = {}
    cuts: dict[tuple[ir.Value, int], ir.Value] = {}

    def part_of(value: ir.Value, axis: int) -> ir.Value:
        key = value, axis
        if key not in cuts:
            size = shape_of(value)[axis] // number
            cuts[key] = slice_axes(op, value, [axis], [block * size], [(block + 1) * size])
        return cuts[key]

    def read(along: Along, place: int, value: ir.Value | None) -> ir.Value | None:
        if value is None or value in parts:
            return None if value is None else parts[value]
        axis = along.cut.get(place, batch.axes.get(value))
        return value if axis is None else part_of(value, axis)

    for node, along in batch.nodes.items():
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
    op: Builder,
    node: ir.Node,
    inputs: Sequence[ir.Value | None],
    shapes: Sequence[tuple[int, ...]],
    ending: str,
) -> Sequence[ir.Value]:
    """Write a node for a block; return its outputs."""
    op_type, attributes = node.op_type, list(node.attributes.values())
    if op_type in TO_SHAPE:
        target = op.constant(np.asarray(shapes[0], dtype=np.int64))
        op_type, inputs, attributes = ("Expand" if op_type == "Expand" else "Reshape"), [inputs[0], target], []
    outputs = [_part(op, value, shape, ending) for value, shape in zip(node.outputs, shapes, strict=True)]
    name = op.unique_name(f"{node.name}/{ending}")
    props: Mapping[str, str] = dict(node.metadata_props)
    op.insert(ir.Node(node.domain, op_type, inputs, attributes, outputs=outputs, name=name, metadata_props=dict(props)))
    return outputs


def _part(op: Builder, value: ir.Value, shape: tuple[int, ...], ending: str) -> ir.Value:
    make = partial(ir.Value, type=value.type)
    return make(name=op.unique_name(f"{value.name}/{ending}"), shape=ir.Shape(shape)) if value.name else make(name="")

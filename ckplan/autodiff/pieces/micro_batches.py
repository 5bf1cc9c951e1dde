"""A network in micro-batches: all that works sample by sample from the inputs on, in blocks of the samples."""

from __future__ import annotations

from collections.abc import Set as AbstractSet

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.pieces.blocks import Stretch, bytes_of, reorder, write_blocks
from ckplan.autodiff.pieces.regions import Region, largest_divisor
from ckplan.autodiff.reading import shape_of, size_of
from ckplan.model.node_reads import reads
from ckplan.model.sample_axis import Along, along_samples
from ckplan.model.traits import is_heavy, is_random


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
    fed = [value for value in op.graph.inputs if not value.is_initializer() and value.shape]
    largest = max(fed, key=size_of, default=None)
    samples = 1 if largest is None else shape_of(largest)[0]
    inputs = [value for value in fed if shape_of(value)[0] == samples]
    stretch, behind = _from_inputs(op.graph, samples, inputs, stops)
    if samples < 2 or not any(is_heavy(node) for node in stretch.nodes):
        return {}, [], []
    number = largest_divisor(samples, count)
    widest = max(stretch.made, key=bytes_of)
    name = f"{inputs[0].name}/blocks"
    region = Region("batch", str(widest.name), "samples", samples, bytes_of(widest), name, number)
    if number == 1:
        return {}, [region], []
    notes = []
    if any(is_heavy(node) for node in behind):
        first = behind[0]
        notes = [f"{first.op_type} '{first.name}' reads all samples at once: what stands behind it is not cut"]
    others = {*stretch.nodes, *behind}
    reorder(op.graph, [*(node for node in op.graph if node not in others), *stretch.nodes, *behind])
    return write_blocks(op, stretch, number, name, behind[0] if behind else None), [region], notes


def _from_inputs(
    graph: ir.Graph, samples: int, inputs: list[ir.Value], stops: AbstractSet[ir.Value]
) -> tuple[Stretch, list[ir.Node]]:
    """What works sample by sample from the inputs on; the nodes that read several samples at once, and all behind."""
    axes, nodes = dict.fromkeys(inputs, 0), dict[ir.Node, Along]()
    behind: list[ir.Node] = []
    mixed: set[ir.Value] = set()
    for node in graph:
        read = reads(node)
        if mixed.isdisjoint(read) and axes.keys().isdisjoint(read):
            continue
        along = None
        if mixed.isdisjoint(read) and not is_random(node):
            along = along_samples(node, [None if value is None else axes.get(value) for value in node.inputs], samples)
        held = not stops.isdisjoint(node.outputs)
        if along is None or (held and any(value.producer() in nodes for value in read)):
            mixed.update(node.outputs)
            behind.append(node)
            continue
        axes.update((value, along.axis) for value in node.outputs if value.name)
        if not held:  # else it is whole before the blocks, which are cut from it as from an input
            nodes[node] = along
    return Stretch(axes, nodes), behind

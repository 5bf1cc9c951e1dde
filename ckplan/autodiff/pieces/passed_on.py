"""Blocks of samples passed on through a loss: the gradient of each block is there before the other blocks are made.

Where the blocks of a batch are joined for a loss, the gradient of what is joined is cut again. What a loss does to one
sample after the other on the way to there (a difference, a quotient by the number of samples, probabilities less
labels) is written once for each block, too, so that no block waits for another one. Its backward pass may run as soon
as its forward pass has, and then nothing of a block is held while another one runs, nor made again: accumulation of
gradients over micro-batches, within one step. All that is computed stays the same to the bit.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.pieces.blocks import Stretch, write_blocks
from ckplan.autodiff.reading import shape_of
from ckplan.keys import PHASE
from ckplan.model.sample_axis import Along, along_samples
from ckplan.model.traits import is_heavy, is_random
from ckplan.operators.matching import is_op


def pass_blocks_on(op: Builder, joined: Iterable[ir.Value], samples: int, number: int) -> None:
    """Write in blocks what works sample by sample behind what joins blocks, if its result is cut again.

    Args:
        op: builder of the training graph.
        joined: what blocks were joined to, as far as it is still there.
        samples: number of samples of the batch.
        number: of blocks; divides the number of samples.
    """
    graph = op.graph
    axes: dict[ir.Value, int] = {}
    for value in joined:
        node = value.producer()
        if node is not None and node.graph is graph and node.op_type == "Concat" and len(node.inputs) == number:
            axes[value] = node.attributes["axis"].as_int() % len(shape_of(value))
    if not axes:
        return
    behind = set(axes)  # what depends on a joined value, sample by sample
    axes.update((v, 0) for v in graph.inputs if not v.is_initializer() and v.shape and shape_of(v)[0] == samples)
    nodes: dict[ir.Node, Along] = {}
    cut = False
    for node in graph:
        if behind.isdisjoint(node.inputs) or is_random(node) or is_heavy(node):
            continue
        cut |= _cuts(node, axes, number)
        along = along_samples(node, [None if value is None else axes.get(value) for value in node.inputs], samples)
        if along is not None:
            nodes[node] = along
            made = [value for value in node.outputs if value.name]
            axes.update((value, along.axis) for value in made)
            behind.update(made)
    for node, along in nodes.items() if cut else ():
        write_blocks(op, Stretch(axes, {node: along}), number, f"{node.name}/blocks", node, node.metadata_props[PHASE])
    _join_no_more(graph)


def _cuts(node: ir.Node, axes: Mapping[ir.Value, int], number: int) -> bool:
    """Say whether a node cuts a value into the blocks that it could be made of."""
    value = node.inputs[0] if is_op(node, "Split") else None
    if value is None or value not in axes or len(node.outputs) != number:
        return False
    along = node.attributes.get_int("axis", 0) % len(shape_of(value)) == axes[value]
    return along and len({shape_of(output) for output in node.outputs}) == 1


def _join_no_more(graph: ir.Graph) -> None:
    """Read the blocks themselves where they are cut from what they were joined to."""
    for node in list(graph):
        joins = node.inputs[0].producer() if node.op_type == "Split" and node.inputs[0] is not None else None
        if joins is None or joins.op_type != "Concat" or len(joins.inputs) != len(node.outputs):
            continue
        if any(output.is_graph_output() for output in node.outputs):
            continue
        axis, rank = node.attributes.get_int("axis", 0), len(shape_of(node.outputs[0]))
        same = axis % rank == joins.attributes["axis"].as_int() % rank
        pairs = list(zip(joins.inputs, node.outputs, strict=True))
        if same and all(part is not None and shape_of(part) == shape_of(output) for part, output in pairs):
            for part, output in pairs:
                assert part is not None
                output.replace_all_uses_with(part)
            graph.remove(node, safe=True)

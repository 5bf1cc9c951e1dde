"""Lets onnxruntime's arena take one large region at the start of a step, where it would take many that double.

In a first run the arena takes regions of 1, 2, 4, ... MiB as tensors need them, and in the second one more for the
block of all of them, which fits into none of those: in the end it holds about four times the peak. If the first thing
that is made is a tensor of more than half of a region, the arena takes that region at once. The tensor is dead as soon
as it is there; everything after it, and later the block, lies where it was. The block is handed a whole region that is
less than twice as large; what lies beside it in later runs, outputs and what kernels take for themselves, gets a small
region then, by a tensor of that size before the large one.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace

import numpy as np
import onnx_ir as ir

from ckplan.keys import PLACE, RESERVATION, ROLE
from ckplan.model.node_reads import fed_tensor
from ckplan.planner.problem import Problem
from ckplan.runtime.sizes import dimensions_of
from ckplan.writer.control_edges import ControlEdges

_NAME = "ckplan/reservation"


def reserve(
    inputs: Sequence[ir.Value], updated: Collection[str], sizes: Sequence[int], edges: ControlEdges
) -> tuple[list[ir.Node], ir.Value | None]:
    """Tensors that no node reads, each made when the one before it is dead; what reads the batch is to wait for them.

    Args:
        inputs: graph inputs.
        updated: names of inputs that may be written over; what reads them has to come before that.
        sizes: bytes of the tensors.
        edges: maker of the control edges. A tensor's shape is one of theirs, or it would be made at load time.

    Returns:
        The nodes that make them, to stand first, and the last tensor; none if nothing is fed to tie them to.
    """
    after = fed_tensor(inputs, updated)
    made: list[ir.Node] = []
    if after is None or dimensions_of(after) is None or not sizes:
        return made, None
    for number, size in enumerate(sizes):
        made.append(node := reserved(f"{_NAME}{number or ''}", size, after, edges))
        after = node.outputs[0]
    return made, after


def reserved_names(nodes: Sequence[ir.Node]) -> set[str]:
    """Names of the tensors of which nobody reads the data."""
    return {
        str(value.name)
        for node in nodes
        if node.metadata_props.get(ROLE) in (RESERVATION, PLACE)
        for value in node.outputs
    }


def without_tensors(problem: Problem, names: Collection[str]) -> Problem:
    """The same problem where some tensors take no memory.

    What is reserved is no part of what a run needs: that it is there does not leave room for anything.
    """
    tensors = (replace(tensor, bytes=0) if tensor.name in names else tensor for tensor in problem.tensors)
    return replace(problem, tensors=tuple(tensors)) if names else problem


def reserved(name: str, size: int, after: ir.Value, edges: ControlEdges) -> ir.Node:
    """A node that makes a tensor of so many bytes, whose data nobody reads, once another value is there.

    Args:
        name: of the node and of the tensor.
        size: bytes.
        after: what it waits for.
        edges: maker of the control edge; with a shape that is a constant it would be made at load time.
    """
    made = ir.node(
        "ConstantOfShape", [edges.shape_after((size,), after)], name=name, metadata_props={ROLE: RESERVATION}
    )
    made.attributes["value"] = ir.AttrTensor("value", ir.tensor(np.zeros(1, np.uint8)))
    made.outputs[0].name, made.outputs[0].shape = name, ir.Shape([size])
    made.outputs[0].type = ir.TensorType(ir.DataType.UINT8)
    return made

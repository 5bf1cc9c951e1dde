"""Memory that control flow takes while it runs, beyond its outputs: what its bodies need at most.

What the kernels add (onnxruntime 1.31, ``core/providers/cpu/controlflow``): Scan keeps the states between two steps in
two buffers each, and works on transposed copies of sequences that do not run along their first axis
(``scan_utils.cc``, ``LoopStateVariable``). Loop keeps the rows of what it outputs until the last step and then joins
them, so that they are there twice (``loop.cc``, ``ConcatenateLoopOutput``); states are copied into the outputs, while
those that the last step read and made are there. From its second step on a body has one block for all that it makes
(memory patterns, see `ckplan.planner.allocations`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.model.bodies import bodies_of, most_trips, state_count, tracks_of
from ckplan.planner.allocations import allocations, pattern_block
from ckplan.planner.arena import chunk_size
from ckplan.planner.problem import Problem
from ckplan.planner.simulate import simulate
from ckplan.runtime.execution_order import default_order, predecessors
from ckplan.runtime.sizes import bytes_of, dimensions_of, shape_classes

EXECUTED = "ckplan.executed"
"""Key in ``Graph.meta`` of a body whose nodes stand in the order in which onnxruntime executes them."""

_CLOCK = 10
"""Bytes of three tensors: the number of a Loop's step, and the condition that goes in and that comes out."""

Numbers = Callable[[Sequence[ir.Node], Sequence[ir.Value], Sequence[ir.Value]], Problem]


@dataclass(frozen=True, slots=True)
class Inner:
    """What a control-flow node takes; see `ckplan.planner.problem.Op`.

    Attributes:
        workspace: bytes beyond its outputs, all late outputs being new.
        late: places of the outputs that are made at its end.
        early: bytes beyond its other outputs before those are made.
    """

    workspace: int = 0
    late: tuple[int, ...] = ()
    early: int = 0


def inner_workspace(node: ir.Node, numbers: Numbers) -> Inner:
    """What a control-flow node takes while it runs; nothing for other nodes.

    Args:
        node: the node.
        numbers: turns the nodes of a body, its inputs and its outputs into a problem.
    """
    bodies = bodies_of(node)
    if not bodies:
        return Inner()
    steps = _steps(node) if node.op_type == "Scan" else None
    repeated = node.op_type == "Loop" or (node.op_type == "Scan" and steps != 1)
    inside = max(_body_peak(body, numbers, repeated) for body in bodies)
    states = state_count(node)
    carried = sum(bytes_of(value) for value in node.outputs[:states])
    if node.op_type == "Scan":
        copies = 2 if steps is None else min(2, max(0, steps - 1))
        sequences = [value for value in node.inputs[states:] if value is not None]
        turned = sum(bytes_of(v) for v, axis in zip(sequences, tracks_of(node, "input"), strict=False) if axis)
        # Rows of an output along another axis are gathered in a tensor of their own, and turned into it at the end.
        late = tuple(place for place, axis in enumerate(tracks_of(node, "output"), states) if axis)
        rows = sum(bytes_of(node.outputs[place]) for place in late)
        taken = copies * carried + turned + rows
        return Inner(taken + max(0, inside - rows), late, taken + inside)
    if node.op_type == "Loop":
        # All outputs are made at the end, when the body's memory is free again, but not yet what the last step read.
        stacked = sum(bytes_of(value) for value in node.outputs[states:])
        held = carried if most_trips(node) == 1 else 2 * carried  # what the first step reads is the Loop's own input
        late = tuple(range(len(node.outputs)))
        inside, rows = inside + _CLOCK, sum(map(_row_by_row, node.outputs[states:]))
        end = held + rows + 3 * chunk_size(1)
        return Inner(max(inside + held - carried, end), late, inside + held + stacked)
    return Inner(inside)


def _row_by_row(value: ir.Value) -> int:
    """Bytes of the rows of a value, each in a chunk of its own."""
    whole, dims = bytes_of(value), dimensions_of(value)
    return dims[0] * chunk_size(whole // dims[0]) if dims and dims[0] else whole


def _steps(node: ir.Node) -> int | None:
    """Number of steps of a Scan, None where no sequence tells."""
    states = state_count(node)
    read = zip(node.inputs[states:], tracks_of(node, "input"), strict=False)
    made = zip(node.outputs[states:], tracks_of(node, "output"), strict=False)
    for value, axis in (*read, *made):
        dims = None if value is None else dimensions_of(value)
        if dims:
            return dims[axis]
    return None


def _body_peak(body: ir.Graph, numbers: Numbers, repeated: bool) -> int:
    """The largest sum of live bytes in the runs of a body, without its inputs and outputs.

    Args:
        body: the graph.
        numbers: see `inner_workspace`.
        repeated: whether it runs more than once.
    """
    nodes = list(body)
    if not nodes:
        return 0
    if not body.meta.get(EXECUTED):
        nodes = [nodes[position] for position in default_order(predecessors(nodes))]
    problem = numbers(nodes, body.inputs, body.outputs)
    shapes = shape_classes(nodes, problem)
    peak = simulate(problem, range(len(nodes)), shapes).peak_activations
    if not repeated:
        return peak
    block = pattern_block(allocations(problem, range(len(nodes)), shapes))
    return max(peak, block + max(op.workspace for op in problem.ops))

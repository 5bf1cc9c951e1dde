"""Memory that control flow takes while it runs, beyond its outputs: what its bodies need at most.

What the kernels add (onnxruntime 1.31, ``core/providers/cpu/controlflow``): Scan keeps the states between two steps in
two buffers each, and works on transposed copies of sequences that do not run along their first axis
(``scan_utils.cc``, ``LoopStateVariable``). Loop keeps the rows of what it outputs until the last step and then joins
them, so that they are there twice (``loop.cc``, ``ConcatenateLoopOutput``); states are copied into the outputs, while
those that the last step read and made are there. From its second step on a body has one block for all that it makes
(memory patterns, see `ckplan.planner.arena.allocations`). Each body has a frame and a pattern of its own, so an If in a
body that runs again has a block, too, beside that of the body around it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import onnx_ir as ir

from ckplan.model.bodies import bodies_of, most_trips, state_count, tracks_of
from ckplan.planner.arena.allocations import allocations, pattern_block
from ckplan.planner.arena.regions import chunk_size
from ckplan.planner.problem import Kind, Piece, Problem
from ckplan.planner.simulate import lifetimes, simulate
from ckplan.runtime.executing.execution_order import default_order, predecessors
from ckplan.runtime.kernels.inner_pieces import (
    CONDITION,
    NOTHING,
    NUMBER,
    Body,
    pieces_of_if,
    pieces_of_loop,
    pieces_of_scan,
)
from ckplan.runtime.sizes import bytes_of, dimensions_of, shape_classes

EXECUTED = "ckplan.executed"
"""Key in ``Graph.meta`` of a body whose nodes stand in the order in which onnxruntime executes them."""

_CLOCK = NUMBER + 2 * CONDITION
"""Bytes of three tensors: the number of a Loop's step, and the condition that goes in and that comes out."""

Numbers = Callable[[Sequence[ir.Node], Sequence[ir.Value], Sequence[ir.Value], bool], Problem]
"""Turns the nodes of a body, its inputs and its outputs into a problem, given whether the body runs more than once."""


@dataclass(frozen=True, slots=True)
class Inner:
    """What a control-flow node takes; see `ckplan.planner.problem.Op`.

    Attributes:
        workspace: bytes beyond its outputs, all late outputs being new.
        late: places of the outputs that are made at its end.
        early: bytes beyond its other outputs before those are made.
        pieces: the workspace tensor by tensor, in a first run; empty for nodes without bodies.
        pieces_again: the same in later runs.
    """

    workspace: int = 0
    late: tuple[int, ...] = ()
    early: int = 0
    pieces: tuple[Piece, ...] = ()
    pieces_again: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class _Need:
    """What a body needs.

    Attributes:
        without_outputs: most bytes that are alive in a run of it, its inputs left out.
        with_outputs: the same with the outputs that it has made by then.
        body: what it asks for.
    """

    without_outputs: int = 0
    with_outputs: int = 0
    body: Body = NOTHING


def inner_workspace(node: ir.Node, numbers: Numbers, again: bool = False) -> Inner:
    """What a control-flow node takes while it runs; nothing for other nodes.

    Args:
        node: the node.
        numbers: see `Numbers`.
        again: whether the node stands in a body that runs more than once.
    """
    bodies = bodies_of(node)
    if not bodies:
        return Inner()
    steps = _steps(node) if node.op_type == "Scan" else None
    repeated = again or (node.op_type == "Scan" and steps != 1) or (node.op_type == "Loop" and most_trips(node) != 1)
    needs = [_body_needs(node, body, numbers, repeated) for body in bodies]
    if node.op_type == "Loop":
        return _loop(node, *needs)
    need = max(needs, key=lambda need: need.without_outputs)
    inside = need.without_outputs
    if node.op_type == "If":
        first, later = (pieces_of_if(need.body, again=again) for again in (False, True))
        return Inner(inside, pieces=first, pieces_again=later)
    states = state_count(node)
    copies = 2 if steps is None else min(2, max(0, steps - 1))
    carried = [bytes_of(value) for value in node.outputs[:states] for _ in range(copies)]
    sequences = [value for value in node.inputs[states:] if value is not None]
    turned = [bytes_of(v) for v, axis in zip(sequences, tracks_of(node, "input"), strict=False) if axis]
    # Rows of an output along another axis are gathered in a tensor of their own, and turned into it at the end.
    late = tuple(place for place, axis in enumerate(tracks_of(node, "output"), states) if axis)
    rows = [bytes_of(node.outputs[place]) for place in late]
    taken = sum(carried) + sum(turned) + sum(rows)
    first, later = (
        pieces_of_scan(need.body, turned=turned, rows=rows, states=carried, several=steps != 1, again=again)
        for again in (False, True)
    )
    return Inner(taken + max(0, inside - sum(rows)), late, taken + inside, first, later)


def _loop(node: ir.Node, need: _Need) -> Inner:
    """What a Loop takes: all outputs are made at its end, while what the last step read and made is still there."""
    states = state_count(node)
    carried, stacked = node.outputs[:states], node.outputs[states:]
    single = most_trips(node) == 1  # what the first step reads is the Loop's own input
    earlier = sum(bytes_of(value) - _row(value) for value in stacked)
    early = need.with_outputs + _CLOCK + earlier + (0 if single else sum(map(bytes_of, carried)))
    held = (1 if single else 2) * sum(chunk_size(bytes_of(value)) for value in carried)
    end = held + sum(map(_row_by_row, stacked)) + 3 * chunk_size(1)
    made = sum(map(bytes_of, node.outputs))
    trips = most_trips(node) or max((dims[0] for v in stacked if (dims := dimensions_of(v))), default=3)
    first, later = (pieces_of_loop(need.body, trips=trips, again=again) for again in (False, True))
    return Inner(max(early - made, end), tuple(range(len(node.outputs))), early, first, later)


def _row(value: ir.Value) -> int:
    """Bytes of a row of a value."""
    dims = dimensions_of(value)
    return bytes_of(value) // dims[0] if dims and dims[0] else bytes_of(value)


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


def _body_needs(owner: ir.Node, body: ir.Graph, numbers: Numbers, repeated: bool) -> _Need:
    """The largest sums of live bytes in the runs of a body.

    Args:
        owner: the node that runs it.
        body: the graph.
        numbers: see `Numbers`.
        repeated: whether it runs more than once.
    """
    nodes = list(body)
    if not nodes:
        return _Need()
    if not body.meta.get(EXECUTED):
        nodes = [nodes[position] for position in default_order(predecessors(nodes))]
    problem, schedule = numbers(nodes, body.inputs, body.outputs, repeated), range(len(nodes))
    shapes = shape_classes(nodes, problem)
    lives = lifetimes(problem, schedule, shapes)
    first = simulate(problem, schedule, shapes, lives)
    without, beside = first.peak_activations, first.peak_total - problem.resident
    asked = allocations(problem, schedule, shapes, lives=lives)
    block, outputs = pattern_block(asked), 0
    made = {value.name for value in body.outputs[1 + state_count(owner) :]} if owner.op_type == "Loop" else ()
    rows = frozenset(buffer for buffer, tensor in enumerate(lives.tensor) if problem.tensors[tensor].name in made)
    needs = Body(asked, block, rows)
    if not repeated:
        return _Need(without, beside, needs)
    for op, step in zip(problem.ops, asked.steps, strict=True):
        outputs += sum(asked.size[buffer] for buffer in step.outputs)
        # What a kernel makes late lies in the block from the start on, unless it is an output of the body.
        late = sum(problem.tensors[tensor].bytes for tensor in op.late if problem.tensors[tensor].kind is Kind.OUTPUT)
        without = max(without, block + op.workspace, block + op.early)
        beside = max(beside, block + outputs + max(op.workspace, op.early - late))
    return _Need(without, beside, needs)

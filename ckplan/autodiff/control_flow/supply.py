"""Where a backward step gets the forward values that it reads.

Rows of what the forward node read or made are free to read. Of a state one sequence is kept, which serves for both ends
of a step: where a result of the node is that sequence anyway, nothing is kept at all. What the policy chooses is kept
as one more result of the forward node. The rest is recomputed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.backward import BackwardStep, Carried, Read
from ckplan.autodiff.control_flow.bodies import BodyBuilder, copy_nodes, dims_of, new_value, origin
from ckplan.autodiff.control_flow.cone import cone_of, leaner_cone, read_from_outside
from ckplan.autodiff.control_flow.policy import is_stored, stored_patterns
from ckplan.autodiff.control_flow.recurrence import Recurrence, Track


def supply(
    op: Builder,
    loop: Recurrence,
    step: BackwardStep,
    forward: Sequence[ir.Node],
    backward: Sequence[ir.Node],
    results: Sequence[ir.Value],
) -> dict[ir.Value, ir.Value]:
    """Fill a backward step with what supplies the forward values that it reads.

    Args:
        op: builder of the graph that holds the forward node.
        loop: the recurrence; what has to be kept becomes a result of it.
        step: the backward step, without nodes so far.
        forward: nodes of the forward body.
        backward: nodes of the backward step, still in the forward body.
        results: values that the backward step hands on.

    Returns:
        What the backward step reads instead of each value of the forward body.
    """
    before = {value: index for index, value in enumerate(loop.before)}
    after = {origin(value): index for index, value in enumerate(loop.after)}
    members = set(forward)
    after = {value: index for value, index in after.items() if value.producer() in members}

    def is_taken(value: ir.Value) -> bool:
        source = origin(value)
        return source in after or (source.producer() in members and is_stored(loop.node, source))

    there = {origin(inner) for inner, *_ in loop.results}

    def weight(value: ir.Value) -> int:
        source = origin(value)
        itemsize = 0 if source.dtype is None else source.dtype.itemsize
        return 0 if source in after or source in there else math.ceil(math.prod(dims_of(source)) * itemsize)

    frontier = read_from_outside(backward, results)
    if stored_patterns(loop.node) is None:
        cone = leaner_cone(frontier, forward, is_taken, weight)
    else:
        cone = cone_of(frontier, members, is_taken)
    values: dict[ir.Value, ir.Value] = {}
    inside = BodyBuilder(op, step.graph)
    beginnings = {before[value] for value in cone.entering if value in before}
    ends = {after[origin(value)] for value in cone.taken if origin(value) in after}
    for value, outer, track in loop.sequences:
        if value in cone.entering:
            values[value] = _read(op, step, value, outer, track)
    for state in sorted(beginnings | ends):
        _supply_state(op, inside, loop, step, state, (state in beginnings, state in ends), values)
    for value in cone.taken:
        source = origin(value)
        if source not in values:
            values[source] = _read(op, step, source, *loop.stack(op, source))
        values[value] = values[source]
    if loop.node.op_type == "Loop":
        clock, condition = loop.body.inputs[:2]
        if clock in cone.entering:
            values[clock] = step.clock = new_value(op, f"{clock.name}_again", ir.DataType.INT64, dims_of(clock))
        if condition in cone.entering:
            values[condition] = op.constant(np.ones(dims_of(condition), dtype=np.bool_))
    step.graph.extend(copy_nodes(op, [node for node in forward if node in cone.repeated], values, "backward"))
    return values


def _read(op: Builder, step: BackwardStep, value: ir.Value, outer: ir.Value, track: Track) -> ir.Value:
    row = new_value(op, f"{value.name}_again", value.dtype, dims_of(value))
    step.read.append(Read(row, outer, track))
    return row


def _supply_state(
    op: Builder,
    inside: BodyBuilder,
    loop: Recurrence,
    step: BackwardStep,
    state: int,
    wanted: tuple[bool, bool],
    values: dict[ir.Value, ir.Value],
) -> None:
    """Provide a state as it is at the beginning of a step, at its end, or both, from one sequence."""
    before, after = loop.before[state], loop.after[state]
    shared = next((r for r in loop.results if origin(r[0]) is origin(after) and r[1].name), None)
    if not wanted[0]:
        values[origin(after)] = _read(op, step, after, *loop.stack(op, after))
    elif shared is not None and loop.exact:
        _, outer, track = shared
        if wanted[1]:
            values[origin(after)] = _read(op, step, after, outer, track)
        steps = np.arange(loop.steps, dtype=np.int64)
        rows = np.minimum(loop.steps - steps, loop.steps - 1) if track.reverse else np.maximum(steps - 1, 0)
        row = _constant_row(op, step, rows, "previous")
        first = _constant_row(op, step, steps == 0, "first")
        with inside.scope(f"{before.name}/again"):
            values[before] = inside.Where(first, loop.initial[state], inside.Gather(outer, row, axis=track.axis))
    else:
        values[before] = _read(op, step, before, *loop.stack(op, before))
        if wanted[1]:
            # The end of a step is the beginning of the next one, which the backward pass has just left.
            end = new_value(op, f"{after.name}_again", after.dtype, dims_of(after))
            with inside.scope(f"{before.name}/again"):
                step.carried.append(Carried(loop.final[state], end, inside.Identity(values[before]), None))
            values[origin(after)] = end


def _constant_row(op: Builder, step: BackwardStep, rows: np.ndarray, name: str) -> ir.Value:
    outer = op.constant(rows)
    row = new_value(op, f"{step.graph.name}/{name}", outer.dtype, ())
    step.read.append(Read(row, outer, Track(0)))
    return row

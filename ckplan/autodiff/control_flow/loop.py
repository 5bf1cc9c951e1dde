"""Gradient of Loop.

A Loop that always runs the same number of times is a Scan over the numbers of its steps, and becomes one. Of another
the number of steps comes out together with what has to be kept; the backward pass is a Loop of as many steps, which
picks the rows one by one. The sequences that it reads have as many rows as there were steps; the planner counts them at
their largest.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.control_flow.backward import BackwardStep
from ckplan.autodiff.control_flow.backward_step import backward_step
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close, close_body, dims_of, emit_control, new_value
from ckplan.autodiff.control_flow.picked_rows import (
    emitted,
    hand_over,
    is_of_rows,
    most_steps,
    picked_rows,
    refuse_whole_sequences,
    value_like,
)
from ckplan.autodiff.control_flow.recurrence import Recurrence, row_shape
from ckplan.autodiff.control_flow.scan import backward_metadata, scan_gradient
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import attr_int, shape_of
from ckplan.autodiff.registry import NoGradientError
from ckplan.keys import PHASE
from ckplan.model.bodies import changing_states, fixed_trips
from ckplan.model.inference.infer import static_shape
from ckplan.model.node_reads import captured, needed_nodes
from ckplan.operators.matching import is_op


def loop_gradient(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Differentiate a Loop.

    Args:
        op: builder of the graph that holds the node.
        node: a Loop (https://onnx.ai/onnx/operators/onnx__Loop.html).
        dy: gradients of its outputs.

    Returns:
        Gradients of its inputs, then of the values it captures.

    Raises:
        NoGradientError: its body cannot be differentiated, or how often it runs is neither fixed nor bounded.
    """
    outside, initial = captured(node), list(node.inputs[2:])
    states, counts = len(initial), [None] * min(2, len(node.inputs))
    if fixed_trips(node) == 0:
        return [*counts, *dy[:states]]
    if loop_as_scan(op, node):
        read = [*node.inputs[states:], *captured(node)]
        gradients = list(scan_gradient(op, node, dy))
        found: dict[ir.Value, ir.Value] = {}
        for value, gradient in zip(read, gradients[states:], strict=False):
            if value is not None and gradient is not None:
                found[value] = op.Add(found[value], gradient) if value in found else gradient
        return [*counts, *gradients[:states], *(found.get(value) for value in outside)]
    most = most_steps(node)
    if most is None:
        count = node.inputs[0]
        given = count is not None and count.is_graph_input() and not count.is_initializer()
        what_to_do = f"fix it with --set {count.name}=NUMBER" if count and given else "give it a constant trip count"
        raise NoGradientError(f"how often it runs depends on data and has no bound; {what_to_do}")
    for output, gradient in zip(node.outputs[states:], dy[states:], strict=False):
        if gradient is not None and not is_of_rows(gradient, output):
            raise NoGradientError(
                f"its output '{output.name}' has one row for each iteration, and their number depends on data"
            )
    picked = picked_rows(node)
    refuse_whole_sequences(op, node, picked)
    loop = Recurrence(node, node.attributes["body"].as_graph(), 2, 1, most, exact=False, picked=picked)
    step = backward_step(op, loop, dy)
    read = [*node.inputs, *outside]
    return [None] * len(read) if step is None else _emit(op, loop, step, read)


def loop_as_scan(op: Builder, node: ir.Node) -> bool:
    """Turn a Loop that always runs the same number of times, at least once, into a Scan, in place.

    Args:
        op: builder of the graph that holds the node.
        node: a Loop.

    Returns:
        Whether it could be done.

    Raises:
        NoGradientError: a carried value changes its shape.
    """
    trips = fixed_trips(node)
    if not trips:
        return False
    body = node.attributes["body"].as_graph()
    changing = [body.inputs[index] for index in changing_states(node)]
    for value in (*changing, *(value for value in body.inputs[2:] if static_shape(value) is None)):
        raise NoGradientError(f"its carried value '{value.name}' changes its shape from step to step")
    inside = BodyBuilder(op, body)
    clock, condition, *states = body.inputs
    ir.convenience.replace_all_uses_with(condition, op.constant(np.ones(dims_of(condition), dtype=np.bool_)))
    outputs = list(body.outputs)
    body.outputs.clear()
    body.outputs.extend(outputs[1:])
    close_body(inside)
    needed = needed_nodes(body, body.outputs)
    discard(body, [inner for inner in reversed(list(body)) if inner not in needed])
    body.inputs.clear()
    body.inputs.extend([*states, clock])
    carried = list(node.inputs[2:])
    sequences, axes = _rows_read(body, clock, trips)
    if clock.uses() or not sequences:
        numbers = np.arange(trips, dtype=np.int64).reshape(trips, *dims_of(clock))
        sequences, axes = [op.constant(numbers), *sequences], [0, *axes]
    else:
        body.inputs.remove(clock)
    for index in range(len(node.inputs)):
        node.replace_input_with(index, None)
    read: list[ir.Value | None] = [*carried, *sequences]
    node.resize_inputs(len(read))
    for index, entering in enumerate(read):
        node.replace_input_with(index, entering)
    node.op_type = "Scan"
    node.attributes["num_scan_inputs"] = ir.AttrInt64("num_scan_inputs", len(sequences))
    node.attributes["scan_input_axes"] = ir.AttrInt64s("scan_input_axes", axes)
    return True


def _rows_read(body: ir.Graph, clock: ir.Value, trips: int) -> tuple[list[ir.Value], list[int]]:
    """Turn each Gather that picks the row of the step from an outer sequence of as many rows into an input of the body.

    The gradient of the sequence then comes row by row, and need not be summed up whole in each step.

    Args:
        body: the body; its inputs are added to.
        clock: the number of the step.
        trips: number of steps.

    Returns:
        The sequences, and the axes along which they are read.
    """
    sequences, axes = [], []
    inside = {output for inner in body for output in inner.outputs} | set(body.inputs)
    for inner in list(body):
        data = inner.inputs[0] if is_op(inner, "Gather") else None
        if data is None or data in inside or inner.inputs[1] is not clock or dims_of(clock):
            continue
        shape = shape_of(data)
        axis = attr_int(inner, "axis", 0) % len(shape)
        if shape[axis] != trips or inner.outputs[0].is_graph_output():
            continue
        old = inner.outputs[0]
        row = ir.Value(name=old.name, type=data.type, shape=ir.Shape(row_shape(shape, axis)))
        old.replace_all_uses_with(row)
        old.name = None
        body.remove(inner, safe=True)
        body.inputs.append(row)
        sequences.append(data)
        axes.append(axis)
    return sequences, axes


def _emit(op: Builder, loop: Recurrence, step: BackwardStep, read: Sequence[ir.Value | None]) -> list[ir.Value | None]:
    """Emit the Loop around a backward step of a Loop that reads some values; return the gradients by slot."""
    name = f"{loop.node.name}/grad/Loop"
    graph = step.graph
    inside = BodyBuilder(op, graph)
    clock = new_value(op, f"{name}_step", ir.DataType.INT64, ())
    condition = new_value(op, f"{name}_condition", ir.DataType.BOOL, ())
    graph.inputs.extend([clock, condition, *(c.before for c in step.carried)])
    trips = _trips(op, loop)
    with op.scope(f"{loop.node.name}/grad"):
        last = op.Sub(trips, 1)
    first = next(iter(graph), None)
    # Steps are numbered backwards: the rows of the last one are read first.
    place = step.clock if step.clock is not None else new_value(op, f"{name}_row", ir.DataType.INT64, ())
    picks = [ir.Node("", "Sub", [last, clock], outputs=[place], name=op.unique_name(f"{name}/Sub"))]
    for one in step.read:
        row = clock if one.track.reverse else place
        pick = ir.Node("", "Gather", [one.outer, row], outputs=[one.inside], name=op.unique_name(f"{name}/Gather"))
        picks.append(pick)
    if first is None:
        graph.extend(picks)
    else:
        graph.insert_before(first, picks)
    for node in picks:
        node.metadata_props[PHASE] = "backward"
    made = [*(c.after for c in step.carried), *(m.inside for m in step.made)]
    graph.outputs.extend(close(inside, [condition, *made]))
    outputs = [new_value(op, f"{name}_out", c.after.dtype, shape_of(c.after)) for c in step.carried]
    for part in step.made:
        sequence = read[part.slot]
        assert sequence is not None
        outputs.append(value_like(op, sequence, f"{name}_out"))
    inputs = [trips, None, *(c.initial for c in step.carried)]
    emit_control(op, "Loop", name, inputs, [ir.AttrGraph("body", graph)], outputs, backward_metadata(loop.node))
    gradients: list[ir.Value | None] = [None] * len(read)
    for carried, output in zip(step.carried, outputs, strict=False):
        if carried.slot is not None:
            gradients[carried.slot] = output
    for part, output in zip(step.made, outputs[len(step.carried) :], strict=True):
        sequence = read[part.slot]
        assert sequence is not None
        # The steps run backwards: the last row is the first to come.
        hand_over(op, sequence, output if part.track.reverse else _turned(op, output))
    return gradients


def _trips(op: Builder, loop: Recurrence) -> ir.Value:
    """Return how many steps a Loop made."""
    (given, *_) = loop.node.inputs
    if loop.picked and given is not None:
        return given
    numbers, _ = loop.stack(op, loop.body.inputs[0])
    # Inference does not know how many rows there are.
    trips = new_value(op, f"{loop.node.name}/trips", ir.DataType.INT64, ())
    op.insert(
        ir.Node("", "Size", [numbers], outputs=[trips], name=f"{trips.name}/Size", metadata_props={PHASE: "backward"})
    )
    return trips


def _turned(op: Builder, rows: ir.Value) -> ir.Value:
    """Return a sequence with its last row first, whose length no inference knows."""
    return emitted(op, "Slice", [rows, *(op.constant([number]) for number in (-1, -(1 << 62), 0, -1))], rows)

"""Rows that the gradient of a Loop picks from what the Loop kept, where the number of steps depends on data.

The backward Loop reads each sequence of the forward one through a Gather of the row of the step. To differentiate it in
turn these rows are taken for inputs of its steps: the gradient of a sequence then comes row by row as well, as one more
result of the next Loop, and the forward Loop's own backward step reads it row by row again.
"""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.recurrence import Track
from ckplan.autodiff.reading import attr_int
from ckplan.autodiff.registry import NoGradientError
from ckplan.keys import PHASE
from ckplan.model.bodies import constant_array, fixed_trips, most_trips, state_count
from ckplan.model.node_reads import captured
from ckplan.operators.matching import is_op

_ROWS_OF = "ckplan rows of"

Picked = tuple[tuple[ir.Value, ir.Value, Track], ...]


def counted_by(node: ir.Node) -> ir.Node | None:
    """Return the Loop whose steps a Loop's trip count counts, as that of its gradient does; None if there is none."""
    trips = node.inputs[0].producer() if node.inputs and node.inputs[0] is not None else None
    numbers = trips.inputs[0] if is_op(trips, "Size") else None
    return None if numbers is None else _stacked_by(numbers)


def _stacked_by(value: ir.Value) -> ir.Node | None:
    """The Loop that makes a value row by row, None if none does."""
    node = value.producer()
    if not is_op(node, "Loop"):
        return None
    return node if value in node.outputs[state_count(node) :] else None


def most_steps(node: ir.Node) -> int | None:
    """Return how often a Loop runs at most, None if nothing says."""
    most, loop = most_trips(node), counted_by(node)
    return most if loop is None else most_steps(loop)


def picked_rows(node: ir.Node) -> Picked:
    """Return what the body of a Loop picks of sequences that a Loop of as many steps made, each row once.

    Further picks of the same row read the first one.

    Args:
        node: a Loop that runs as often as another one did, and no less.
    """
    loop = counted_by(node)
    if loop is None or not _runs_to_its_count(node):
        return ()
    body = node.attributes["body"].as_graph()
    clock, outside = body.inputs[0], set(captured(node))
    found: dict[tuple[ir.Value, bool], ir.Value] = {}
    for inner in list(body):
        if not is_op(inner, "Gather") or attr_int(inner, "axis", 0):
            continue
        data, place = inner.inputs
        made = None if data is None else _stacked_by(data)
        if data is None or place is None or data not in outside or made is None:
            continue
        same_steps = made is loop or counted_by(made) is loop or made is counted_by(loop)
        backwards = _counts_back(place, clock, node.inputs[0])
        if not same_steps or not (backwards or place is clock):
            continue
        row, first = inner.outputs[0], found.setdefault((data, backwards), inner.outputs[0])
        if row is not first:
            row.replace_all_uses_with(first, replace_graph_outputs=True)
            body.remove(inner, safe=True)
    return tuple((row, data, Track(0, backwards)) for (data, backwards), row in found.items())


def refuse_whole_sequences(op: Builder, node: ir.Node, picked: Picked) -> None:
    """See that the body of a Loop reads sequences of as many rows as data say in no other way than row by row.

    Args:
        op: builder of the graph that holds the node.
        node: the Loop.
        picked: the rows that it picks.

    Raises:
        NoGradientError: it reads one as a whole, so that the gradient would have as many rows.
    """
    picks = {row.producer() for row, *_ in picked}
    loops = {value: _stacked_by(value) for value in captured(node) if op.wants(value)}
    sequences = {value for value, loop in loops.items() if loop is not None and fixed_trips(loop) is None}
    for inner in ir.traversal.RecursiveGraphIterator(node.attributes["body"].as_graph()):
        whole = sequences.intersection(inner.inputs) if inner not in picks else ()
        for value in whole:
            raise NoGradientError(f"it reads all of '{value.name}' at once, whose number of rows depends on data")


def _runs_to_its_count(node: ir.Node) -> bool:
    """Whether nothing ends a Loop before its trip count does."""
    body = node.attributes["body"].as_graph()
    source = body.outputs[0]
    while (maker := source.producer()) is not None and maker.op_type == "Identity" and maker.inputs[0] is not None:
        source = maker.inputs[0]
    start = node.inputs[1]
    return start is None and source is body.inputs[1]


def _counts_back(place: ir.Value, clock: ir.Value, trips: ir.Value | None) -> bool:
    """Whether a number in a body is that of the last step less that of the step."""
    node = place.producer()
    if node is None or node.op_type != "Sub" or node.inputs[1] is not clock or node.inputs[0] is None:
        return False
    last = node.inputs[0].producer()
    if last is None or last.op_type != "Sub" or last.inputs[0] is not trips or last.inputs[1] is None:
        return False
    one = constant_array(last.inputs[1])
    return one is not None and one.tolist() == 1


def hand_over(op: Builder, sequence: ir.Value, rows: ir.Value) -> None:
    """Add to the gradient of a sequence whose number of rows no shape tells.

    Args:
        op: builder of the graph.
        sequence: a result of a Loop, row by row.
        rows: a part of its gradient, in the same order.

    Raises:
        NoGradientError: something else reads the sequence, too.
    """
    before = op.take_partial(sequence)
    if before is not None:
        if not is_of_rows(before, sequence):
            raise NoGradientError(f"'{sequence.name}', whose number of rows depends on data, is also read all at once")
        rows = emitted(op, "Add", [before, rows], rows)
    rows.meta[_ROWS_OF] = sequence
    op.partials[sequence], op.pending[sequence] = rows, 1.0


def value_like(op: Builder, like: ir.Value, name: str) -> ir.Value:
    """Return a value that nothing makes yet, of the type and shape of another, whatever is known of them."""
    return ir.Value(name=op.unique_name(name), type=like.type, shape=like.shape)


def emitted(op: Builder, op_type: str, inputs: Sequence[ir.Value], like: ir.Value) -> ir.Value:
    """Emit a node whose result has the shape of another value, though no inference knows it."""
    made = value_like(op, like, f"{like.name}/{op_type}")
    op.insert(ir.Node("", op_type, inputs, outputs=[made], name=made.name, metadata_props={PHASE: "backward"}))
    return made


def is_of_rows(gradient: ir.Value, sequence: ir.Value) -> bool:
    """Whether a gradient was made known by `hand_over`, so that it has as many rows as the sequence in every run."""
    return gradient.meta.get(_ROWS_OF) is sequence

"""Types and shapes across the border between a control-flow node and its bodies."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import numpy as np
import onnx_ir as ir

from ckplan.model.inference.infer import static_shape
from ckplan.model.nested_graphs import graphs_in
from ckplan.model.node_reads import fixed_tensor, reads
from ckplan.operators.matching import input_of, is_op

_TRIPS = 1 << 31


def bodies_of(node: ir.Node) -> list[ir.Graph]:
    """The graphs that a node of If, Loop or Scan holds, none for other nodes."""
    if not is_op(node, ("If", "Loop", "Scan")):
        return []
    return graphs_in(node)


def enter(node: ir.Node) -> None:
    """Set types and shapes of a body's inputs from what the node reads.

    The states of a Loop are taken to keep their shapes; see `changing_states`.
    """
    for body in bodies_of(node):
        if node.op_type == "Loop":
            clock, condition = body.inputs[:2]
            clock.type, clock.shape = ir.TensorType(ir.DataType.INT64), ir.Shape(())
            condition.type, condition.shape = ir.TensorType(ir.DataType.BOOL), ir.Shape(())
        first = {"Loop": 2, "Scan": 0}.get(node.op_type, len(node.inputs))
        sequences = len(node.inputs) - node.attributes.get_int("num_scan_inputs", 0)
        axes = _axes(node, "scan_input_axes", len(node.inputs) - sequences)
        for index in range(first, min(len(node.inputs), len(body.inputs))):
            outer, inner = node.inputs[index], body.inputs[index]
            if outer is None or outer.type is None:
                continue
            inner.type = outer.type
            shape = outer.shape
            if node.op_type == "Scan" and index >= sequences and shape is not None:
                axis = axes[index - sequences] % max(1, len(shape))
                shape = ir.Shape([dim for place, dim in enumerate(shape) if place != axis])
            inner.shape = None if shape is None else ir.Shape(shape.dims)


def leave(node: ir.Node) -> None:
    """Set types and shapes of a node's outputs from those of its bodies' outputs, where these are known and agree."""
    bodies = bodies_of(node)
    for index, output in enumerate(node.outputs):
        skipped = 1 if node.op_type == "Loop" else 0
        inner = [body.outputs[index + skipped] for body in bodies if index + skipped < len(body.outputs)]
        shapes = {static_shape(value) for value in inner}
        if not inner or len(shapes) != 1 or inner[0].type is None or isinstance(inner[0].type, ir.SequenceType):
            continue
        (shape,) = shapes
        if shape is None:
            continue
        states = state_count(node)
        if index >= states:
            rows = _rows(node)
            if rows is None:
                continue
            axis = _axes(node, "scan_output_axes", len(node.outputs) - states)[index - states] % (len(shape) + 1)
            shape = (*shape[:axis], rows, *shape[axis:])
        output.type, output.shape = inner[0].type, ir.Shape(shape)


def changing_states(node: ir.Node) -> list[int]:
    """States of a Loop whose shape at the end of a step is not that at its beginning: indices of the body's inputs."""
    if node.op_type != "Loop":
        return []
    (body,) = bodies_of(node)
    pairs = zip(body.inputs[2:], body.outputs[1:], strict=False)
    return [i + 2 for i, (before, after) in enumerate(pairs) if static_shape(before) != static_shape(after)]


def forget_shapes(graph: ir.Graph) -> None:
    """Forget the shapes of all values that nodes of a body make."""
    for scope in (graph, *graph.subgraphs()):
        for node in scope:
            for output in node.outputs:
                if not isinstance(output.type, ir.SequenceType | ir.OptionalType):
                    output.shape = None


def fixed_trips(node: ir.Node) -> int | None:
    """How often the body of a Loop runs, if that does not depend on data; None if it does."""
    (body,) = bodies_of(node)
    most = most_trips(node)
    if most is None:
        return None
    start = input_of(node, 1)
    if start is not None:
        array = constant_array(start)
        if array is None:
            return None
        if not array.reshape(-1)[0]:
            return 0
    goes_on = body.outputs[0]
    source = through_identity(goes_on)
    if source is body.inputs[1]:
        return most
    array = constant_array(source)
    return most if array is not None and bool(array.reshape(-1)[0]) else None


def ends_by(node: ir.Node, values: Collection[ir.Value]) -> bool:
    """Whether some values of the graph around a Loop decide how often it runs, by what they hold."""
    if fixed_trips(node) is not None:
        return False
    (body,) = bodies_of(node)
    if any(value in values for value in node.inputs[:2]):
        return True
    entering = zip(body.inputs[2:], node.inputs[2:], strict=False)
    decided = {inner for inner, outer in entering if outer in values}
    before = -1
    while len(decided) > before:  # what a step makes goes into the next one
        before = len(decided)
        for inner in body:
            if not is_op(inner, ("Shape", "Size")) and any(v in values or v in decided for v in reads(inner)):
                decided.update(inner.outputs)
        leaving = zip(body.inputs[2:], body.outputs[1:], strict=False)
        decided.update(entry for entry, made in leaving if made in decided or made in values)
    return body.outputs[0] in decided or body.outputs[0] in values


def most_trips(node: ir.Node) -> int | None:
    """The trip count that a Loop is given, if it is a constant and not just a very large number."""
    array = constant_array(node.inputs[0]) if node.inputs and node.inputs[0] is not None else None
    if array is None:
        return None
    trips = int(array.reshape(-1)[0])
    return max(0, trips) if trips < _TRIPS else None


def constant_array(value: ir.Value) -> np.ndarray | None:
    """The content of an initializer that nobody feeds."""
    tensor = fixed_tensor(through_identity(value))
    return None if tensor is None else np.asarray(tensor.numpy())


def through_identity(value: ir.Value) -> ir.Value:
    """What a value is an identity of, or the value itself."""
    producer = value.producer()
    while producer is not None and producer.op_type == "Identity" and producer.inputs[0] is not None:
        value = producer.inputs[0]
        producer = value.producer()
    return value


def state_count(node: ir.Node) -> int:
    """How many of the node's outputs are final states."""
    if node.op_type == "If":
        return len(node.outputs)
    first = 2 if node.op_type == "Loop" else node.attributes.get_int("num_scan_inputs", 0)
    return len(node.inputs) - first


def _rows(node: ir.Node) -> int | None:
    """How many rows a scan output has."""
    if node.op_type == "Loop":
        return fixed_trips(node)
    count = node.attributes.get_int("num_scan_inputs", 0)
    axis = _axes(node, "scan_input_axes", count)[0]
    source = node.inputs[len(node.inputs) - count]
    shape = None if source is None else static_shape(source)
    return None if not shape else shape[axis % len(shape)]


def trips_of(node: ir.Node) -> int:
    """How often the body of a Scan or Loop runs: at most, where it depends on data, and once where nothing is known."""
    rows = _rows(node) if node.op_type == "Scan" else most_trips(node)
    return 1 if rows is None else rows


def tracks_of(node: ir.Node, side: str) -> Sequence[int]:
    """Axes along which a Scan runs through its sequences; ``side`` is ``input`` or ``output``."""
    count = node.attributes.get_int("num_scan_inputs", 0)
    return _axes(node, f"scan_{side}_axes", count if side == "input" else len(node.outputs) - state_count(node))


def _axes(node: ir.Node, name: str, count: int) -> Sequence[int]:
    attribute = node.attributes.get(name)
    return attribute.as_ints() if attribute is not None else (0,) * count

"""Gradient of Scan: a Scan over the same steps from the last to the first."""

from __future__ import annotations

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.control_flow.backward import BackwardStep, Carried, Made, Read
from ckplan.autodiff.control_flow.backward_step import backward_step
from ckplan.autodiff.control_flow.bodies import dims_of, emit_scan, new_value
from ckplan.autodiff.control_flow.deferred import weight_gradient
from ckplan.autodiff.control_flow.recurrence import Recurrence, Track, scan_of, track_attributes
from ckplan.autodiff.reading import shape_of
from ckplan.keys import PHASE, PIECES, STORE
from ckplan.model.node_reads import captured


def scan_gradient(op: Builder, node: ir.Node, dy: Gradients) -> Gradients:
    """Run the backward step over all steps in reverse.

    Args:
        op: builder of the graph that holds the node.
        node: a Scan.
        dy: gradients of its outputs.

    Returns:
        Gradients of its inputs, then of the values it captures.
    """
    loop = scan_of(node)
    count = len(node.inputs) + len(captured(node))
    if loop.steps == 0:
        return dy[: loop.states]
    step = backward_step(op, loop, dy)
    return [None] * count if step is None else emit_backward_scan(op, loop, step, count)


def emit_backward_scan(op: Builder, loop: Recurrence, step: BackwardStep, count: int) -> list[ir.Value | None]:
    """Emit the Scan around a backward step.

    Args:
        op: builder of the graph that holds the forward node.
        loop: the forward node, a Scan.
        step: its backward step.
        count: number of the forward node's inputs and captured values.

    Returns:
        The gradients by slot.
    """
    name = f"{loop.node.name}/grad/Scan"
    if not step.read:  # something has to say how many steps there are
        steps = op.constant(np.zeros(loop.steps, dtype=np.bool_))
        step.read.append(Read(new_value(op, f"{name}_step", steps.dtype, ()), steps, Track(0)))
    graph = step.graph
    graph.inputs.extend([*(c.before for c in step.carried), *(r.inside for r in step.read)])
    graph.outputs.extend([*(c.after for c in step.carried), *(m.inside for m in step.made)])
    attributes = track_attributes("input", [_backwards(r.track) for r in step.read])
    if step.made:
        attributes += track_attributes("output", [_backwards(m.track) for m in step.made])
    outputs = [new_value(op, f"{name}_out", c.after.dtype, shape_of(c.after)) for c in step.carried]
    for made in step.made:
        shape, axis = dims_of(made.inside), made.track.axis
        whole = (*shape[:axis], loop.steps, *shape[axis:])
        outputs.append(new_value(op, f"{name}_out", made.inside.dtype, whole))
    states, sequences = [c.initial for c in step.carried], [r.outer for r in step.read]
    emit_scan(op, name, graph, states, sequences, outputs, backward_metadata(loop.node), attributes)
    gradients: list[ir.Value | None] = [None] * count
    parts: list[Carried | Made] = [*step.carried, *step.made]
    for part, output in zip(parts, outputs, strict=True):
        if part.slot is None:
            continue
        gradient: ir.Value | None = output
        if isinstance(part, Made) and part.deferred is not None and part.operands is not None:
            gradient = weight_gradient(op, part.deferred, part.operands, output)
        other = gradients[part.slot]
        gradients[part.slot] = gradient if other is None or gradient is None else op.Add(other, gradient)
    return gradients


def backward_metadata(node: ir.Node) -> dict[str, str]:
    """Return the metadata of the backward node of a control-flow node: what the user said of one holds for both."""
    kept = {key: node.metadata_props[key] for key in (STORE, PIECES) if key in node.metadata_props}
    return {PHASE: "backward", **kept}


def _backwards(track: Track) -> Track:
    return Track(track.axis, not track.reverse)

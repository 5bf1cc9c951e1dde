"""Emits a loop over time."""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.bodies import BodyBuilder, close, emit_scan, new_value
from ckplan.autodiff.reading import shape_of
from ckplan.keys import PHASE

States = Sequence[ir.Value]
Values = dict[str, ir.Value]

#: From the builder of the body, the states and one step of each sequence to the new states and the step's results.
Step = Callable[[Builder, States, Mapping[str, ir.Value]], tuple[States, Mapping[str, ir.Value]]]


def scan(
    op: Builder,
    name: str,
    phase: str,
    step: Step,
    states: States,
    sequences: Mapping[str, ir.Value],
    results: Container[str],
    *,
    backwards: bool,
) -> tuple[list[ir.Value], dict[str, ir.Value]]:
    """Emit a Scan along the first axis of some tensors.

    Args:
        op: builder of the graph that gets it.
        name: of the node; made unique.
        phase: of the node and those in its body.
        step: emits the body.
        states: the initial states.
        sequences: what the steps read, [steps, ...] each; a step gets it without the first axis.
        results: which of the step's results are wanted.
        backwards: from the last step to the first; a result of step t still is row t.

    Returns:
        the final states, and the wanted results, [steps, ...] each.
    """
    name = op.unique_name(name)
    steps = next(shape_of(value)[0] for value in sequences.values())
    before = [new_value(op, f"{name}/state{i}", value.dtype, shape_of(value)) for i, value in enumerate(states)]
    read = {key: new_value(op, f"{name}/{key}", v.dtype, shape_of(v)[1:]) for key, v in sequences.items()}
    graph = ir.Graph([*before, *read.values()], [], nodes=[], opset_imports=dict(op.opset_imports), name=f"{name}/step")
    inner = BodyBuilder(op, graph, op.wanted)
    with inner.scope(name, phase):
        after, made = step(inner, before, read)
        made = {key: value for key, value in made.items() if key in results}
        graph.outputs.extend(close(inner, [*after, *made.values()], phase))
    count = len(states)
    finals = [new_value(op, f"{name}/final{i}", v.dtype, shape_of(v)) for i, v in enumerate(graph.outputs[:count])]
    stacked = {
        key: new_value(op, f"{name}/all_{key}", value.dtype, (steps, *shape_of(value))) for key, value in made.items()
    }
    tracks = []
    if backwards:
        tracks.append(ir.AttrInt64s("scan_input_directions", [1] * len(read)))
        if made:
            tracks.append(ir.AttrInt64s("scan_output_directions", [1] * len(made)))
    outputs = [*finals, *stacked.values()]
    emit_scan(op, name, graph, states, list(sequences.values()), outputs, {PHASE: phase}, tracks)
    return finals, stacked

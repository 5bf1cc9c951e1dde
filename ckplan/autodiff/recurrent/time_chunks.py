"""Checkpoints along time for recurrent nodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.control_flow.chunks import Chunks, chunk_length, chunk_scan, chunked
from ckplan.autodiff.control_flow.recurrence import Track
from ckplan.autodiff.paths import discard
from ckplan.autodiff.reading import attr_float, attr_int, required_input, shape_of
from ckplan.autodiff.recurrent.activations import Activation
from ckplan.autodiff.recurrent.direction import Cell, Direction, Operands, operands_of
from ckplan.autodiff.recurrent.outputs import is_read, replace_outputs, stacked_states
from ckplan.autodiff.registry import NoGradientError
from ckplan.operators.matching import input_of


def chunk_recurrent(op: Builder, node: ir.Node, chunks: Chunks, cell: Cell) -> str | None:
    """Cut a recurrent node into chunks along time, each direction for itself.

    onnxruntime's fused kernel runs the chunks forward, where it can: in single precision, and where all samples take
    all steps, since it does not hand a state through a chunk in which a sample takes no part. Else a loop does.

    Args:
        op: builder of the graph that holds the node.
        node: LSTM, GRU or RNN.
        chunks: number of chunks.
        cell: the module of its kind.

    Returns:
        Why it was not cut; None if it was.
    """
    x = required_input(node, 0)
    steps = shape_of(x)[attr_int(node, "layout", 0)]
    length = chunk_length(steps, chunks)
    if length >= steps:
        return "" if chunks in (1, "sqrt") else f"it has only {steps} steps"
    fused = x.dtype == ir.DataType.FLOAT and input_of(node, 4) is None
    try:
        with op.scope(node.name or node.op_type, "forward", before=node):
            operands = operands_of(op, node, cell)
            if not fused:
                keep = frozenset({"y"} if is_read(node.outputs[0]) else ())
                runs = [cell.forward(op, d, keep) for d in operands.directions]
                replace_outputs(op, node, operands, runs)
                loops = [run.h.producer() for run in runs]
                reasons = [chunk_scan(op, loop, chunks) for loop in loops if loop is not None]
                return next((reason for reason in reasons if reason), None)
            singles = _one_for_each_direction(op, node, operands, cell)
    except NoGradientError as error:
        return error.reason
    for d, single in zip(operands.directions, singles, strict=True):
        track = Track(0, d.backwards)
        states = {5: 1, 6: 2} if len(single.outputs) > 2 else {5: 1}
        results = {0: track} if is_read(single.outputs[0]) else {}
        chunked(op, single, steps, length, sequences={0: track}, states=states, results=results)
    return None


def _one_for_each_direction(op: Builder, node: ir.Node, operands: Operands, cell: Cell) -> list[ir.Node]:
    """Replace a node by one for each direction, of layout 0, with all states given and all states coming out."""
    singles = [_single(op, node, d, cell) for d in operands.directions]
    for index, old in enumerate(node.outputs):
        if not is_read(old):
            continue
        found = [single.outputs[index] for single in singles]
        if index > 0:
            new = stacked_states(op, operands, [op.reshape(value, shape_of(value)[1:]) for value in found])
        else:
            new = found[0] if len(found) == 1 else op.Concat(*found, axis=1)
            new = op.transpose(new, (2, 0, 1, 3)) if operands.batch_first else new
        new.name, old.name = old.name, None
        ir.convenience.replace_all_uses_with(old, new, replace_graph_outputs=True)
    discard(op.graph, [node])
    for single in singles:
        if not single.outputs[0].uses():
            single.outputs[0].name = ""
    return singles


def _single(op: Builder, node: ir.Node, d: Direction, cell: Cell) -> ir.Node:
    def whole(value: ir.Value) -> ir.Value:
        return op.reshape(value, (1, *shape_of(value)))

    bias = None if d.biases is None else whole(op.Concat(*d.biases, axis=0))
    inputs = [d.x, whole(d.w), whole(d.r), bias, None, whole(d.h)]
    if d.c is not None and node.op_type == "LSTM":
        inputs.append(whole(op.transpose(d.c, (1, 0))))
        if d.peepholes is not None:
            inputs.append(op.reshape(d.peepholes, (1, shape_of(d.peepholes)[0])))
    attributes: dict[str, Any] = {
        "direction": "reverse" if d.backwards else "forward",
        "hidden_size": shape_of(d.r)[1],
        "clip": attr_float(node, "clip", 0.0) or None,
        **({cell.flag: int(d.flag)} if cell.flag else {}),
        **_activation_attributes(d.functions),
    }
    count = 3 if node.op_type == "LSTM" else 2
    outputs = op.emit(node.op_type, *inputs, _outputs=count, **attributes)
    single = outputs[0].producer()
    assert isinstance(single, ir.Node)
    single.metadata_props.update(node.metadata_props)
    return single


def _activation_attributes(functions: Sequence[Activation]) -> dict[str, Any]:
    given: dict[str, Any] = {"activations": [function.spelled for function in functions]}
    alphas = [function.alpha for function in functions if function.has_alpha]
    betas = [function.beta for function in functions if function.has_beta]
    return given | ({"activation_alpha": alphas} if alphas else {}) | ({"activation_beta": betas} if betas else {})

"""Gives the outputs of a recurrent node to other nodes, as the same values: their readers do not notice."""

from __future__ import annotations

from collections.abc import Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.recurrent.direction import Operands, Run


def is_read(value: ir.Value) -> bool:
    """Say whether anything reads an output; one that the model leaves out has no name."""
    return bool(value.name) and (bool(value.uses()) or value.is_graph_output())


def replace_outputs(op: Builder, node: ir.Node, operands: Operands, runs: Sequence[Run]) -> None:
    """Let what the loops gave make the outputs of a recurrent node, and take the node out of the graph.

    Args:
        op: builder of the graph, set to the node's place.
        node: LSTM, GRU or RNN.
        operands: its inputs.
        runs: what the loop of each direction gave.
    """
    read = [is_read(value) for value in node.outputs]
    results = {0: _sequence, 1: _state, 2: _cell}
    made = {index: results[index](op, operands, runs) for index, wanted in enumerate(read) if wanted}
    values = _released(node)
    for index, result in made.items():
        _hand_over(op, result, values[index])
    op.graph.remove(node, safe=True)


def _sequence(op: Builder, operands: Operands, runs: Sequence[Run]) -> ir.Value:
    parts = []
    for run in runs:
        assert run.y is not None
        steps, batch, hidden = shape_of(run.y)
        parts.append(op.reshape(run.y, (steps, 1, batch, hidden)))
    y = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=1)
    return op.transpose(y, (2, 0, 1, 3)) if operands.batch_first else y


def _state(op: Builder, operands: Operands, runs: Sequence[Run]) -> ir.Value:
    return stacked_states(op, operands, [run.h for run in runs])


def _cell(op: Builder, operands: Operands, runs: Sequence[Run]) -> ir.Value:
    return stacked_states(op, operands, [op.transpose(run.c, (1, 0)) for run in runs if run.c is not None])


def stacked_states(op: Builder, operands: Operands, states: Sequence[ir.Value], final: bool = True) -> ir.Value:
    """Return states of all directions as one tensor.

    Args:
        op: builder of the graph.
        operands: of the node.
        states: [N, H] each.
        final: they are final states: zeros where there was no step at all, as in onnxruntime.
    """
    parts = []
    for state in states:
        batch, hidden = shape_of(state)
        if final and operands.nonempty is not None:
            state = op.Where(op.reshape(operands.nonempty, (batch, 1)), state, 0.0)
        parts.append(op.reshape(state, (1, batch, hidden)))
    joined = parts[0] if len(parts) == 1 else op.Concat(*parts, axis=0)
    return op.transpose(joined, (1, 0, 2)) if operands.batch_first else joined


def _released(node: ir.Node) -> list[ir.Value]:
    """Take a node's outputs away from it and return them, their readers still reading them."""
    values = list(node.outputs)
    stand_ins = []
    for value in values:
        stand_in = ir.Value(name=value.name, type=value.type, shape=value.shape)
        value.replace_all_uses_with(stand_in, replace_graph_outputs=True)
        stand_ins.append(stand_in)
    node.resize_outputs(0)
    for value, stand_in in zip(values, stand_ins, strict=True):
        stand_in.replace_all_uses_with(value, replace_graph_outputs=True)
    return values


def _hand_over(op: Builder, result: ir.Value, value: ir.Value) -> None:
    """Let the node that makes ``result``, which nothing reads, make ``value`` instead."""
    maker = result.producer()
    assert maker is not None
    maker.resize_outputs(0)
    heir = ir.Node(
        maker.domain,
        maker.op_type,
        list(maker.inputs),
        list(maker.attributes.values()),
        outputs=[value],
        name=maker.name,
        metadata_props=dict(maker.metadata_props),
    )
    op.graph.insert_before(maker, heir)
    op.graph.remove(maker, safe=True)
    value.type, value.shape = result.type, result.shape

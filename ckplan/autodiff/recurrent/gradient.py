"""The gradient of a recurrent node: its loops, then one product over all steps for each weight."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import onnx_ir as ir

from ckplan.autodiff.builder import Builder, Gradients
from ckplan.autodiff.control_flow.bodies import BodyBuilder
from ckplan.autodiff.control_flow.chunks import chunk_length
from ckplan.autodiff.control_flow.policy import stores
from ckplan.autodiff.reading import shape_of
from ckplan.autodiff.recurrent.direction import Cell, Direction, Gradient, Operands, Run, Upstream, operands_of
from ckplan.autodiff.recurrent.outputs import is_read, replace_outputs, stacked_states

_Part = tuple[Direction, Gradient]


def recurrent_gradient(op: Builder, node: ir.Node, dy: Gradients, cell: Cell) -> Gradients:
    """Return the gradients of a recurrent node's inputs.

    In the main graph the node is replaced by loops that store what the gradient needs. In the body of a control-flow
    node the forward pass stays as it is and the loops run again in the backward pass, since storing is what the body's
    owner decides: so it is in chunks along time.

    Args:
        op: builder of the graph that holds the node.
        node: LSTM, GRU or RNN.
        dy: gradients of its outputs.
        cell: its kind.

    Raises:
        NoGradientError: its activations are unknown.
    """
    keep = {"states"} if stores(node, "gates") is False else {"states", "gates"}
    wanted = [value if op.wants(value) else None for value in node.inputs]
    if isinstance(op, BodyBuilder):
        operands = operands_of(op, node, cell)
        runs = [cell.forward(op, d, frozenset(keep)) for d in operands.directions]
    else:
        if is_read(node.outputs[0]):
            keep.add("y")
        with op.scope(node.name or node.op_type, phase="forward", before=node):
            operands = operands_of(op, node, cell)
            runs = [cell.forward(op, d, frozenset(keep)) for d in operands.directions]
            replace_outputs(op, node, operands, runs)
    arriving = _upstream(op, operands, runs, dy)
    parts = [
        (d, cell.backward(op, d, run, upstream))
        for d, run, upstream in zip(operands.directions, runs, arriving, strict=True)
    ]
    rules = [_of_input, _of_weights, _of_recurrent_weights, _of_biases, None, _of_state, _of_cell, _of_peepholes]
    return [
        None if value is None or of is None else of(op, operands, parts)
        for value, of in zip(wanted, rules, strict=False)
    ]


def _upstream(op: Builder, operands: Operands, runs: Sequence[Run], dy: Gradients) -> list[Upstream]:
    """Bring the gradients of a node's outputs into the form of each direction."""
    of_y, of_h, of_c = (*dy, None, None, None)[:3]
    count = len(runs)
    given = next(gradient for gradient in dy if gradient is not None)
    if of_y is not None:
        if operands.batch_first:
            of_y = op.transpose(of_y, (1, 2, 0, 3))
        steps, _, *rest = shape_of(of_y)
        parts = [of_y] if count == 1 else op.Split(of_y, axis=1, num_outputs=count, _outputs=count)
        sequences: list[ir.Value | None] = [op.reshape(part, (steps, *rest)) for part in parts]
    else:
        sequences = [None] * count
    found = []
    for k, (run, sequence) in enumerate(zip(runs, sequences, strict=True)):
        batch, hidden = shape_of(run.h)
        h = _of_final(op, operands, of_h, k, (batch, hidden), given)
        c = None if run.c is None else _of_final(op, operands, of_c, k, (batch, hidden), given)
        found.append(Upstream(sequence, h, c))
    return found


def _of_final(
    op: Builder, operands: Operands, gradient: ir.Value | None, k: int, shape: tuple[int, int], given: ir.Value
) -> ir.Value:
    """Return direction k's part of the gradient of a final state, [H, N]; zeros if there is none."""
    batch, hidden = shape
    if gradient is None:
        return op.zeros((hidden, batch), given)
    if operands.batch_first:
        gradient = op.transpose(gradient, (1, 0, 2))
    count = len(operands.directions)
    parts = [gradient] if count == 1 else op.Split(gradient, axis=0, num_outputs=count, _outputs=count)
    part = op.reshape(parts[k], shape)
    if operands.nonempty is not None:
        part = op.Where(op.reshape(operands.nonempty, (batch, 1)), part, 0.0)
    return op.transpose(part, (1, 0))


def _flat(op: Builder, value: ir.Value) -> ir.Value:
    """Return [T, N, ...] as a matrix of T N rows."""
    steps, batch, size = shape_of(value)
    return op.reshape(value, (steps * batch, size))


def _joined(op: Builder, values: Sequence[ir.Value], axis: int = 0) -> ir.Value:
    return values[0] if len(values) == 1 else op.Concat(*values, axis=axis)


def _by_direction(op: Builder, parts: Sequence[_Part], one: Callable[[_Part], ir.Value]) -> ir.Value:
    """Return what ``one`` gives for each direction as one tensor with an axis of directions before the others."""
    found = [one(part) for part in parts]
    return _joined(op, [op.reshape(value, (1, *shape_of(value))) for value in found])


def _of_input(op: Builder, operands: Operands, parts: Sequence[_Part]) -> ir.Value:
    total: ir.Value | None = None
    for d, gradient in parts:
        sizes = [shape_of(piece)[2] for piece in gradient.inputs]
        rows = [d.w] if len(sizes) == 1 else op.Split(d.w, op.constant(sizes), axis=0, _outputs=len(sizes))
        for piece, w in zip(gradient.inputs, rows, strict=True):
            total = op.Gemm(_flat(op, piece), w, total)
    assert total is not None
    dx = op.reshape(total, shape_of(parts[0][0].x))
    return op.transpose(dx, (1, 0, 2)) if operands.batch_first else dx


def _of_weights(op: Builder, operands: Operands, parts: Sequence[_Part]) -> ir.Value:
    def one(part: _Part) -> ir.Value:
        x = _flat(op, part[0].x)
        return _joined(op, [op.Gemm(_flat(op, piece), x, transA=1) for piece in part[1].inputs])

    return _by_direction(op, parts, one)


def _of_recurrent_weights(op: Builder, operands: Operands, parts: Sequence[_Part]) -> ir.Value:
    def one(part: _Part) -> ir.Value:
        return _joined(op, [op.Gemm(_flat(op, piece), _flat(op, h), transA=1) for piece, h in part[1].states])

    return _by_direction(op, parts, one)


def _of_biases(op: Builder, operands: Operands, parts: Sequence[_Part]) -> ir.Value:
    def one(part: _Part) -> ir.Value:
        pieces = [*part[1].inputs, *(piece for piece, _ in part[1].states)]
        sums = {piece: _over_steps(op, by_step) for piece, by_step in part[1].sums.items()}
        return _joined(op, [sums[piece] for piece in pieces])

    return _by_direction(op, parts, one)


def _over_steps(op: Builder, value: ir.Value) -> ir.Value:
    """Sum over the first axis, in two stages if it can be divided: long sums in single precision are rounded often."""
    steps, rows = shape_of(value)
    length = chunk_length(steps, "sqrt")
    if length < steps and steps % length == 0:
        value = op.reduce_sum(op.reshape(value, (steps // length, length, rows)), [1], keepdims=False)
    return op.reduce_sum(value, [0], keepdims=False)


def _of_state(op: Builder, operands: Operands, parts: Sequence[_Part]) -> ir.Value:
    return stacked_states(op, operands, [op.transpose(gradient.h, (1, 0)) for _, gradient in parts], final=False)


def _of_cell(op: Builder, operands: Operands, parts: Sequence[_Part]) -> ir.Value:
    found = [op.transpose(gradient.c, (1, 0)) for _, gradient in parts if gradient.c is not None]
    return stacked_states(op, operands, found, final=False)


def _of_peepholes(op: Builder, operands: Operands, parts: Sequence[_Part]) -> ir.Value:
    found = [gradient.peepholes for _, gradient in parts if gradient.peepholes is not None]
    return _joined(op, [op.reshape(value, (1, *shape_of(value))) for value in found])

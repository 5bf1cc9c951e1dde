"""What one direction of a recurrent node computes with, and what its gradient gives back."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import onnx_ir as ir

from ckplan.autodiff.builder import Builder
from ckplan.autodiff.reading import attr_float, attr_int, attr_str, required_input, shape_of
from ckplan.autodiff.recurrent.activations import Activation, activations_of
from ckplan.autodiff.registry import NoGradientError
from ckplan.errors import ModelError
from ckplan.operators.matching import input_of


@dataclass(frozen=True)
class Direction:
    """One direction of a recurrent node, without the axis of directions.

    G is the number of gates, H the size of the hidden state, I that of the input, N the batch, T the number of steps.

    Attributes:
        name: prefix of the names of its loops.
        backwards: whether it runs from the last step to the first.
        functions: its activations.
        x: the input, [T, N, I].
        w: the weights of the input, [G H, I].
        r: the recurrent weights, [G H, H].
        biases: of the two, [G H] each; none if the node has none.
        h: the initial state, [N, H].
        c: the initial cell of an LSTM, [H, N].
        peepholes: the peephole weights of an LSTM, [3 H, 1]; None if it has none.
        valid: which samples take part in a step, [T, 1, N], boolean; None if all do.
        flag: attribute ``input_forget`` of an LSTM, ``linear_before_reset`` of a GRU.
    """

    name: str
    backwards: bool
    functions: Sequence[Activation]
    x: ir.Value
    w: ir.Value
    r: ir.Value
    biases: tuple[ir.Value, ir.Value] | None
    h: ir.Value
    c: ir.Value | None
    peepholes: ir.Value | None
    valid: ir.Value | None
    flag: bool


@dataclass(frozen=True)
class Run:
    """What the forward loop gave.

    Attributes:
        y: the state after each step, [T, N, H], zeros where a sample takes no part; None if it was not asked for.
        h: the final state, [N, H].
        c: the final cell of an LSTM, [H, N].
        kept: what was stored of each step for the gradient, by name.
    """

    y: ir.Value | None
    h: ir.Value
    c: ir.Value | None
    kept: dict[str, ir.Value]


@dataclass(frozen=True)
class Gradient:
    """What the loop back through time gave.

    Attributes:
        inputs: gradients of the parts of ``x w^T + bias``, by rows of w, [T, N, rows of w] each.
        states: the same of what the recurrent weights are multiplied with: pairs of the gradient of a product, [T, N,
            rows of r], and the other factor, [T, N, H].
        h: gradient of the initial state, [H, N].
        c: gradient of the initial cell, [H, N].
        peepholes: gradient of the peephole weights, [3 H].
        sums: what the first ones are summed over the batch, [T, rows]; none if the node has no biases.
    """

    inputs: Sequence[ir.Value]
    states: Sequence[tuple[ir.Value, ir.Value]]
    h: ir.Value
    c: ir.Value | None = None
    peepholes: ir.Value | None = None
    sums: Mapping[ir.Value, ir.Value] = field(default_factory=dict)


@dataclass(frozen=True)
class Upstream:
    """Gradients that reach one direction.

    Attributes:
        y: of the states after each step, [T, N, H]; None if there is none.
        h: of the final state, [H, N].
        c: of the final cell of an LSTM, [H, N].
    """

    y: ir.Value | None
    h: ir.Value
    c: ir.Value | None


@dataclass(frozen=True)
class Cell:
    """A kind of recurrent cell.

    Attributes:
        gates: the number of gates.
        activations: the default activations of a direction.
        flag: the attribute that stands in :attr:`Direction.flag`, empty if there is none.
        forward: emits the forward loop; its last argument names what to keep: some of ``y``, ``states`` (those before
            each step) and ``gates``.
        backward: emits the loop back through time. It needs the states; gates that were not kept are recomputed.
    """

    gates: int
    activations: Sequence[str]
    flag: str
    forward: Callable[[Builder, Direction, frozenset[str]], Run]
    backward: Callable[[Builder, Direction, Run, Upstream], Gradient]


@dataclass
class Operands:
    """The inputs of a recurrent node in the form of :class:`Direction`.

    Attributes:
        directions: one or two.
        nonempty: [N], whether a sample has any step; None if all have.
        batch_first: whether the attribute ``layout`` is 1.
    """

    directions: list[Direction] = field(default_factory=list)
    nonempty: ir.Value | None = None
    batch_first: bool = False


def operands_of(op: Builder, node: ir.Node, cell: Cell) -> Operands:
    """Emit what it takes to bring a recurrent node's inputs into one form.

    Raises:
        NoGradientError: its activations are unknown, or it clips to nothing.
        ModelError: its input or weights do not have three axes.
    """
    batch_first = attr_int(node, "layout", 0) == 1
    clip = attr_float(node, "clip", math.inf)
    if clip <= 0:  # onnxruntime runs an RNN so, in which nothing is left to train
        raise NoGradientError(f"its clip is {clip:g}, which is not positive; leave it out")
    x, w = required_input(node, 0), required_input(node, 1)
    if any(len(shape_of(value)) != 3 for value in (x, w, required_input(node, 2))):
        raise ModelError(
            f"{node.op_type} '{node.name}' reads an input or weights that do not have three axes", "export it again"
        )
    count, rows, _ = shape_of(w)
    hidden = rows // cell.gates
    functions = activations_of(node, cell.activations, count)
    if batch_first:
        x = op.transpose(x, (1, 0, 2))
    steps, batch, _ = shape_of(x)

    def split(index: int, moved: bool = False) -> list[ir.Value | None]:
        value = input_of(node, index)
        if value is None:
            return [None] * count
        if moved and batch_first:
            value = op.transpose(value, (1, 0, 2))
        rest = shape_of(value)[1:]
        parts = [value] if count == 1 else op.Split(value, axis=0, num_outputs=count, _outputs=count)
        return [op.reshape(part, rest) for part in parts]

    valid, nonempty = _masks(op, input_of(node, 4), steps)
    fields = zip(split(1), split(2), split(3), split(5, True), split(6, True), split(7), functions, strict=True)
    found = Operands(nonempty=nonempty, batch_first=batch_first)
    for k, (w_k, r_k, b_k, h_k, c_k, p_k, f_k) in enumerate(fields):
        assert w_k is not None
        assert r_k is not None
        # onnxruntime clips what goes into the gates, and not the cell on its way into the output of an LSTM.
        clipped = [replace(f, clip=clip if math.isfinite(clip) else None) if i < 2 else f for i, f in enumerate(f_k)]
        biases = None
        if b_k is not None:
            first, second = op.Split(b_k, axis=0, num_outputs=2, _outputs=2)
            biases = first, second
        backwards = k == 1 or attr_str(node, "direction", "forward") == "reverse"
        found.directions.append(
            Direction(
                name=f"{node.name}/{'reverse' if backwards else 'forward'}",
                backwards=backwards,
                functions=clipped,
                x=x,
                w=w_k,
                r=r_k,
                biases=biases,
                h=h_k if h_k is not None else op.zeros((batch, hidden), x),
                c=_cell_state(op, c_k, (hidden, batch), x) if node.op_type == "LSTM" else None,
                peepholes=None if p_k is None else op.reshape(p_k, (3 * hidden, 1)),
                valid=valid,
                flag=bool(cell.flag) and attr_int(node, cell.flag, 0) != 0,
            )
        )
    return found


def _cell_state(op: Builder, given: ir.Value | None, shape: tuple[int, int], x: ir.Value) -> ir.Value:
    return op.zeros(shape, x) if given is None else op.transpose(given, (1, 0))


def _masks(op: Builder, lengths: ir.Value | None, steps: int) -> tuple[ir.Value | None, ir.Value | None]:
    if lengths is None:
        return None, None
    batch = shape_of(lengths)[0]
    times = np.arange(steps, dtype=np.int32).reshape(steps, 1, 1)
    return op.Less(times, op.reshape(lengths, (1, batch))), op.Greater(lengths, np.zeros((), np.int32))

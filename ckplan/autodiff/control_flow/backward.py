"""What a backward step of a recurrence consists of."""

from __future__ import annotations

from dataclasses import dataclass, field

import onnx_ir as ir

from ckplan.autodiff.control_flow.deferred import Deferred
from ckplan.autodiff.control_flow.recurrence import Track


@dataclass(frozen=True)
class Carried:
    """A value that goes from step to step.

    Attributes:
        initial: what it is before the first backward step, outside the body.
        before: what it is when a step begins: an input of the body.
        after: what it is when a step ends.
        slot: of which value it is the gradient in the end: an index into the node's inputs with the captured values
            behind them; None for what is carried for another reason.
    """

    initial: ir.Value
    before: ir.Value
    after: ir.Value
    slot: int | None


@dataclass(frozen=True)
class Read:
    """A sequence that is read row by row; the track is seen from the forward pass."""

    inside: ir.Value
    outer: ir.Value
    track: Track


@dataclass(frozen=True)
class Made:
    """A sequence of gradients that is made row by row.

    Attributes:
        inside: the row.
        track: how it runs, seen from the forward pass.
        slot: of which value it is the gradient: an index into the node's inputs with the captured values behind them.
        deferred: what the gradient of the value in ``slot`` is computed from outside, together with this sequence; None
            where the sequence is that gradient.
        operands: the operand of all steps, if something is deferred.
    """

    inside: ir.Value
    track: Track
    slot: int
    deferred: Deferred | None = None
    operands: ir.Value | None = None


@dataclass
class BackwardStep:
    """A backward body; whoever emits the node around it sets its inputs and outputs.

    Attributes:
        graph: its nodes.
        carried: values that go from step to step.
        read: sequences that are read.
        made: sequences that are made.
        clock: the number of the forward step, if the body reads it.
    """

    graph: ir.Graph
    carried: list[Carried] = field(default_factory=list)
    read: list[Read] = field(default_factory=list)
    made: list[Made] = field(default_factory=list)
    clock: ir.Value | None = None

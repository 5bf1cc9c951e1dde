"""What control flow asks of the allocator, tensor by tensor, while it runs its bodies.

The kernels' order (onnxruntime 1.31, ``core/providers/cpu/controlflow``): If and Scan ask for their outputs before they
run a body, which writes into them (``AllocateOutputTensors``). In a Loop each step makes its outputs anew, those of the
step before last are freed when the next step begins (``SaveOutputsAndUpdateFeeds``), rows are kept to the end, and the
node's own outputs come last.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ckplan.planner.arena.allocations import INNER_NODE, Allocations, Demand
from ckplan.planner.problem import Freed, Mark, Piece

NUMBER, CONDITION = 8, 1
"""Bytes of the number of a Loop's step and of a condition."""


@dataclass(frozen=True, slots=True)
class Body:
    """What a body asks for.

    Attributes:
        asked: in a run of it.
        block: bytes of the block of its later runs.
        rows: those of the buffers that a Loop keeps to its end.
    """

    asked: Allocations
    block: int
    rows: frozenset[int] = frozenset()


NOTHING = Body(Allocations((), ()), 0)
"""A body without nodes."""


class _Sequence:
    """Pieces as they are asked for and freed."""

    def __init__(self) -> None:
        self.pieces: list[Piece] = []

    def take(self, size: int) -> int:
        """Ask for a tensor; the place among the pieces tells it from others."""
        self.pieces.append(size)
        return len(self.pieces) - 1

    def free(self, places: Iterable[int]) -> None:
        """Free tensors."""
        for place in places:
            self.pieces.append(Freed(len(self.pieces) - place))

    def run(self, body: Body, *, again: bool, outputs: bool = False) -> dict[int, int]:
        """Run a body, again with a block for its tensors; with outputs if it makes them itself: return their places."""
        size, places = body.asked.size, dict[int, int]()
        block = [self.take(body.block)] if again and body.block else []
        for step in body.asked.steps:
            own = () if again else step.tensors
            self._node(step.again if again else step, size, (*own, *step.outputs) if outputs else own, places)
            self.free(places.pop(buffer) for buffer in step.freed if buffer in places)
        self.free(block)
        return places

    def _node(self, step: Demand, size: Sequence[int], own: Iterable[int], places: dict[int, int]) -> None:
        for key, wanted in step.asks(size, own):
            if wanted:
                places[key] = self.take(wanted)
            elif key == INNER_NODE:
                self.pieces.append(Mark.INNER_NODE)
            else:
                self.free([places.pop(key)])
        self.pieces.append(Mark.INNER_NODE)


def pieces_of_if(body: Body, *, again: bool) -> tuple[Piece, ...]:
    """What an If asks for that takes the branch of a body.

    Args:
        body: the branch.
        again: whether the body has run before.
    """
    asks = _Sequence()
    asks.pieces.append(Mark.OUTPUTS)
    asks.run(body, again=again)
    return tuple(asks.pieces)


def pieces_of_scan(
    body: Body, *, turned: Iterable[int], rows: Iterable[int], states: Iterable[int], several: bool, again: bool
) -> tuple[Piece, ...]:
    """What a Scan asks for.

    Args:
        body: its body.
        turned: bytes of the copies of sequences that do not run along their first axis.
        rows: bytes of the tensors in which outputs are gathered that do not.
        states: bytes of the buffers that it keeps states in.
        several: whether it goes more than one step.
        again: whether the body has run before.
    """
    asks = _Sequence()
    asks.pieces += [*filter(None, turned), Mark.OUTPUTS, *filter(None, rows), *filter(None, states)]
    if not again:
        asks.run(body, again=False)
    if again or several:
        asks.run(body, again=True)
    asks.pieces.append(Mark.LATE_OUTPUTS)
    return tuple(asks.pieces)


def pieces_of_loop(body: Body, *, trips: int, again: bool) -> tuple[Piece, ...]:
    """What a Loop asks for.

    Args:
        body: its body.
        trips: steps that it goes.
        again: whether the body has run before.
    """
    asks = _Sequence()
    asks.pieces += [NUMBER, CONDITION]
    older, newer = list[int](), list[int]()
    for step in range(min(trips, 3)):
        if step == 2:  # it stands for the last one; of those between the second and it there are the rows
            asks.pieces += [body.asked.size[row] for row in body.rows if body.asked.size[row]] * (trips - 3)
        asks.free(older)
        made = asks.run(body, again=again or step > 0, outputs=True)
        older, newer = newer, [place for buffer, place in made.items() if buffer not in body.rows]
    asks.pieces.append(Mark.LATE_OUTPUTS)
    return tuple(asks.pieces)

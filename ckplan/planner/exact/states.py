"""The optimum of a tiny problem, by a uniform-cost search over the states of a schedule.

A state is the set of ops that have run and the buffers that are alive with the tensors whose latest copies they hold.
The moves are to run an op that has what it reads; the cost of a move is that of the op if it ran before. What is
alive stays until there is no room for it, so that a move drops a minimal set of buffers, and only then; a kernel
overwrites an input in place where there is no room for both. A schedule frees a buffer after its last reader, which is
never later, so that its peak is at most what the search counts.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from math import lcm
from typing import Final

from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Kind, Problem

TINY: Final = 14
"""Most ops of a problem for which the search is certain to end soon."""
_STATES = 50_000
"""How many states are expanded at most."""

_Buffers = tuple[tuple[int, int], ...]  # for each buffer the set of its tensors as bits, and its bytes
_State = tuple[int, int, _Buffers]  # bits of ops that ran, bits of tensors in memory that is not counted, buffers


@dataclass(frozen=True, slots=True)
class _Output:
    tensor: int
    bytes: int
    returned: bool
    source: int | None  # the tensor that it is a view of
    overwrites: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class _Move:
    reads: int
    makes: int
    outputs: tuple[_Output, ...]
    workspace: int
    price: int  # of running again
    again: bool


class _Search:
    def __init__(self, problem: Problem, budget: int) -> None:
        self.budget = budget
        self.moves = [_move(problem, index) for index in range(len(problem.ops))]
        self.all = (1 << len(self.moves)) - 1
        self.readers = [sum(1 << index for index in readers) for readers in problem.consumers]
        self.useful_after: dict[int, int] = {}

    def run(self, most: int | None) -> list[int] | None:
        start: _State = (0, 0, ())
        queue: list[tuple[int, int, int, _State]] = [(0, 0, 0, start)]
        price = {start: 0}
        origin: dict[_State, tuple[_State, int]] = {}
        closed: set[_State] = set()
        count = 0
        while queue:
            cost, _, _, state = heapq.heappop(queue)
            if state in closed:
                continue
            closed.add(state)
            if state[0] == self.all:
                return _path(origin, state)
            if len(closed) > _STATES:
                raise TooLargeError
            for index, after in self._successors(state):
                total = cost + (self.moves[index].price if state[0] >> index & 1 else 0)
                if (most is None or total <= most) and total < price.get(after, total + 1):
                    price[after] = total
                    origin[after] = state, index
                    count += 1
                    heapq.heappush(queue, (total, -after[0].bit_count(), count, after))
        return None

    def _useful(self, done: int) -> int:
        """Bits of the tensors that an op may still read."""
        if done not in self.useful_after:
            useful = runs = 0
            for index in range(len(self.moves) - 1, -1, -1):
                move = self.moves[index]
                for output in move.outputs:
                    if self.readers[output.tensor] & runs:
                        useful |= 1 << output.tensor
                if not done >> index & 1 or (move.again and move.makes & useful):
                    runs |= 1 << index
            self.useful_after[done] = useful
        return self.useful_after[done]

    def _successors(self, state: _State) -> Iterator[tuple[int, _State]]:
        done, free, buffers = state
        alive = free
        for held, _ in buffers:
            alive |= held
        for index, move in enumerate(self.moves):
            if move.reads & ~alive:
                continue
            if done >> index & 1 and (not move.again or not move.makes & self._useful(done) & ~alive):
                continue
            after_done = done | 1 << index
            useful = self._useful(after_done)
            kept = tuple((held & ~move.makes, size) for held, size in buffers if held & ~move.makes)
            for after_free, after in self._results(done >> index & 1 == 0, move, free & ~move.makes, kept):
                left = tuple(sorted((held & useful, size) for held, size in after if held & useful))
                yield index, (after_done, after_free & useful, left)

    def _results(self, first: bool, move: _Move, free: int, buffers: _Buffers) -> Iterator[tuple[int, _Buffers]]:
        """What may be alive after an op: without a loss if there is room, else in each of the minimal ways."""
        for overwritten in _overwrites(move, first, buffers):
            room = self.budget - move.workspace - sum(size for _, size in buffers)
            room -= sum(
                output.bytes
                for output in move.outputs
                if output.source is None and output.tensor not in overwritten and not (output.returned and first)
            )
            droppable = [position for position, (held, _) in enumerate(buffers) if not held & move.reads]
            for dropped in _minimal([(buffers[p][1], p) for p in droppable], -room):
                yield _after(move, first, free, buffers, overwritten, dropped)
            if room >= 0:
                return


class TooLargeError(Exception):
    """The search came to more states than it may expand."""


def _move(problem: Problem, index: int) -> _Move:
    op, tensors = problem.ops[index], problem.tensors
    scale = lcm(*(Fraction(other.cost).denominator for other in problem.ops))
    outputs = tuple(
        _Output(
            tensor,
            tensors[tensor].bytes,
            tensors[tensor].kind is Kind.OUTPUT,
            op.views.get(tensor),
            ()
            if tensor in op.views
            else tuple(
                source
                for source in op.inplace.get(tensor, ())
                if problem.producer[source] >= 0
                and tensors[source].bytes == tensors[tensor].bytes
                and op.inputs.count(source) == 1
            ),
        )
        for tensor in op.outputs
    )
    return _Move(
        sum(1 << tensor for tensor in set(op.inputs) if problem.producer[tensor] >= 0),
        sum(1 << tensor for tensor in op.outputs),
        outputs,
        problem.workspaces[index],
        int(Fraction(op.cost) * scale),
        op.repeatable,
    )


def _overwrites(move: _Move, first: bool, buffers: _Buffers) -> Iterator[dict[int, int]]:
    """Which outputs take the place of which buffers, nothing first."""
    ways: list[dict[int, int]] = [{}]
    for output in move.outputs:
        if output.returned and first:
            continue
        for source in output.overwrites:
            for position, (held, _) in enumerate(buffers):
                # Other tensors in the buffer that the op reads as well have uses left.
                if held >> source & 1 and (held & move.reads).bit_count() == 1:
                    ways += [{**way, output.tensor: position} for way in ways if position not in way.values()]
    yield from ways


def _minimal(items: list[tuple[int, int]], need: int) -> Iterator[tuple[int, ...]]:
    """The sets of buffers that free enough and of which none can be left out."""
    items = sorted(items, reverse=True)

    def extend(start: int, chosen: tuple[int, ...], missing: int) -> Iterator[tuple[int, ...]]:
        if missing <= 0:
            yield chosen
            return
        # Largest first: the last one taken is the least, and without it too little is freed; so it is minimal.
        for number in range(start, len(items)):
            if items[number][0]:
                yield from extend(number + 1, (*chosen, items[number][1]), missing - items[number][0])

    return extend(0, (), need)


def _after(
    move: _Move, first: bool, free: int, buffers: _Buffers, overwritten: dict[int, int], dropped: tuple[int, ...]
) -> tuple[int, _Buffers]:
    places = [held if position not in dropped else 0 for position, (held, _) in enumerate(buffers)]
    sizes = [size for _, size in buffers]
    for output in move.outputs:
        bit = 1 << output.tensor
        if output.returned and first:
            free |= bit
        elif output.source is not None:
            source = 1 << output.source
            position = next((p for p, held in enumerate(places) if held & source), None)
            if position is None:
                free |= bit
            else:
                places[position] |= bit
        elif output.tensor in overwritten:
            places[overwritten[output.tensor]] = bit
        else:
            places.append(bit)
            sizes.append(output.bytes)
    return free, tuple(zip(places, sizes, strict=True))


def _path(origin: dict[_State, tuple[_State, int]], state: _State) -> list[int]:
    schedule = []
    while state in origin:
        state, index = origin[state]
        schedule.append(index)
    return schedule[::-1]


def optimum(problem: Problem, budget: int) -> list[int] | None:
    """The cheapest of all schedules within a budget; None if there is none.

    All orders and any number of recomputations of forward ops. Exponential in the number of ops.

    Args:
        problem: the ops and tensors.
        budget: bytes of activations.

    Raises:
        TooLargeError: the problem is too large for a search over states.
    """
    schedule = _Search(problem, budget).run(None)
    if schedule is not None and peak_of(problem, schedule) > budget:
        raise TooLargeError  # a kernel overwrites a larger buffer in place, which the search does not follow
    return schedule


def optimum_of_lowest_peak(problem: Problem, budget: int) -> list[int] | None:
    """Of the cheapest schedules within a budget one of the lowest peak; None if no schedule is within the budget.

    With this choice the peak is monotone in the budget: a larger budget allows all that a smaller one does, so either
    both have the same cost, and then the same peak, or the cheaper schedule did not fit into the smaller one.

    Raises:
        TooLargeError: the problem is too large for a search over states.
    """
    if len(problem.ops) > TINY:
        raise TooLargeError
    best = optimum(problem, budget)
    if best is None:
        return None
    price = _recomputed(problem, best)
    while (peak := peak_of(problem, best)) > 0:
        search = _Search(problem, peak - 1)
        lower = search.run(price)
        if lower is None:
            break
        if peak_of(problem, lower) >= peak:
            raise TooLargeError
        best, price = lower, _recomputed(problem, lower)
    return best


def _recomputed(problem: Problem, schedule: list[int]) -> int:
    """What the repeats of a schedule cost, in the integers of the search."""
    moves = [_move(problem, index).price for index in range(len(problem.ops))]
    return sum(moves[index] for index in schedule) - sum(moves)

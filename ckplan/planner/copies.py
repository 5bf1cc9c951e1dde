"""What a schedule makes of tensors, as arrays: each copy, the step that makes it, and the steps that read it.

Searching strategies ask for the peak of thousands of schedules, and for the repeats that serve nothing. Both follow
from who reads which copy, which a sort and a search find out without going through the schedule step by step.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import numpy as np
import numpy.typing as npt

from ckplan.planner.problem import Kind, Problem

Integers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Rows:
    """Lists of numbers, one for each op, behind each other.

    Attributes:
        start: where the list of each op begins.
        count: how long it is.
        values: the lists.
    """

    start: Integers
    count: Integers
    values: Integers

    @cached_property
    def single(self) -> bool:
        """Whether each list has one number, as in most graphs those of what ops make."""
        return bool((self.count == 1).all())

    @classmethod
    def of(cls, lists: Sequence[Sequence[int]]) -> Rows:
        """The given lists, one for each op."""
        count = np.array([len(entries) for entries in lists], np.int64)
        values = np.array([entry for entries in lists for entry in entries], np.int64)
        return cls(np.cumsum(count) - count, count, values)

    def of_op(self, index: int) -> list[int]:
        """The list of one op."""
        start = self.start[index]
        found: list[int] = self.values[start : start + self.count[index]].tolist()
        return found

    def along(self, schedule: Integers) -> tuple[Integers, Integers, Integers]:
        """The lists of the ops of a schedule: for each entry its step and its value; and where each step's begin."""
        if self.single:
            steps = np.arange(len(schedule))
            return steps, self.values[schedule], steps
        count = self.count[schedule]
        first = np.cumsum(count) - count
        step = np.repeat(np.arange(len(schedule)), count)
        place = np.arange(len(step)) + (self.start[schedule] - first)[step]
        return step, self.values[place], first


class _Numbers:
    """A problem as arrays."""

    def __init__(self, problem: Problem) -> None:
        ops, tensors, producer = problem.ops, problem.tensors, problem.producer
        read = [[tensor for tensor in op.inputs if producer[tensor] >= 0] for op in ops]
        self.reads = Rows.of(read)
        self.makes = Rows.of([op.outputs for op in ops])
        viewed: list[list[int]] = []
        overwritten: list[list[int]] = []
        overwriting: list[list[int]] = []
        for op, row in zip(ops, read, strict=True):
            if not op.views and not op.inplace:
                viewed.append([-2] * len(op.outputs))
                overwriting.append([])
                overwritten.append([])
                continue
            place = {tensor: row.index(tensor) for tensor in row}
            viewed.append([place.get(op.views[t], -1) if t in op.views else -2 for t in op.outputs])
            pairs = [
                (number, place[source])
                for number, tensor in enumerate(op.outputs)
                if tensor not in op.views
                for source in op.inplace.get(tensor, ())
                if source in place and tensors[source].bytes == tensors[tensor].bytes
            ]
            overwriting.append([number for number, _ in pairs])
            overwritten.append([source for _, source in pairs])
        self.viewed = Rows.of(viewed)
        """For each output the place among what is read of what it is a view of: -1 resident memory, -2 no view."""
        self.overwriting = Rows.of(overwriting)
        """The places among the outputs of those that may take the memory of what is read, in order of preference."""
        self.overwritten = Rows.of(overwritten)
        """And the place among what is read of each of these."""
        self.producer = np.array(producer, np.int64)
        self.bytes = np.array([tensor.bytes for tensor in tensors], np.int64)
        self.returned = np.array([tensor.kind is Kind.OUTPUT for tensor in tensors], bool)
        self.workspace = np.array(problem.workspaces, np.int64)
        self.views = bool(np.any(self.viewed.values > -2))


@lru_cache(maxsize=8)
def _numbers(problem: Problem) -> _Numbers:
    return _Numbers(problem)


class Copies:
    """The copies of tensors that a valid schedule makes; each has a number, in the order in which they are made.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; every op reads only what was made before.
    """

    def __init__(self, problem: Problem, schedule: Sequence[int]) -> None:
        numbers = self._numbers = _numbers(problem)
        self.ops: Integers = np.fromiter(schedule, np.int64, len(schedule))
        """The op of each step."""
        self.made, self.tensor, self._first_copy = numbers.makes.along(self.ops)
        self.reader, tensors, self._first_read = numbers.reads.along(self.ops)
        self.read: Integers = self._copies_read(tensors)
        """The copy that each read is of; `reader` has the steps, in order."""

    @classmethod
    @lru_cache(maxsize=4)
    def of(cls, problem: Problem, schedule: tuple[int, ...]) -> Copies:
        """The copies that a schedule makes, kept for who asks several things about it."""
        return cls(problem, schedule)

    def _copies_read(self, tensors: Integers) -> Integers:
        """Of each tensor that is read the copy that was made last; a search, where there are several to choose from."""
        copies = np.bincount(self.tensor, minlength=len(self.bytes))
        last = np.zeros(len(copies), np.int64)
        last[self.tensor] = np.arange(len(self.tensor))
        found: Integers = last[tensors]
        several = np.flatnonzero(copies[tensors] > 1)
        if len(several):
            span = len(self.ops) + 1
            among = np.flatnonzero(copies[self.tensor] > 1)
            keys = self.tensor[among] * span + self.made[among]
            order = np.argsort(keys)
            wanted = tensors[several] * span + self.reader[several]
            found[several] = among[order[np.searchsorted(keys[order], wanted) - 1]]
        return found

    @cached_property
    def again(self) -> npt.NDArray[np.bool_]:
        """For each step whether its op ran before."""
        again: npt.NDArray[np.bool_] = self._first[self.ops] != np.arange(len(self.ops))
        return again

    @cached_property
    def _initial(self) -> npt.NDArray[np.bool_]:
        """For each copy whether it is the first of its tensor."""
        initial: npt.NDArray[np.bool_] = ~self.again[self.made]
        return initial

    @cached_property
    def _first(self) -> Integers:
        """For each op the step of its first run, -1 if it does not run."""
        first = np.full(len(self._numbers.workspace), -1)
        first[self.ops[::-1]] = np.arange(len(self.ops))[::-1]
        return first

    def is_valid(self) -> bool:
        """Whether each op runs, and for the first time after what makes what it reads."""
        first, rows = self._first, self._numbers.reads
        readers = np.repeat(np.arange(len(first)), rows.count)
        makers = self._numbers.producer[rows.values]
        return bool((first >= 0).all() and (first[makers] < first[readers]).all())

    def returned(self) -> Integers:
        """Bytes of outputs of the file that were made until each step ends."""
        size = np.where(self._initial & self._numbers.returned[self.tensor], self.bytes[self.tensor], 0)
        found: Integers = np.cumsum(np.bincount(self.made, size, len(self.ops))).astype(np.int64)
        return found

    def needed(self) -> npt.NDArray[np.bool_]:
        """For each step whether it is a first run or makes something that a needed step reads."""
        maker = self.made[self.read]
        repeated = self.again[maker]
        reader, maker = self.reader[repeated], maker[repeated]
        readers = np.bincount(maker, minlength=len(self.ops))
        needed = ~self.again | (readers > 0)
        dead = np.flatnonzero(~needed).tolist()
        if dead:
            left, makers = readers.tolist(), maker.tolist()
            begin = np.searchsorted(reader, np.arange(len(self.ops) + 1)).tolist()
            for step in dead:  # grows, as nothing else may read what one of them reads
                for made in makers[begin[step] : begin[step + 1]]:
                    left[made] -= 1
                    if not left[made]:
                        dead.append(made)
            needed[dead] = False
        return needed

    def live(self) -> Integers:
        """Bytes of activations that are alive while each step runs, workspace included."""
        numbers, steps, buffer = self._numbers, len(self.ops), self.buffers
        size = np.where(buffer[:-1] == np.arange(len(self.made)), numbers.bytes[self.tensor], 0)
        of = buffer[self.read]
        last = self.last
        freed = last + 1
        self._overwrite(buffer, of, last, size, freed)
        changes = np.bincount(self.made, size, steps + 2) - np.bincount(freed, size, steps + 2)
        live: Integers = np.cumsum(changes[:steps]).astype(np.int64) + numbers.workspace[self.ops]
        return live

    @cached_property
    def last(self) -> Integers:
        """For each buffer the last step that reads it, else the one that makes it."""
        of = self.buffers[self.read]
        held = of >= 0
        last = self.made.copy()
        last[of[held]] = self.reader[held]  # of several reads the last one counts
        return last

    @property
    def bytes(self) -> Integers:
        """Bytes of each tensor."""
        return self._numbers.bytes

    @cached_property
    def buffers(self) -> Integers:
        """For each copy the one for which its memory was taken, -1 for what is resident or returned; -1 at the end."""
        numbers = self._numbers
        count = len(self.made)
        buffer = np.append(np.arange(count), -1)
        if numbers.views:
            _, place, _ = numbers.viewed.along(self.ops)
            view = np.flatnonzero(place >= 0)
            buffer[view] = self.read[self._first_read[self.made[view]] + place[view]]
            buffer[:-1][place == -1] = -1
        buffer[:-1][self._initial & numbers.returned[self.tensor]] = -1
        while numbers.views:
            further = buffer[buffer]
            if np.array_equal(further, buffer):
                break
            buffer = further
        return buffer

    def _overwrite(self, buffer: Integers, of: Integers, last: Integers, size: Integers, freed: Integers) -> None:
        """Let kernels overwrite what nothing else reads any more: it is freed before they allocate."""
        numbers = self._numbers
        if not len(numbers.overwriting.values):
            return
        step, output, first = numbers.overwriting.along(self.ops)
        if not len(step):
            return
        _, source, _ = numbers.overwritten.along(self.ops)
        copy, target = self._first_copy[step] + output, of[self._first_read[step] + source]
        at_last = np.flatnonzero((of >= 0) & (self.reader == last[of]))
        reads_at_last = np.bincount(of[at_last], minlength=len(last))
        possible = (buffer[copy] == copy) & (target >= 0) & (last[target] == step) & (reads_at_last[target] == 1)
        rank = np.arange(len(step)) - first[step]
        is_read = np.bincount(self.read, minlength=len(last)) > 0
        placed, taken = np.zeros(len(last), bool), np.zeros(len(last), bool)
        sharing = np.full(len(last), -1)
        for turn in range(int(rank.max()) + 1):
            now = possible & (rank == turn)
            now[now] = ~placed[copy[now]] & ~taken[target[now]]
            made, over = copy[now], target[now]
            # What nothing reads leaves the place to the next output of the same kernel.
            size[sharing[over][sharing[over] >= 0]] = 0
            sharing[over], placed[made], taken[over] = made, True, is_read[made]
            freed[over] = step[now]

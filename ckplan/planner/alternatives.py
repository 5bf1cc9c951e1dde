"""What a schedule does with one tensor, and the schedule that does the opposite."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ckplan.planner.phases import without_dead_repeats
from ckplan.planner.problem import Problem


@dataclass(frozen=True, slots=True)
class Copy:
    """The memory of a tensor from the step that makes it to the last step that reads it or a view of it.

    Attributes:
        made: the step that makes it.
        reads: the steps that read it, in order.
    """

    made: int
    reads: tuple[int, ...]

    @property
    def last(self) -> int:
        """The last step at which it is needed."""
        return max((self.made, *self.reads))


def copies_of(problem: Problem, schedule: Sequence[int], tensor: int) -> list[Copy]:
    """Each copy of a tensor's memory that a schedule makes; views of it count as it.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order.
        tensor: a tensor that an op makes.
    """
    base = problem.view_root[tensor]
    shares = {other for other, root in enumerate(problem.view_root) if root == base}
    made: list[int] = []
    reads: list[list[int]] = []
    current: dict[int, int] = {}  # the copy that a tensor stands for
    for step, index in enumerate(schedule):
        op = problem.ops[index]
        read = {current[source] for source in op.inputs if source in shares and source in current}
        for copy in read:
            reads[copy].append(step)
        for output in op.outputs:
            if output == base:
                current[output] = len(made)
                made.append(step)
                reads.append([])
            elif output in shares:
                current[output] = current[op.views[output]]
    return [Copy(start, tuple(steps)) for start, steps in zip(made, reads, strict=True)]


def recomputed_with(problem: Problem, schedule: Sequence[int], index: int) -> list[int]:
    """The ops that are run again so that an op can be, itself included, in forward order; empty if it is not.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order.
        index: an op; its last repeat counts.
    """
    runs = [0] * len(problem.ops)
    needs: dict[tuple[int, int], list[tuple[int, int]]] = {}
    for entry in schedule:
        runs[entry] += 1
        makers = {problem.producer[source] for source in problem.ops[entry].inputs} - {-1}
        needs[entry, runs[entry]] = [(maker, runs[maker]) for maker in makers if runs[maker] > 1]
    if runs[index] < 2:
        return []
    found = {(index, runs[index])}
    stack = list(found)
    while stack:
        for need in needs[stack.pop()]:
            if need not in found:
                found.add(need)
                stack.append(need)
    return sorted({entry for entry, _ in found})


def keeping_instead(problem: Problem, schedule: Sequence[int], index: int) -> list[int]:
    """The schedule in which an op is not run again, nor anything that was run again for it alone."""
    seen = False
    left = []
    for entry in schedule:
        if entry == index and seen:
            continue
        seen = seen or entry == index
        left.append(entry)
    return without_dead_repeats(problem, left)


def recomputing_instead(problem: Problem, schedule: Sequence[int], index: int) -> tuple[list[int], list[int]] | None:
    """The schedule in which an op runs again before what it makes is first read in the backward pass.

    What is gone by then of what it needs is recomputed, too, as far as it may be; what may not is held for it.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order.
        index: a forward op that may be run again.

    Returns:
        The schedule, and the ops that were added, the given one included. None if no late step reads what it makes, so
        that running it again would serve nothing.
    """
    ops, root = problem.ops, problem.view_root
    bases = {root[output] for output in ops[index].outputs}
    seen: set[int] = set()
    late = None
    for step, entry in enumerate(schedule):
        again = entry in seen
        seen.add(entry)
        if (ops[entry].backward or again) and any(root[source] in bases for source in ops[entry].inputs):
            late = step
            break
    if late is None:
        return None
    needed = _needed_from(problem, schedule, late)
    added: list[int] = []
    done: set[int] = set()
    stack = [(index, False)]
    # Views that are read later have to be of the new copy.
    views = [
        reader
        for reader in problem.forward
        if reader in seen
        and reader != index
        and ops[reader].recomputable
        and any(root[output] in bases for output in ops[reader].outputs)
        and any(output in needed for output in ops[reader].outputs)
    ]
    while stack:
        current, ready = stack.pop()
        if ready:
            added.append(current)
        elif current not in done:
            done.add(current)
            stack.append((current, True))
            for source in ops[current].inputs:
                maker = problem.producer[source]
                gone = maker >= 0 and source not in needed
                if gone and ops[maker].repeatable:
                    stack.append((maker, False))
    added += [view for view in views if view not in done]
    return [*schedule[:late], *added, *schedule[late:]], added


def _needed_from(problem: Problem, schedule: Sequence[int], start: int) -> set[int]:
    """The tensors that a schedule reads at a step or later before they are made anew, and what they are views of."""
    needed: set[int] = set()
    for entry in reversed(schedule[start:]):
        needed.difference_update(problem.ops[entry].outputs)
        needed.update(problem.ops[entry].inputs)
    return needed | {problem.view_root[tensor] for tensor in needed}

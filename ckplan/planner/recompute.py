"""From a choice of what to keep to a schedule: everything else is recomputed where it is read.

The forward pass runs as it is. In the backward pass, an activation that is neither kept nor alive is
recomputed right before its first reader, from what is kept, and then stays until its last reader. For a set
of kept tensors that cuts the forward pass into segments this is Chen et al.'s schedule (arXiv:1604.06174):
a segment is run again as a whole when the backward pass arrives at its end.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence

from ckplan.planner.problem import Problem


def kept_closure(problem: Problem, kept: Collection[int]) -> set[int]:
    """All tensors that are available in the backward pass when ``kept`` are held.

    That is: the given tensors with every view of the same memory, what cannot be recomputed, and what is
    resident or returned anyway.
    """
    root = problem.view_root
    held = {root[tensor] for tensor in kept} | problem.always_held
    return {tensor for tensor in range(len(problem.tensors)) if tensor in held or root[tensor] in held}


def recompute_schedule(problem: Problem, kept: Collection[int], order: Sequence[int] | None = None) -> list[int]:
    """The schedule that keeps ``kept`` and recomputes the rest.

    Args:
        problem: the ops and tensors.
        kept: ids of forward tensors to hold until the backward pass has read them.
        order: order of all ops without repeats; the problem's own by default.

    Returns:
        Op ids in execution order.
    """
    ops, producer = problem.ops, problem.producer
    available = kept_closure(problem, kept)
    schedule: list[int] = []
    for index in order if order is not None else range(len(ops)):
        op = ops[index]
        if op.backward:
            stack = [(tensor, False) for tensor in reversed(op.inputs)]
            while stack:
                tensor, ready = stack.pop()
                if tensor in available:
                    continue
                maker = producer[tensor]
                if ready:
                    schedule.append(maker)
                    available.update(ops[maker].outputs)
                elif not ops[maker].backward:
                    stack.append((tensor, True))
                    stack.extend((source, False) for source in reversed(ops[maker].inputs))
            available.update(op.outputs)
        schedule.append(index)
    return schedule


def with_views(problem: Problem, schedule: Sequence[int]) -> list[int]:
    """The schedule, with views made anew where they are read after what they are views of was made anew."""
    root, producer = problem.view_root, problem.producer
    if not any(op.views for op in problem.ops):
        return list(schedule)
    made = [0] * len(problem.tensors)
    stands_for = [-1] * len(problem.tensors)
    result: list[int] = []

    def run(index: int) -> None:
        for tensor in problem.ops[index].inputs:
            base = root[tensor]
            maker = producer[tensor]
            stale = tensor != base and maker >= 0 and stands_for[tensor] != made[base]
            if stale and problem.ops[maker].recomputable and not problem.ops[maker].backward:
                run(maker)
        result.append(index)
        for tensor in problem.ops[index].outputs:
            if root[tensor] == tensor:
                made[tensor] += 1
            stands_for[tensor] = made[root[tensor]]

    for index in schedule:
        run(index)
    return result

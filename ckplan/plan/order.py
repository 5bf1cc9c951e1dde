"""Orders without repeats: when each backward op runs.

A weight gradient that reads the last copy of an activation frees it; a sum that merges two partial gradients
frees one of them. Running such ops as soon as they can run is never worse locally, and costs no compute.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckplan.plan.problem import Kind, Problem
from ckplan.plan.simulate import simulate


def eager_order(problem: Problem) -> list[int]:
    """The natural order with every backward op that shrinks memory pulled forward to where it becomes ready.

    Greedy list scheduling; O(ops x ready ops). An op shrinks memory when the activations that it is the last reader
    of are at least twice as large as what it makes, outputs of the file included in neither: both are alive while it
    runs, so less would only move the peak.
    """
    ops, root = problem.ops, problem.view_root
    waiting = [sum(problem.producer[t] >= 0 for t in set(op.inputs)) for op in ops]
    readers = [set(readers) for readers in problem.consumers]
    left = [0] * len(problem.tensors)
    for op in ops:
        for tensor in set(op.inputs):
            left[root[tensor]] += 1
    done = [False] * len(ops)
    order: list[int] = []
    ready: set[int] = set()

    def growth(index: int) -> tuple[int, int]:
        op = ops[index]
        made = sum(
            problem.tensors[tensor].bytes
            for tensor in op.outputs
            if tensor not in op.views and problem.tensors[tensor].kind is Kind.ACTIVATION
        )
        freed = 0
        for base in {root[tensor] for tensor in op.inputs}:
            uses = sum(root[tensor] == base for tensor in set(op.inputs))
            if problem.tensors[base].kind is Kind.ACTIVATION and left[base] == uses:
                freed += problem.tensors[base].bytes
        return made - freed, made

    def run(index: int) -> None:
        done[index] = True
        order.append(index)
        ready.discard(index)
        for tensor in set(ops[index].inputs):
            left[root[tensor]] -= 1
        for tensor in ops[index].outputs:
            for reader in readers[tensor]:
                waiting[reader] -= 1
                if waiting[reader] == 0 and ops[reader].backward:
                    ready.add(reader)

    for index in range(len(ops)):
        while ops[index].backward and ready:
            best = min(ready, key=lambda candidate: (growth(candidate), candidate))
            change, made = growth(best)
            if change >= 0 or -change < made:
                break
            run(best)
        if not done[index]:
            run(index)
    return order


def best_order(problem: Problem) -> Sequence[int]:
    """The order without repeats that has the lower simulated peak: natural or eager."""
    natural = list(range(len(problem.ops)))
    eager = eager_order(problem)
    return min((natural, eager), key=lambda order: simulate(problem, order).peak_activations)

"""Lower bounds on the peak that no schedule can beat."""

from __future__ import annotations

from functools import lru_cache

from ckplan.planner.problem import Kind, Problem
from ckplan.units import format_bytes


def working_set(problem: Problem, index: int) -> int:
    """Bytes of activations that must be alive while one op runs: what it reads, makes and works in."""
    op, tensors, root = problem.ops[index], problem.tensors, problem.view_root
    read = {root[tensor] for tensor in op.inputs if tensors[root[tensor]].kind is Kind.ACTIVATION}
    total = sum(tensors[tensor].bytes for tensor in read) + problem.workspaces[index]
    overwritten: set[int] = set()
    for tensor in op.outputs:
        if tensors[tensor].kind is Kind.OUTPUT or tensor in op.views:
            continue
        for candidate in op.inplace.get(tensor, ()):
            base = root[candidate]
            if base in read and base not in overwritten and tensors[base].bytes == tensors[tensor].bytes:
                overwritten.add(base)
                break
        else:
            total += tensors[tensor].bytes
    return total


@lru_cache(maxsize=8)
def working_sets(problem: Problem) -> tuple[int, ...]:
    """The `working_set` of each op."""
    return tuple(working_set(problem, index) for index in range(len(problem.ops)))


@lru_cache(maxsize=8)
def lower_bound(problem: Problem) -> tuple[int, int]:
    """The largest working set of any op: ``(bytes of activations, op id)``.

    Any schedule runs every op at least once, so no peak of activations can be smaller.
    """
    bound, index = max(((own, -index) for index, own in enumerate(working_sets(problem))), default=(0, 0))
    return bound, -index


def holder_of_bound(problem: Problem) -> str:
    """What holds the bytes that no schedule can do without: the op, and the largest tensors that it reads and makes.

    Returns:
        A clause without its subject, which is the bytes.
    """
    op = problem.ops[lower_bound(problem)[1]]
    involved = {problem.view_root[tensor] for tensor in (*op.inputs, *op.outputs)}
    held = [tensor for tensor in involved if problem.tensors[tensor].kind is Kind.ACTIVATION]
    held.sort(key=lambda tensor: (-problem.tensors[tensor].bytes, tensor))
    named = ", ".join(f"'{problem.tensors[t].name}' {format_bytes(problem.tensors[t].bytes)}" for t in held[:3])
    beside = f", a workspace {format_bytes(op.workspace)}" if op.workspace else ""
    return f"'{op.name}' holds while it runs ({named}{beside})"

"""What a run of a file asks of onnxruntime's allocator."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import onnx_ir as ir

from ckplan import keys
from ckplan.model.files.metadata import told
from ckplan.planner.arena.allocations import Allocations, allocations
from ckplan.planner.problem import Op, Problem
from ckplan.runtime.executing.feeds import has_memory_pattern
from ckplan.runtime.problem_of import problem_of
from ckplan.runtime.sizes import shape_classes


def allocations_of(executed: ir.Model, model: ir.Model) -> Allocations:
    """What a file asks of the allocator, new values in place if it says so."""
    return asked_by(executed, model, model.metadata_props.get(keys.IN_PLACE) == "true", problem_of(executed))


def asked_by(executed: ir.Model, model: ir.Model, in_place: bool, problem: Problem) -> Allocations:
    """What a file asks of the allocator, which has no part in new values that are in place."""
    shapes, pattern = shape_classes(executed.graph, problem), has_memory_pattern(executed.graph)
    asked = allocations(problem, range(len(problem.ops)), shapes, pattern=pattern)
    return _without_updates(asked, problem.ops, problem, model) if in_place else asked


def asked_by_plan(problem: Problem, schedule: Sequence[int], model: ir.Model) -> Allocations:
    """What a file of a plan is expected to ask of the allocator, before there is one; see `allocations_of`.

    Args:
        problem: what was planned.
        schedule: the plan's.
        model: the file without a plan.
    """
    asked = allocations(problem, schedule, pattern=has_memory_pattern(model.graph))
    in_place = model.metadata_props.get(keys.IN_PLACE) == "true"
    return _without_updates(asked, [problem.ops[op] for op in schedule], problem, model) if in_place else asked


def _without_updates(asked: Allocations, ops: Sequence[Op], problem: Problem, model: ir.Model) -> Allocations:
    """The same without the new values of parameters and states, which the caller gives memory for.

    Args:
        asked: the allocations of a run.
        ops: what runs, in order.
        problem: of these.
        model: whose metadata tells the updates.
    """
    bound = frozenset(map(str, told(model.metadata_props, keys.UPDATES).values()))
    steps = []
    for step, op in zip(asked.steps, ops, strict=True):
        names = {problem.tensors[tensor].name: problem.tensors[tensor].bytes for tensor in op.outputs}
        kept = list(step.outputs)
        for size in (size for name, size in names.items() if name in bound):
            buffer = next((buffer for buffer in kept if asked.size[buffer] == size), None)
            if buffer is not None:
                kept.remove(buffer)
        steps.append(replace(step, outputs=tuple(kept)))
    return replace(asked, steps=tuple(steps))

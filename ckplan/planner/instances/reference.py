"""The units in which published tables of planning results are written.

Kusumoto et al. (NeurIPS 2019) and the tools after them count memory as a fraction of *naive*, which is twice the
sum of the forward activations (every activation and every gradient of one held at the same time), and overhead as
recomputed forward cost over forward cost. Parameters, their gradients and the inputs of the network are outside of
both. `Timeline.peak_activations` of a problem that `parse_kusumoto` made counts exactly the former.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckplan.planner.problem import Problem


def naive_bytes(problem: Problem) -> int:
    """Twice the bytes of all tensors that forward ops make: every activation and its gradient."""
    return 2 * sum(problem.tensors[tensor].bytes for index in problem.forward for tensor in problem.ops[index].outputs)


def forward_cost(problem: Problem) -> float:
    """Cost of the forward pass."""
    return sum(problem.ops[index].cost for index in problem.forward)


def forward_overhead(problem: Problem, schedule: Sequence[int]) -> float:
    """Extra cost of a schedule as a ratio of the forward pass (1.0: one extra forward pass)."""
    base = forward_cost(problem)
    return (problem.schedule_cost(schedule) - problem.cost) / base if base else 0.0

"""`speed`: keep what is expensive to compute."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.planner.order import best_order
from ckplan.planner.problem import Problem
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.strategies.base import Strategy


@dataclass(frozen=True)
class Speed(Strategy):
    """Keep the outputs of convolutions, matrix products and attention; recompute everything else.

    The `speed` collection of TensorFlow's memory-saving gradients (Salimans & Bulatov, 2018,
    github.com/cybertronai/gradient-checkpointing). O(ops). Costs little time; saves little where the expensive ops
    make most of the activations, and nothing on a chain of them.
    """

    name: ClassVar[str] = "speed"

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """Two schedules: the rule's, and no recomputation where the rule only costs."""
        kept = {
            problem.view_root[tensor]
            for index in problem.forward
            if problem.ops[index].heavy
            for tensor in problem.ops[index].outputs
        }
        order = best_order(problem)
        return [recompute_schedule(problem, kept, order), order]

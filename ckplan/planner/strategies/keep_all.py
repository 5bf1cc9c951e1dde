"""`none`: recompute nothing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.planner.order import best_order
from ckplan.planner.problem import Problem
from ckplan.planner.strategies.base import Strategy


@dataclass(frozen=True)
class KeepAll(Strategy):
    """Keep every activation until its last reader; only the order of the backward ops is chosen.

    The step without a plan, which `ckplan grad` writes and every saving is counted from. Two orders are tried, the
    natural one and one that runs ops which free memory as soon as they can run. O(ops x ready ops). The wrong choice
    when memory is short.
    """

    name: ClassVar[str] = "none"

    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """The better of the natural and the eager order."""
        return [best_order(problem)]

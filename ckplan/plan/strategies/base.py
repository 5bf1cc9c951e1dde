"""What all strategies have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from ckplan.choices import spell
from ckplan.errors import InfeasibleError
from ckplan.plan.bounds import lower_bound
from ckplan.plan.peak import peak_of
from ckplan.plan.plan import Plan, make_plan
from ckplan.plan.problem import Problem
from ckplan.units import format_bytes


@dataclass(frozen=True)
class Strategy(ABC):
    """A way to choose a schedule. Subclasses are frozen dataclasses whose fields are their options."""

    name: ClassVar[str]
    """The name on the command line."""

    @abstractmethod
    def schedules(self, problem: Problem) -> Iterable[Sequence[int]]:
        """Candidate schedules; the one of the lowest `merit` is taken."""

    def merit(self, peak: int, cost: float, budget: int | None) -> tuple[float, float, float]:
        """What makes one candidate better than another, the lower the better.

        The lowest cost among the candidates that keep the budget; where none does, or there is no budget, the lowest
        peak.

        Args:
            peak: simulated peak of activations, in bytes.
            cost: seconds of the schedule.
            budget: bytes of activations that the plan must not exceed, if any.
        """
        return (0, cost, peak) if budget is not None and peak <= budget else (1, peak, cost)

    def solve(self, problem: Problem, budget: int | None = None) -> Plan:
        """Plan a problem.

        Args:
            problem: the ops and tensors.
            budget: bytes of activations that the plan must not exceed at its peak.

        Raises:
            InfeasibleError: the best schedule of this strategy exceeds the budget.
        """
        return self.choose(problem, self.schedules(problem), budget)

    def choose(self, problem: Problem, candidates: Iterable[Sequence[int]], budget: int | None) -> Plan:
        """The plan of the best of some schedules.

        Raises:
            InfeasibleError: it exceeds the budget.
        """

        def merit(schedule: Sequence[int]) -> tuple[float, float, float]:
            return self.merit(peak_of(problem, schedule), problem.schedule_cost(schedule), budget)

        plan = make_plan(problem, str(self), min(candidates, key=merit))
        if budget is not None and plan.predicted.peak_activations > budget:
            bound, index = lower_bound(problem)
            raise InfeasibleError(
                f"strategy `{self}` needs {format_bytes(plan.predicted.peak_activations)} of activations, "
                f"the budget is {format_bytes(budget)} and no schedule needs less than {format_bytes(bound)} "
                f"({problem.ops[index].name})",
                "raise the budget or try another strategy",
            )
        return plan

    def __str__(self) -> str:
        """The strategy as one writes it on the command line, options that differ from their default included."""
        return spell(self)

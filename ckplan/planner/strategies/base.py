"""What all strategies have in common."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from ckplan.arguments import check_number
from ckplan.choices import spell
from ckplan.errors import CkplanError, InfeasibleError
from ckplan.extensions import running_of
from ckplan.planner.bounds import holder_of_bound, lower_bound
from ckplan.planner.exact.stages import proven_overhead
from ckplan.planner.peak import peak_of
from ckplan.planner.plan import Plan, make_plan
from ckplan.planner.problem import Problem
from ckplan.units import format_bytes, format_unlike


@dataclass(frozen=True)
class Strategy(ABC):
    """A way to choose a schedule. Subclasses are frozen dataclasses whose fields are their options."""

    name: ClassVar[str]
    """The name on the command line."""
    least: ClassVar[Mapping[str, float]] = {}
    """What options may be at the least that are numbers; those that are not named here may be any."""

    def __post_init__(self) -> None:
        for option, least in self.least.items():
            check_number(f"option `{option}` of strategy `{self.name}`", getattr(self, option), least)

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
            EnvironmentUnavailableError: the strategy is of others, and fails or offers what is no schedule.
        """
        with running_of(type(self), f"strategy `{self}`"):
            return self.choose(problem, self.schedules(problem), budget)

    def cheaper(self, problem: Problem, budget: int, most_cost: float) -> Sequence[int] | None:
        """A schedule of this strategy within a budget that costs less than something else, else None.

        Args:
            problem: the ops and tensors.
            budget: bytes of activations.
            most_cost: seconds that the schedule must stay below; the fewer they are, the sooner that is known.
        """
        try:
            plan = self.solve(problem, budget)
        except CkplanError:
            return None
        return plan.schedule if plan.cost < most_cost else None

    def best(self, problem: Problem, candidates: Iterable[Sequence[int]], budget: int | None) -> Sequence[int]:
        """The candidate of the lowest `merit`.

        Args:
            problem: the ops and tensors.
            candidates: valid schedules, at least one.
            budget: bytes of activations that the plan must not exceed, if any.

        Raises:
            ValueError: there is none.
        """

        def merit(schedule: Sequence[int]) -> tuple[float, float, float]:
            return self.merit(peak_of(problem, schedule), problem.schedule_cost(schedule), budget)

        best = min(candidates, key=merit, default=None)
        if best is None:
            raise ValueError("it offers no schedule")
        return best

    def choose(
        self,
        problem: Problem,
        candidates: Iterable[Sequence[int]],
        budget: int | None,
        *,
        interrupted: bool = False,
        prove: bool = False,
        soon: bool = False,
    ) -> Plan:
        """The plan of the best of some schedules.

        Args:
            problem: the ops and tensors.
            candidates: valid schedules, at least one.
            budget: bytes of activations that the plan must not exceed, if any.
            interrupted: whether the search ended before its time.
            prove: whether to look for a bound on the overhead (seconds of work).
            soon: whether no more than a second is left for that.

        Raises:
            InfeasibleError: it exceeds the budget.
            ValueError: there is no schedule, or the best one is not valid.
        """
        plan = make_plan(problem, str(self), self.best(problem, candidates, budget))
        peak = plan.predicted.peak_activations
        if budget is not None and peak > budget:
            needed, allowed = format_unlike(peak, budget)
            raise InfeasibleError(
                f"strategy `{self}` needs {needed} of activations, the budget is {allowed}, and no schedule "
                f"needs less than {format_bytes(lower_bound(problem)[0])}, which {holder_of_bound(problem)}",
                f"raise the budget to {peak} bytes, the least that a plan was found for"
                + ("" if self.name == "auto" else ", or try another strategy"),
            )
        bound = 0.0
        if prove and plan.recomputed:
            most = 0.0 if soon else plan.cost - problem.cost
            try:
                bound = proven_overhead(problem, peak if budget is None else budget, most) / problem.cost
            except KeyboardInterrupt:
                interrupted = True
        return replace(plan, interrupted=interrupted, overhead_bound=min(bound, plan.overhead))

    def __str__(self) -> str:
        """The strategy as one writes it on the command line, options that differ from their default included."""
        return spell(self)


def one_more_forward(problem: Problem) -> float:
    """Seconds of a step in which each forward op runs twice: what a plan without a budget may cost."""
    return problem.cost + sum(problem.ops[index].cost for index in problem.forward)

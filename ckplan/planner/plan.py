"""A plan: a schedule, what it is predicted to cost, and how good it can be at all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ckplan.display import did_you_mean
from ckplan.errors import ModelError
from ckplan.planner.bounds import lower_bound
from ckplan.planner.order import best_order
from ckplan.planner.peak import peak_of
from ckplan.planner.problem import Problem
from ckplan.planner.simulate import simulate
from ckplan.planner.timeline import Timeline
from ckplan.units import format_bytes

SCHEMA = 1
"""Version of the JSON form; raised when a reader of the old form would misunderstand the new one."""


@dataclass(frozen=True)
class Plan:
    """What a strategy answers.

    Attributes:
        strategy: the strategy with its options, as written on the command line.
        schedule: op ids in execution order; an op that stands again is recomputed.
        ops: names of the problem's ops, by id: a plan file stays readable and checkable without the problem.
        predicted: the simulated timeline of the schedule.
        lower_bound: bytes of activations below which no schedule can go.
        cost: seconds of the schedule.
        base_cost: seconds of one step without recomputation.
        order_peak: bytes of activations at the peak of the best order without recomputation: what lies between the step
            as it is and this, order alone has saved.
        overhead_bound: overhead that no schedule within the budget can avoid, or of this peak where none was given, as
            far as was proven (0: nothing was). It is one of schedules of these ops.
        interrupted: whether the search was ended before its time; the plan is the best until then.
    """

    strategy: str
    schedule: tuple[int, ...]
    ops: tuple[str, ...]
    predicted: Timeline
    lower_bound: int
    cost: float
    base_cost: float
    order_peak: int
    overhead_bound: float = 0.0
    interrupted: bool = False

    def __repr__(self) -> str:
        peak = format_bytes(self.predicted.peak_activations)
        return f"<Plan by {self.strategy}: {peak}, {self.overhead:+.1%}, {self.recomputed} nodes repeated>"

    @property
    def overhead(self) -> float:
        """Extra compute as a ratio of the step without recomputation (0.25: a quarter more).

        A schedule has every op, so that less than none is what rounding makes of sums in another order.
        """
        return max(0.0, self.cost / self.base_cost - 1) if self.base_cost else 0.0

    @cached_property
    def recomputed(self) -> int:
        """Number of schedule entries that repeat an op."""
        return len(self.schedule) - len(set(self.schedule))

    def to_json(self) -> dict[str, Any]:
        """A JSON-ready form; the schedule is a list of node names."""
        return {
            "schema": SCHEMA,
            "strategy": self.strategy,
            "schedule": [self.ops[index] for index in self.schedule],
            "predicted_peak_activations": self.predicted.peak_activations,
            "predicted_peak_total": self.predicted.peak_total,
            "order_peak_activations": self.order_peak,
            "lower_bound": self.lower_bound,
            "overhead": self.overhead,
            "overhead_bound": self.overhead_bound,
        }


_LONGEST = 1000
"""How often a schedule may run a node on average; the simulator takes time and memory for each."""
_TOLD = 200
"""Letters of an unknown name that are told."""


def make_plan(problem: Problem, strategy: str, schedule: Sequence[int]) -> Plan:
    """Judge a schedule with the simulator and wrap it as a `Plan`.

    Raises:
        ValueError: the schedule is not valid for the problem.
    """
    predicted = simulate(problem, schedule)
    ordered = peak_of(problem, best_order(problem))
    return Plan(
        strategy=strategy,
        schedule=tuple(schedule),
        ops=tuple(op.name for op in problem.ops),
        predicted=predicted,
        order_peak=min(ordered, predicted.peak_activations) if len(schedule) == len(problem.ops) else ordered,
        lower_bound=lower_bound(problem)[0],
        cost=problem.schedule_cost(schedule),
        base_cost=problem.cost,
    )


def plan_from_json(problem: Problem, data: Mapping[str, Any]) -> Plan:
    """Read a plan for a problem; figures are simulated anew, not believed, and no bound is proven.

    Raises:
        ModelError: the plan is of another schema, or names a node that the problem does not have.
    """
    if data.get("schema") != SCHEMA:
        found = f"schema {data['schema']!r}" if "schema" in data else "no schema"
        raise ModelError(f"plan has {found}, this version reads schema {SCHEMA}", "plan the model again")
    ids = {op.name: index for index, op in enumerate(problem.ops)}
    schedule = data.get("schedule")
    if not isinstance(schedule, list) or len(schedule) > _LONGEST * (len(ids) + 1):
        raise ModelError("plan has no schedule, or one of far more nodes than the model has", "plan the model again")
    unknown = [str(name) for name in schedule if not isinstance(name, str) or name not in ids]
    if unknown:
        raise ModelError(
            f"plan names node '{unknown[0][:_TOLD]}', which the model does not have"
            + (f" ({len(unknown)} such names)" if len(unknown) > 1 else ""),
            did_you_mean(unknown[0][:_TOLD], ids, most=2) or "plan this model again",
        )
    try:
        return make_plan(problem, str(data.get("strategy", "file")), [ids[name] for name in schedule])
    except ValueError as error:
        raise ModelError(f"plan cannot be run: {error}", "plan this model again") from error

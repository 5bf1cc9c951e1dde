"""A plan in a file, as onnxruntime executes it."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ckplan.keys import BUDGET
from ckplan.pipeline.goal import ACTIVATIONS
from ckplan.pipeline.planned import HOLDER, Planned, held_of
from ckplan.pipeline.step import Step
from ckplan.planner import Plan, plan_from_json
from ckplan.planner.arena.cells import Layout
from ckplan.planner.exact.stages import proven_overhead
from ckplan.planner.strategies import Strategy
from ckplan.runtime.occupancy import occupancy_of_executed
from ckplan.runtime.pools.reservations import Reservation
from ckplan.runtime.problem_of import problem_of
from ckplan.units import format_bytes
from ckplan.writer.control_edges import is_control
from ckplan.writer.describe import describe, describe_plan
from ckplan.writer.emit import write

_log = logging.getLogger(__name__)


def given_plan(step: Step, data: Mapping[str, Any]) -> Plan:
    """A plan from a file, for a step: nothing is believed, so that a bound is proven anew where the file tells of one.

    It is a bound at the plan's own peak: of the budget that the plan was made for, the file does not tell.

    Args:
        step: what it is for.
        data: the plan as JSON.

    Raises:
        ModelError: it is of another schema, names a node that the step does not have, or cannot be run.
    """
    problem = step.problem
    plan = plan_from_json(problem, data)
    if not data.get("overhead_bound") or not plan.recomputed:
        return plan
    bound = proven_overhead(problem, plan.predicted.peak_activations, plan.cost - problem.cost) / problem.cost
    return replace(plan, overhead_bound=min(bound, plan.overhead))


def write_plan(
    step: Step,
    plan: Plan,
    budget: int | None = None,
    reserved: Reservation = (),
    pools: Layout | None = None,
    order: Sequence[str] = (),
    sparing: bool = True,
) -> Planned:
    """Write a plan into a copy of the graph that it was made for, and learn what onnxruntime executes of that file.

    Args:
        step: what was planned.
        plan: the schedule.
        budget: bytes of activations, if there is a budget.
        reserved: see `ckplan.writer.emit.write`.
        pools: see there.
        order: see there.
        sparing: see there.
    """
    bare = not reserved and pools is None
    if step.training is not None and bare and plan.schedule == step.kept.schedule:
        step.files[plan.schedule] = step.baseline.peak_activations
        return _kept(step, plan, budget)
    _log.info("writing the plan into the graph, and asking onnxruntime what it makes of it")
    plan = step.counted(plan)
    written = write(
        step.fused, plan, reserved=reserved, pools=pools, order=order, sparing=sparing, runtime=step.runtime
    )
    if budget is not None:
        written.model.metadata_props[BUDGET] = str(budget)
    occupancy = occupancy_of_executed(written.executed, written.model, written.numbers)
    if pools is None:  # which are counted where they are made
        step.files[plan.schedule] = occupancy.timeline.peak_activations
    return Planned(step, plan, written.model, occupancy, written.executed, budget)


def without_plan(step: Step, strategy: Strategy, budget: int | None = None) -> Planned:
    """The step without a plan, as `ckplan grad` writes it, as a plan of a strategy that repeats nothing."""
    return _kept(step, replace(step.kept, strategy=str(strategy)), budget)


def _kept(step: Step, plan: Plan, budget: int | None) -> Planned:
    """The step without a plan, as a plan that does the same."""
    plan = step.counted(plan)
    model = step.ordered.clone()
    if step.training is None:  # the graph as it came
        describe(model, problem_of(model, step.runtime), plan, sum(map(is_control, model.graph)), step.baseline)
    describe_plan(model, plan)
    if budget is not None:
        model.metadata_props[BUDGET] = str(budget)
    return Planned(step, plan, model, step.occupancy, step.executed, budget)


def by_strategy(made: Planned, strategy: str) -> Planned:
    """The same by a strategy of another name, in its metadata, too."""
    if made.plan.strategy == strategy:
        return made
    plan = replace(made.plan, strategy=strategy)
    describe_plan(made.model, plan)
    return replace(made, plan=plan)


def renamed(made: Planned, strategy: str) -> Planned:
    """The same by a strategy as it was asked for, where it was planned with other limits."""
    return made if made.step.whole is None else by_strategy(made, strategy)


def told_of_plan_alone(made: Planned) -> list[str]:
    """What is to be said of a plan that is written to a file of its own, a line.

    What makes an arena smaller, regions that are reserved or cut into pools, is no part of a schedule.
    """
    if made.budget is None or made.scope == ACTIVATIONS:
        return []
    alone = held_of(write_plan(made.step, made.plan).footprint, made.scope)
    if alone <= made.budget:
        return []
    return [
        f"with the file that `ckplan rewrite --plan` makes of the plan {HOLDER[made.scope]} holds "
        f"{format_bytes(alone)}, which is more than the budget: give the budget to `ckplan rewrite`, whose file also "
        "arranges the arena"
    ]

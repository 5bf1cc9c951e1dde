"""What a process or its arena holds with a plan's file, and what it is expected to before there is one."""

from __future__ import annotations

from ckplan.pipeline.arena_forms import in_pools, reserving
from ckplan.pipeline.goal import ARENA, TOTAL, Goal
from ckplan.pipeline.planned import Planned, share_of
from ckplan.pipeline.step import Step
from ckplan.planner import Plan
from ckplan.planner.arena.allocations import expected_arena
from ckplan.runtime.pools.allocations_of import asked_by_plan
from ckplan.runtime.pools.footprint import Footprint
from ckplan.runtime.pools.reservations import reservation_for

CLOSE = 1.2
"""How much more a file takes than is expected of its plan, as a ratio, at most, but where another region is needed."""


def expected(step: Step, plan: Plan, goal: Goal) -> int:
    """Bytes that the arena is expected to take of a plan's file; where it is cut into pools, what is alive.

    A file has control edges besides, and onnxruntime fuses some of its nodes; see `CLOSE`.
    """
    asked = asked_by_plan(step.problem, plan.schedule, step.ordered)
    return expected_arena(asked).live if goal.scope == ARENA else reservation_for(asked)[1]


def with_reservation(made: Planned, goal: Goal, limit: int, most: int | None = None) -> Planned:
    """A plan's file; with tensors reserved first, or in pools, if it takes more than a budget without.

    Args:
        made: the plan in a file.
        goal: what the budget is of.
        limit: the budget in bytes.
        most: what the arena of the best file yet takes: pools that take more are not worth writing.
    """
    if share_of(made.footprint, goal) <= limit:
        return made
    if goal.scope == ARENA:
        allowed = max(limit, made.footprint.held if most is None else most)
        return in_pools(made, allowed, limit, goal.until, goal.seconds or 0.0)
    return reserving(made, made.footprint.running)


def fixed(found: Footprint, goal: Goal) -> int:
    """Bytes, of those that a budget is of, that are there whatever the plan is."""
    return found.resident if goal.scope == TOTAL else 0

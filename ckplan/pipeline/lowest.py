"""Plans of the lowest peak that strategies have: what is left to write before a budget is refused."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from itertools import chain

from ckplan.errors import CkplanError
from ckplan.pipeline.goal import Goal
from ckplan.pipeline.step import Step
from ckplan.planner import Plan
from ckplan.planner.strategies import Strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.chen import Chen
from ckplan.planner.strategies.evict import Evict
from ckplan.planner.strategies.lower_sets import LowerSets
from ckplan.planner.strategies.memory import Memory
from ckplan.planner.strategies.mincut import MinCut
from ckplan.planner.strategies.mirror import Mirror
from ckplan.planner.strategies.revolve import Revolve
from ckplan.planner.strategies.search import Search
from ckplan.planner.strategies.segments import Segments
from ckplan.planner.strategies.sqrt import Sqrt

LIMITLESS = 2.0
"""Overhead beyond which `auto` looks for no plan where the least memory is asked for, as a ratio of the step."""

_OTHERS: tuple[tuple[Strategy, float], ...] = (
    (Memory(), math.inf),
    (Evict(), math.inf),
    (MinCut(), math.inf),
    (Sqrt(), math.inf),
    (Mirror(), math.inf),
    (Chen(), 1_000),
    (Segments(), 1_000),
    (Revolve(), 1_000),
    (LowerSets(), 600),
    (Search(), 1_000),
)
"""Strategies that are asked before `auto` refuses a budget, with the ops of the largest graph they plan soon."""

_REACH = 1.1
"""How far above a budget the lowest peak of a strategy may lie for it to be asked for the budget as well."""


def last_resorts(step: Step, strategy: Strategy, goal: Goal, budget: int) -> Iterator[Plan]:
    """What a strategy has at its lowest peak, and for `auto` what others have there and within a budget.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: its limit of the overhead holds for the others, too.
        budget: bytes of activations.
    """
    asked = goal.applied(strategy)
    if not isinstance(asked, Auto):
        yield lowest_plan(step, asked)
        return
    limited = asked.overhead >= 0
    lowest = asked if limited else replace(asked, overhead=LIMITLESS)
    own = (replace(lowest_plan(step, lowest), strategy=str(strategy)),)
    for plan in chain(own, _of_others(step, budget)):
        if not limited or plan.overhead <= asked.overhead:
            yield plan


def _of_others(step: Step, budget: int) -> Iterator[Plan]:
    """What other strategies have at their lowest peaks and within a budget."""
    for other, most_ops in _OTHERS:
        if len(step.problem.ops) > most_ops:
            continue
        plan = lowest_plan(step, other)
        yield plan
        if plan.predicted.peak_activations <= _REACH * budget:
            with suppress(CkplanError):
                yield other.solve(step.problem, budget)


def lowest_plan(step: Step, strategy: Strategy) -> Plan:
    """What a strategy plans without a budget; kept with the step, since it is the same for every budget."""
    if strategy not in step.lowest:
        step.lowest[strategy] = strategy.solve(step.problem)
    return step.lowest[strategy]

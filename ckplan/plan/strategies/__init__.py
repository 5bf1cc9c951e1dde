"""All strategies, by name.

A strategy is a frozen dataclass: its fields are its options, its ``solve`` makes a plan.
"""

from __future__ import annotations

from ckplan.choices import parse_choice
from ckplan.plan.strategies.auto import Auto
from ckplan.plan.strategies.base import Strategy
from ckplan.plan.strategies.chen import Chen
from ckplan.plan.strategies.evict import Evict
from ckplan.plan.strategies.exact import Exact
from ckplan.plan.strategies.keep_all import KeepAll
from ckplan.plan.strategies.keep_listed import KeepListed
from ckplan.plan.strategies.lower_sets import LowerSets
from ckplan.plan.strategies.memory import Memory
from ckplan.plan.strategies.mincut import MinCut
from ckplan.plan.strategies.mirror import Mirror
from ckplan.plan.strategies.revolve import Revolve
from ckplan.plan.strategies.search import Search
from ckplan.plan.strategies.segments import Segments
from ckplan.plan.strategies.speed import Speed
from ckplan.plan.strategies.sqrt import Sqrt

STRATEGIES: tuple[type[Strategy], ...] = (
    KeepAll,
    Speed,
    Sqrt,
    Memory,
    KeepListed,
    Mirror,
    Segments,
    Chen,
    LowerSets,
    Revolve,
    MinCut,
    Evict,
    Search,
    Exact,
    Auto,
)
"""Every strategy; the tests hold each of them to the same properties."""

__all__ = ["STRATEGIES", "Strategy", "parse_strategy"]


def parse_strategy(text: str) -> Strategy:
    """Make a strategy from ``name`` or ``name:field=value,field=value``.

    A value that holds commas (a list of names) is written with ``;`` between its items.

    Raises:
        UsageError: no such strategy or field, or the value does not fit the field.
    """
    return parse_choice(text, STRATEGIES, "strategy")

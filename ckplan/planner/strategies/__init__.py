"""All strategies, by name.

A strategy is a frozen dataclass: its fields are its options, its ``solve`` makes a plan.
"""

from __future__ import annotations

from typing import TypeVar

from ckplan.arguments import shown
from ckplan.choices import parse_choice
from ckplan.errors import UsageError
from ckplan.extensions import check_unused, load_group
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.base import Strategy
from ckplan.planner.strategies.chen import Chen
from ckplan.planner.strategies.evict import Evict
from ckplan.planner.strategies.exact import Exact
from ckplan.planner.strategies.keep_all import KeepAll
from ckplan.planner.strategies.keep_listed import KeepListed
from ckplan.planner.strategies.lower_sets import LowerSets
from ckplan.planner.strategies.memory import Memory
from ckplan.planner.strategies.mincut import MinCut
from ckplan.planner.strategies.mirror import Mirror
from ckplan.planner.strategies.revolve import Revolve
from ckplan.planner.strategies.search import Search
from ckplan.planner.strategies.segments import Segments
from ckplan.planner.strategies.speed import Speed
from ckplan.planner.strategies.sqrt import Sqrt

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
"""Every strategy of ckplan; the tests hold each of them to the same properties."""

GROUP = "ckplan.strategies"
"""Entry points of installed packages: strategies of theirs."""

__all__ = ["STRATEGIES", "Strategy", "parse_strategy", "register_strategy", "strategies"]

S = TypeVar("S", bound=type[Strategy])
_OTHERS: list[type[Strategy]] = []


def register_strategy(kind: S) -> S:
    """Make a strategy known by its name; a class decorator.

    Raises:
        UsageError: it is no subclass of `Strategy`, or another strategy has its name.
    """
    _OTHERS.append(_fit(kind, *STRATEGIES, *_OTHERS))
    return kind


def _fit(kind: S, *known: type[Strategy]) -> S:
    """See that it is a strategy, with a name of its own."""
    if not (isinstance(kind, type) and issubclass(kind, Strategy)):
        raise UsageError(f"the strategy is {shown(kind)}", "give a subclass of `Strategy`")
    check_unused(kind.name, [other.name for other in known], "strategies")
    return kind


def _installed(name: str, kind: type[Strategy]) -> type[Strategy]:
    return _fit(kind, *STRATEGIES)


def strategies() -> tuple[type[Strategy], ...]:
    """Every strategy: those of ckplan, those of installed packages, those that were registered."""
    installed = [kind for _, kind in load_group(GROUP, _installed)]
    others = {kind.name: kind for kind in (*installed, *_OTHERS)}
    return (*STRATEGIES, *others.values())


def parse_strategy(text: str) -> Strategy:
    """Make a strategy from ``name`` or ``name:field=value,field=value``.

    A value that holds commas (a list of names) is written with ``;`` between its items.

    Raises:
        UsageError: no such strategy or field, or the value does not fit the field.
    """
    return parse_choice(text, strategies(), "strategy")

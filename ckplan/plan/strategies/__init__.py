"""All strategies, by name.

A strategy is a frozen dataclass: its fields are its options, its ``solve`` makes a plan.
"""

from __future__ import annotations

import dataclasses
import difflib
from typing import get_type_hints

from ckplan.errors import UsageError
from ckplan.plan.strategies.base import Strategy
from ckplan.plan.strategies.chen import Chen
from ckplan.plan.strategies.keep_all import KeepAll
from ckplan.plan.strategies.keep_listed import KeepListed
from ckplan.plan.strategies.lower_sets import LowerSets
from ckplan.plan.strategies.memory import Memory
from ckplan.plan.strategies.mirror import Mirror
from ckplan.plan.strategies.revolve import Revolve
from ckplan.plan.strategies.segments import Segments
from ckplan.plan.strategies.speed import Speed
from ckplan.plan.strategies.sqrt import Sqrt
from ckplan.units import parse_bytes

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
)
"""Every strategy; the tests hold each of them to the same properties."""

__all__ = ["STRATEGIES", "Strategy", "parse_strategy"]


def parse_strategy(text: str) -> Strategy:
    """Make a strategy from ``name`` or ``name:field=value,field=value``.

    A value that holds commas (a list of names) is written with ``;`` between its items.

    Raises:
        UsageError: no such strategy or field, or the value does not fit the field.
    """
    name, _, rest = text.partition(":")
    by_name = {strategy.name: strategy for strategy in STRATEGIES}
    if name not in by_name:
        near = difflib.get_close_matches(name, by_name, n=1)
        hint = f"did you mean `{near[0]}`?" if near else f"choose one of {', '.join(by_name)}"
        raise UsageError(f"there is no strategy `{name}`", hint)
    kind = by_name[name]
    types = get_type_hints(kind)
    fields = {field.name: types[field.name] for field in dataclasses.fields(kind)}
    values: dict[str, object] = {}
    for part in filter(None, rest.split(",")):
        key, equals, value = part.partition("=")
        if key not in fields or not equals:
            known = ", ".join(f"{field}=…" for field in fields) or "none"
            raise UsageError(f"strategy `{name}` has no option `{part}`", f"its options: {known}")
        try:
            if key.endswith("_bytes"):
                values[key] = parse_bytes(value)
            elif fields[key] == tuple[str, ...]:
                values[key] = tuple(filter(None, value.split(";")))
            else:
                values[key] = fields[key](value)
        except ValueError as error:
            raise UsageError(f"`{value}` does not fit option `{key}` of strategy `{name}`") from error
    return kind(**values)

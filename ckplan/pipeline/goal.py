"""What a plan is asked for."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass, fields, replace
from operator import index
from typing import SupportsIndex, TypeVar

from ckplan.arguments import check_budget, check_number, check_ratio, check_word
from ckplan.errors import UsageError
from ckplan.planner import Timeline
from ckplan.planner.strategies import Strategy
from ckplan.units import parse_budget, parse_share

S = TypeVar("S", bound=Strategy)

ACTIVATIONS, ARENA, TOTAL = SCOPES = ("activations", "arena", "total")
"""What a budget may be of."""

_OPTIONS = {"overhead": "--overhead", "seconds": "--time-limit"}
"""Options of strategies that a goal sets, and how one asks for them."""

_AT_ONCE = 1e-9
"""Seconds of a search that finds one plan."""


@dataclass(frozen=True)
class Goal:
    """What a plan is asked for.

    Attributes:
        budget: bytes not to exceed.
        share: the same as a ratio of what the graph takes without a plan.
        overhead: extra compute that the plan may cost, as a ratio of the step.
        seconds: how long the strategy may search; for each plan, where there are several.
        scope: what the budget is of: the peak of ``activations``, the regions that onnxruntime's ``arena`` holds in the
            end, or the ``total`` that a process takes (see `ckplan.runtime.pools.footprint`).
        cheaper_than: what a plan has to cost less than to be of use, in the problem's units, as another form of the
            step keeps to the budget for that; then what is refused need not be proven. Heeded where ``scope`` is not
            of activations.
        until: when the search for a file ends, on the clock of `time.monotonic`.
    """

    budget: int | None = None
    share: float | None = None
    overhead: float | None = None
    seconds: float | None = None
    scope: str = ACTIVATIONS
    cheaper_than: float | None = None
    until: float = math.inf

    @classmethod
    def of(
        cls,
        budget: int | float | str | None = None,
        overhead: float | str | None = None,
        seconds: float | None = None,
        of: str = ACTIVATIONS,
    ) -> Goal:
        """A goal as one writes it.

        Args:
            budget: bytes; a float is a ratio of the peak without a plan; or text: ``512MiB``, ``40%``.
            overhead: a ratio of the step, or text: ``10%``.
            seconds: how long to search.
            of: what the budget is of; see `scope`.

        Raises:
            UsageError: a text is neither a size nor a percentage, a number is negative or not finite, a ratio is so
                large that it limits nothing, something else is neither text nor number, or there is no such scope.
        """
        check_word("what the budget is of", of, SCOPES)
        if of != ACTIVATIONS and budget is None:
            raise UsageError(f"`--of {of}` says what the budget limits, and there is no budget", "add --budget 4GiB")
        limit = parse_budget(budget) if isinstance(budget, str) else budget
        extra = parse_share(overhead) if isinstance(overhead, str) else overhead
        if limit is not None:
            check_budget("the budget", limit)
        if extra is not None:
            check_ratio("the overhead", extra)
        if seconds is not None:
            check_number("the time limit", seconds)
        if isinstance(limit, SupportsIndex):
            return cls(budget=index(limit), overhead=extra, seconds=seconds, scope=of)
        return cls(share=None if limit is None else float(limit), overhead=extra, seconds=seconds, scope=of)

    @property
    def costing(self) -> str:
        """What a plan may cost, in words behind "no plan"; empty where that is not limited."""
        return "" if self.overhead is None else f" with an overhead of at most {100 * self.overhead:.3g} %"

    @property
    def at_once(self) -> Goal:
        """The same after the user has interrupted the search once: what is found first is taken."""
        return replace(self, seconds=_AT_ONCE)

    @property
    def begun(self) -> Goal:
        """The same for a search for a file that begins now."""
        return self if self.seconds is None else replace(self, until=time.monotonic() + self.seconds)

    @property
    def is_over(self) -> bool:
        """Whether the time for a file is up: one that does is taken, and none that may be better is looked for."""
        return time.monotonic() > self.until

    def bytes(self, base: Timeline) -> int | None:
        """The budget in bytes, given the timeline without a plan."""
        return self.limit(base.peak_activations)

    def limit(self, base: int) -> int | None:
        """The budget in bytes, given what the step takes without a plan."""
        return self.budget if self.share is None else int(self.share * base)

    def cost(self, asked: str | None = None, device: str = "cpu") -> str:
        """How to price nodes (see `ckplan.pipeline.step.COSTS`): as it was asked for, if it was.

        Else a goal of time takes the times of this machine's kernels, if it is for the CPU, and every other goal what
        shapes tell, which is the same on all machines.
        """
        if asked is not None:
            return asked
        return "calibrated" if self.overhead is not None and device != "cuda" else "flops"

    def applied(self, strategy: S) -> S:
        """The strategy with its options set to the goal.

        Raises:
            UsageError: the strategy has no such option.
        """
        known = {field.name for field in fields(strategy)}
        given = {name: value for name in _OPTIONS if (value := getattr(self, name)) is not None}
        for name in given:
            if name not in known:
                option = _OPTIONS[name]
                raise UsageError(f"strategy `{strategy.name}` takes no `{option}`", "use it with `--strategy auto`")
        return replace(strategy, **given)

    def asked_of(self, strategy: S) -> S:
        """A strategy as it is given beside the goal.

        Raises:
            UsageError: it has no option that the goal asks for, or one that says something else.
        """
        aimed = self.applied(strategy)
        for field in fields(strategy):
            own = getattr(strategy, field.name)
            if own not in (field.default, getattr(aimed, field.name)):
                option = _OPTIONS[field.name]
                raise UsageError(f"strategy `{strategy}` says something else than `{option}`", "give one of them")
        return strategy


ANY = Goal()
"""No limit of any kind: the strategy decides."""

"""What a plan is asked for."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

from ckplan.errors import UsageError
from ckplan.planner import Timeline
from ckplan.planner.strategies import Strategy
from ckplan.units import parse_budget, parse_share


@dataclass(frozen=True)
class Goal:
    """What a plan is asked for.

    Attributes:
        budget: bytes of activations not to exceed.
        share: the same as a ratio of the peak that the graph has without a plan.
        overhead: extra compute that the plan may cost, as a ratio of the step.
        seconds: how long the strategy may search.
    """

    budget: int | None = None
    share: float | None = None
    overhead: float | None = None
    seconds: float | None = None

    @classmethod
    def of(
        cls,
        budget: int | float | str | None = None,
        overhead: float | str | None = None,
        seconds: float | None = None,
    ) -> Goal:
        """A goal as one writes it.

        Args:
            budget: bytes; a float is a ratio of the peak without a plan; or text: ``512MiB``, ``40%``.
            overhead: a ratio of the step, or text: ``10%``.
            seconds: how long to search.

        Raises:
            UsageError: a text is neither a size nor a percentage.
        """
        limit = parse_budget(budget) if isinstance(budget, str) else budget
        extra = parse_share(overhead) if isinstance(overhead, str) else overhead
        if isinstance(limit, float):
            return cls(share=limit, overhead=extra, seconds=seconds)
        return cls(budget=limit, overhead=extra, seconds=seconds)

    def bytes(self, base: Timeline) -> int | None:
        """The budget in bytes, given the timeline without a plan."""
        return self.budget if self.share is None else int(self.share * base.peak_activations)

    def applied(self, strategy: Strategy) -> Strategy:
        """The strategy with its options set to the goal.

        Raises:
            UsageError: the strategy has no such option.
        """
        known = {field.name for field in fields(strategy)}
        for name, value, option in (
            ("overhead", self.overhead, "--overhead"),
            ("seconds", self.seconds, "--time-limit"),
        ):
            if value is None:
                continue
            if name not in known:
                raise UsageError(f"strategy `{strategy.name}` takes no `{option}`", "use it with `--strategy auto`")
            strategy = replace(strategy, **{name: value})
        return strategy


ANY = Goal()
"""No limit of any kind: the strategy decides."""

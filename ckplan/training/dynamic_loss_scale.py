"""A loss scale that finds its size: halved where gradients overflow, doubled where they have not for long."""

from __future__ import annotations

from dataclasses import dataclass, replace

GROWTH_INTERVAL = 2000
_LARGEST = 2.0**24
SMALLEST = 2.0**-14
"""A scale below this no longer tells gradients that are too large from those that are NaN."""


@dataclass(frozen=True)
class DynamicLossScale:
    """The scale of the next step; see Micikevicius et al., "Mixed Precision Training", 2018, and torch's GradScaler.

    Attributes:
        scale: what the loss is multiplied by in the backward pass.
        good: steps without an overflow since the scale was last changed.
        interval: after so many of these it is doubled.
    """

    scale: float = 2.0**16
    good: int = 0
    interval: int = GROWTH_INTERVAL

    def after(self, finite: bool) -> DynamicLossScale:
        """The scale after a step whose gradients were, or were not, all finite."""
        if not finite:
            return replace(self, scale=self.scale / 2, good=0)
        if self.good + 1 < self.interval:
            return replace(self, good=self.good + 1)
        return replace(self, scale=min(self.scale * 2, _LARGEST), good=0)

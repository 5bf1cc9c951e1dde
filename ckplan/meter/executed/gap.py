"""Where a measured timeline and the expected one are furthest apart."""

from __future__ import annotations

from ckplan.meter.executed.alive import Gap, Inside
from ckplan.planner.timeline import Timeline


def widest_gap(measured: Timeline, inside: Inside) -> Gap | None:
    """The step at which measured and expected activations differ most, the first of several; None if there is none.

    A workspace is seen only when it sets a new high-water. Where it could not, it is taken off what was expected.
    """
    widest: Gap | None = None
    high = 0
    for index, (step, expected) in enumerate(zip(measured.steps, inside.expected.steps, strict=True)):
        apart = step.activations - expected.activations
        if apart < 0 and expected.live <= high:
            apart = min(apart + inside.workspaces[index], 0)
        if abs(apart) > (abs(widest.bytes) if widest else 0):
            widest = Gap(index, apart)
        high = max(high, step.live)
    return widest

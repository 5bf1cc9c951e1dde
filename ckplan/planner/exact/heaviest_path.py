"""Moments that divide any schedule into stages: ops of which each depends on the one before."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence


def heaviest_path(
    ops: Sequence[int], bounds: Mapping[int, float], dependents: Callable[[int], Iterable[int]]
) -> list[int]:
    """The ops with a bound, each dependent on another, whose bounds add up to most; those that prove most first.

    Args:
        ops: the ops that a path may lead through, in a topological order.
        bounds: by op the seconds of recomputation that its moment by itself proves; others count as none.
        dependents: those of an op among the ops; of several as good the first is taken.
    """
    weight: dict[int, float] = {}
    following: dict[int, int | None] = {}
    for index in reversed(ops):
        best = max(dependents(index), key=lambda later: weight[later], default=None)
        weight[index] = bounds.get(index, 0.0) + (0.0 if best is None else weight[best])
        following[index] = best
    at = max(weight, key=lambda index: weight[index], default=None)
    path = []
    while at is not None:
        if bounds.get(at, 0.0) > 0:
            path.append(at)
        at = following[at]
    return sorted(path, key=lambda index: (-bounds[index], index))

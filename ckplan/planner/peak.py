"""The peak of a schedule, fast: what searching strategies ask thousands of times.

The same memory semantics as `ckplan.planner.simulate.simulate`, which makes the whole timeline; a property test holds
the two together.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

from ckplan.planner.copies import Copies, Integers
from ckplan.planner.problem import Problem

ALIKE = 1e-4
"""By how much peaks may differ that are alike, as a ratio."""

_SHORT = 4_000
"""Steps of the longest schedule whose bytes are kept."""


def peak_of(problem: Problem, schedule: Sequence[int]) -> int:
    """Peak of activations of a valid schedule, in bytes.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; every op reads only what was made before.
    """
    return int(live_bytes(problem, schedule).max(initial=0))


def live_bytes(problem: Problem, schedule: Sequence[int]) -> Integers:
    """Bytes of activations that are alive while each step of a valid schedule runs, workspace included.

    Args:
        problem: the ops and tensors.
        schedule: op ids in execution order; every op reads only what was made before.
    """
    return (_lately if len(schedule) <= _SHORT else _live)(problem, tuple(schedule))


def _live(problem: Problem, schedule: tuple[int, ...]) -> Integers:
    live = Copies.of(problem, schedule).live()
    live.flags.writeable = False
    return live


_lately = lru_cache(maxsize=128)(_live)
"""The same, kept for a while: who makes a schedule judges it, and so does who chooses among several."""

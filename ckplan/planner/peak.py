"""The peak of a schedule, fast: what searching strategies ask thousands of times.

The same memory semantics as `ckplan.planner.simulate.simulate`, which makes the whole timeline; a property test holds
the two together.
"""

from __future__ import annotations

from collections.abc import Sequence

from ckplan.planner.copies import Copies, Integers
from ckplan.planner.problem import Problem


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
    return Copies(problem, schedule).live()

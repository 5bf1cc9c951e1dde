"""The largest size of a dimension with which a training step fits into memory, and what each size costs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace

from ckplan.display import table_html
from ckplan.errors import InfeasibleError, ModelError, UsageError
from ckplan.isolation.lifetime import interruptions
from ckplan.pipeline import Goal, Planned, Step, StepOptions, open_step, planning, rewrite
from ckplan.pipeline.goal import TOTAL
from ckplan.pipeline.plan_files import without_plan
from ckplan.pipeline.sources import Source, model_of
from ckplan.planner.strategies import Strategy
from ckplan.planner.strategies.keep_all import KeepAll
from ckplan.runtime.pools.footprint import Footprint
from ckplan.units import format_bytes

_LARGEST = 2**20
"""Largest size that is tried."""

_SHARE = 0.25
"""Ratio of the time for all sizes that the search for one plan may take."""

_LOOKS = 4
"""How many sizes beyond one that does not fit are tried: what an arena takes does not grow evenly."""


@dataclass(frozen=True, slots=True)
class Size:
    """A size that was tried.

    Attributes:
        size: of the dimension.
        plain: bytes that a process holds without a plan.
        footprint: what it holds with the plan; None where there is no plan that fits.
        overhead: extra compute of the plan, as a ratio of the step; 0 where there is none.
        reason: why it does not fit; empty if it does.
        least: bytes with which a step of this size is known to do, where it does not fit.
    """

    size: int
    plain: int
    footprint: Footprint | None
    overhead: float
    reason: str = ""
    least: int | None = None

    @property
    def fits(self) -> bool:
        """Whether a process with a plan of this size keeps to the memory."""
        return self.footprint is not None


@dataclass(frozen=True, slots=True)
class Fit:
    """What fits into memory.

    Attributes:
        dimension: whose size was looked for.
        memory: bytes that a process may hold; see `ckplan.runtime.pools.footprint`.
        sizes: what was tried, the smallest first.
        planned: the largest step that fits, with its plan.
        interrupted: whether the user ended the search; a larger size may fit.
        timed_out: whether the time limit ended it; likewise.
    """

    dimension: str
    memory: int
    sizes: tuple[Size, ...]
    planned: Planned
    interrupted: bool = False
    timed_out: bool = False

    @property
    def largest(self) -> Size:
        """The largest size that fits."""
        return max((size for size in self.sizes if size.fits), key=lambda size: size.size)

    @property
    def remarks(self) -> list[str]:
        """What is to be said of the search, a line each."""
        why = "was interrupted" if self.interrupted else "came to its time limit" if self.timed_out else ""
        return [f"the search {why}; this is the largest size that fits until then"] if why else []

    def __repr__(self) -> str:
        return f"<Fit: {self.dimension}={self.largest.size} within {format_bytes(self.memory)}>"

    def _repr_html_(self) -> str:
        rows = [
            (f"{self.dimension}={one.size}", format_bytes(one.footprint.total) if one.footprint else "does not fit")
            for one in self.sizes
        ]
        return table_html(f"What fits into {format_bytes(self.memory)}", rows)


def free_dimension(source: Source, options: StepOptions, wanted: str | None) -> str:
    """The dimension whose size is looked for: the one that is wanted, or the only free one, or the batch.

    Raises:
        UsageError: there is no such dimension, or several that are free.
        ModelError: the model cannot be read.
    """
    named = [
        str(size.value)
        for value in model_of(source).graph.inputs
        if value.shape is not None and not value.is_initializer() and value.name not in options.shapes
        for size in value.shape
        if not isinstance(size, int) and size.value is not None
    ]
    free = [name for name in dict.fromkeys(named) if name not in options.dims]
    told = ", ".join(f"`{name}`" for name in free)
    if wanted is not None and wanted not in free:
        said = f"there are {told}" if told else "all sizes are fixed"
        raise UsageError(f"no input has a free dimension `{wanted}`", said)
    if named and not free:
        raise UsageError("every free dimension of the model is given a size", f"say which to find: --dim {named[0]}=?")
    if not free:
        raise UsageError("the model has no free dimension", "export it with one, such as a batch of any size")
    batch = [name for name in free if name.lower() in ("batch", "batch_size", "n")]
    if wanted is None and len(free) > 1 and not batch:
        raise UsageError(f"the model has several free dimensions: {told}", f"say which one, as with --dim {free[0]}=?")
    return wanted or (batch or free)[0]


def fit(
    source: Source,
    options: StepOptions,
    memory: int,
    strategy: Strategy,
    *,
    dimension: str | None = None,
    overhead: float | None = None,
    seconds: float | None = None,
    progress: Callable[[str], None] = lambda doing: None,
) -> Fit:
    """Find the largest size of a dimension with which a process keeps to some memory, by planning sizes.

    The first size is one that should do without a plan. It is doubled until it does not fit, and then narrowed down.
    Where no plan is needed none is made. Ctrl-C, and the end of the time, takes the largest size that fits until then;
    a size that is being planned is finished first, and where none has fitted yet, the search goes on to the first one.

    Args:
        source: the model.
        options: how to load and differentiate it; the sizes of other dimensions are among them.
        memory: bytes that a process may hold, see `ckplan.runtime.pools.footprint`.
        strategy: how to plan.
        dimension: whose size is looked for; see `free_dimension`.
        overhead: extra compute that a plan may cost, as a ratio of the step: the second bound.
        seconds: how long to search, for all sizes together.
        progress: called with what is being done, in words.

    Raises:
        InfeasibleError: not even size 1 fits.
        UsageError: an option does not fit the model.
        ModelError: it cannot be read, shaped or differentiated.
    """
    name = free_dimension(source, options, dimension)
    tried: dict[int, Size] = {}
    best: Planned | None = None
    deadline = math.inf if seconds is None else time.monotonic() + seconds

    def opened(size: int) -> Step:
        progress(f"planning {name}={size}")
        return open_step(source, replace(options, dims={**options.dims, name: size}))

    def fits(size: int) -> bool:
        nonlocal best
        step = opened(size)
        goal = Goal(memory, None, overhead, seconds and seconds * _SHARE, TOTAL)
        try:
            made = _planned(step, strategy, goal.at_once if time.monotonic() > deadline else goal)
        except InfeasibleError as error:
            tried[size] = Size(size, step.footprint.total, None, 0.0, error.message, error.least)
            return False
        tried[size] = Size(size, step.footprint.total, made.footprint, made.plan.overhead)
        best = made
        return True

    fixed, slope = _growth(lambda size: opened(size).footprint.total)
    low, size = 0, min(max(1, (memory - fixed) // slope), _LARGEST)
    ended = timed_out = False
    looks = 0
    with interruptions() as heard:
        while not ended and not timed_out:
            try:
                if fits(size):
                    low = size
                elif heard:
                    del tried[size]  # with more time there might have been a plan
            except ModelError as error:  # sizes that the model does not work with: those that do not divide by a window
                if size == 1:
                    raise
                tried[size] = Size(size, 0, None, 0.0, error.message)
            except KeyboardInterrupt:
                ended = True
            high = min((other for other, one in tried.items() if other > low and not one.fits), default=_LARGEST + 1)
            if high - low > 1:
                size = _next_size(low, high, tried, fixed, memory)
            elif looks < _LOOKS and (beyond := _size_beyond(low, tried, fixed, memory)) is not None:
                size, looks = beyond, looks + 1
            else:
                break
            ended = ended or bool(heard)
            timed_out = best is not None and time.monotonic() > deadline
    if ended and best is None:
        raise KeyboardInterrupt
    sizes = tuple(tried[size] for size in sorted(tried))
    if best is None:
        least = sizes[0].least
        more = "" if least is None else f", {least} bytes or more"
        raise InfeasibleError(
            f"not even {name}={sizes[0].size} fits into {format_bytes(memory)}: {sizes[0].reason}",
            f"give it more memory{more}",
            least,
        )
    return Fit(name, memory, sizes, best, ended, timed_out)


def _growth(total: Callable[[int], int]) -> tuple[int, int]:
    """What is held without a plan whatever the size is, and what each unit of it adds, in bytes.

    Args:
        total: what is held at a size.

    Raises:
        ModelError: the model does not work at size 1.
    """
    first = total(1)
    try:
        slope = max(total(2) - first, 1)
    except ModelError:
        slope = max(first, 1)
    return max(first - slope, 0), slope


def _next_size(low: int, high: int, tried: Mapping[int, Size], fixed: int, memory: int) -> int:
    """The size to try next, between the largest that fits and the smallest that does not.

    Every second time it is the one at which the least that the next larger size takes, in proportion, is all memory.
    """
    beyond = tried.get(high)
    if beyond is None:
        return min(2 * low, high - 1)
    if beyond.least is not None and len(tried) % 2 == 0:
        guess = int(high * (memory - fixed) / max(beyond.least - fixed, 1))
        return min(max(guess, low + 1), high - 1)
    return (low + high) // 2 if low else max(1, high // 2)


def _size_beyond(low: int, tried: Mapping[int, Size], fixed: int, memory: int) -> int | None:
    """A size above the largest that fits for which there is hope, though one between the two does not fit.

    It is the one at which the least that a larger size takes, in proportion, is all memory. A step that is a little
    larger may pack better in the arena.
    """
    failed = {one.size: one.least for one in tried.values() if not one.fits and one.least is not None}
    hopes = [int(size * (memory - fixed) / max(least - fixed, 1)) for size, least in failed.items()]
    return max((size for size in hopes if size > low and size not in tried), default=None)


def _planned(step: Step, strategy: Strategy, goal: Goal) -> Planned:
    """The plan of a size; what fits as it is has no need of recomputation.

    Raises:
        InfeasibleError: it does not fit.
    """
    assert goal.budget is not None
    held = step.footprint
    if held.total <= goal.budget:
        return without_plan(step, KeepAll())
    if held.resident + held.returned + held.activations <= goal.budget:
        with suppress(InfeasibleError):  # as it is; else with recomputation
            return planning.rewrite(step, KeepAll(), Goal(goal.budget, scope=TOTAL))
    return rewrite(step, strategy, goal)

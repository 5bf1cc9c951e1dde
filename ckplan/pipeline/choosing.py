"""The same step in several forms, each planned, and the best of them: regions in pieces, tables updated row by row.

To run a region in pieces costs compute and saves memory, as recomputation does, and which is the better bargain depends
on the goal. So steps with regions in pieces are planned like the step itself and compared by what the strategy compares
its own plans by. Only what can win is planned: a region counts where its largest tensor lies in memory at the peak of
the best plan so far, or at the op whose working set rules the budget out; pieces get finer as long as that pays.

Large tables are updated row by row where a budget is out of reach otherwise.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from ckplan.autodiff.optimizers.rows import updated_by_rows
from ckplan.autodiff.pieces.regions import BITS, KINDS, Pieces, Region
from ckplan.errors import InfeasibleError, UsageError
from ckplan.pipeline import planning
from ckplan.pipeline.clocked import rewrite_by_clock
from ckplan.pipeline.footprint_files import fixed
from ckplan.pipeline.goal import ACTIVATIONS, ANY, TOTAL, Goal
from ckplan.pipeline.plan_files import renamed
from ckplan.pipeline.planned import Planned, share_of
from ckplan.pipeline.step import Step
from ckplan.planner import lower_bound
from ckplan.planner.strategies import Strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.planner.strategies.base import one_more_forward
from ckplan.units import format_bytes

_log = logging.getLogger(__name__)

_LADDER = (4, 16, 64)
"""Into how many pieces a region may go. What they cost hardly depends on their number, as long as they are large."""

_BLOCKS = (2, 4, 8, 16, 32)
"""Into how many blocks the samples of a batch may go. Each is as many nodes as the network, and convolutions of one
sample are about as fast as those of many: the fewest that will do."""

_MOST_AT_ONCE = 16
"""Pieces of a loss head in one pass, at most: each of them adds to the whole gradient of the weight."""

_FEWEST = 16
"""Rows of the smallest piece: products of fewer are slow."""

_SMALL = 0.02
"""A region whose largest tensor is less than this ratio of the peak without a plan is left alone; of masks, all."""

_LARGE = 0.1
"""A region whose largest tensor is this ratio of what a file takes, or more, is worth a word where it stays whole."""

_PAYS = 0.003
"""By how much a finer cut has to lower the peak or the cost, as a ratio of it."""

_CHEAP = 1e-3
"""Extra compute below which no cut is cheaper."""


@dataclass(frozen=True)
class _Form:
    """A step in one of its forms.

    Attributes:
        pieces: into how many its regions go.
        step: the form.
        planned: the plan and its file; None where no plan keeps to the goal.
        least: bytes that no file of it was found below.
        refusal: why there is no plan.
    """

    pieces: Pieces
    step: Step
    planned: Planned | None
    least: int
    refusal: InfeasibleError | None = None


def rewrite(step: Step, strategy: Strategy, goal: Goal = ANY) -> Planned:
    """Plan a step and write the plan into a copy of its graph; see `ckplan.pipeline.planning.rewrite`.

    Where the plan is to decide on pieces (``--chunks auto``), the step is planned in several forms. A budget that none
    of them keeps to is given to the step with its large tables updated row by row. Where files are timed
    (``--cost clock``), it is planned until one costs what was asked for.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no plan of any form keeps to the budget.
    """
    if step.clock is not None:
        return rewrite_by_clock(step, strategy, goal, step.clock, partial(_rewrite, step, strategy))
    return _rewrite(step, strategy, goal)


def left_whole(step: Step, peak: int) -> list[Region]:
    """Regions that a plan was not to cut, and whose largest tensors are a good part of what a file takes.

    Args:
        step: a step.
        peak: bytes of activations of a file of it.
    """
    if step.recut is not None or any(region.pieces > 1 for region in step.regions):
        return []
    kinds = _rungs(step, ANY).keys() & {"attention", "loss"}
    return [region for region in step.regions if region.kind in kinds and region.bytes >= _LARGE * peak]


def _rewrite(step: Step, strategy: Strategy, goal: Goal) -> Planned:
    """Plan a step in its forms by what nodes cost, and see to a budget that its updates exceed."""
    try:
        return _in_pieces(step, strategy, goal)
    except InfeasibleError as error:
        form = None if step.by_rows is None or goal.scope not in (ACTIVATIONS, TOTAL) else step.by_rows()
        own = None if form is None else _for_form(form, strategy, _settled(step, goal))
        if form is None or own is None:
            raise
        _log.info("%s; updating %s row by row", error.message, ", ".join(updated_by_rows(form.model.graph)))
    return renamed(planning.rewrite(form, strategy, own), str(goal.applied(strategy)))


def _in_pieces(step: Step, strategy: Strategy, goal: Goal) -> Planned:
    """Plan a step, in several forms where the plan is to decide on pieces."""
    if step.recut is None or not _rungs(step, goal):
        try:
            return planning.rewrite(step, strategy, goal)
        except InfeasibleError as error:
            raise _with_advice(error, step, goal) from error
    goal = _settled(step, goal)
    if goal.seconds is not None:  # are for all forms together
        counts = [len(numbers) * (2 if kind == "loss" else 1) for kind, numbers in _rungs(step, goal).items()]
        goal = replace(goal, seconds=goal.seconds / (1 + sum(counts)))
    best = _form(step, step, Pieces(), strategy, goal)
    while best.planned is None or not best.planned.plan.interrupted:
        forms = ((pieces, _cut(step, pieces)) for pieces in _finer(best, step, goal))
        finer = [_form(step, form, pieces, strategy, goal, best) for pieces, form in forms if form is not None]
        found = min(finer, key=lambda form: _measure(form, step, strategy, goal), default=best)
        if not _pays(_measure(found, step, strategy, goal), _measure(best, step, strategy, goal)):
            break
        best = found
        _log.info("regions in pieces: %s", best.pieces)
    if best.planned is not None:
        return best.planned
    if best.refusal is not None:
        raise best.refusal
    return planning.rewrite(best.step, strategy, _for_form(best.step, strategy, goal) or goal)


def _with_advice(refusal: InfeasibleError, step: Step, goal: Goal) -> InfeasibleError:
    """The same refusal, with the advice to cut regions where there are some that are whole."""
    if not _rungs(step, goal) or any(region.pieces > 1 for region in step.regions):
        return refusal
    hint = f"{refusal.hint}, or let the plan run regions in pieces (--chunks auto)"
    return InfeasibleError(refusal.message, hint, refusal.least)


def _settled(step: Step, goal: Goal) -> Goal:
    """The same goal in bytes: a ratio is one of the step without pieces."""
    if goal.share is None:
        return goal
    if goal.scope == ACTIVATIONS:
        return replace(goal, budget=goal.bytes(step.baseline), share=None)
    return replace(goal, budget=goal.limit(share_of(step.footprint, goal)), share=None)


def _for_form(form: Step, strategy: Strategy, goal: Goal) -> Goal | None:
    """The goal for a form, whose extra compute counts from the step without pieces; None if it costs too much."""
    asked = goal.applied(strategy)
    if form.whole is None or not isinstance(asked, Auto) or asked.overhead < 0:
        return goal
    left = (1 + asked.overhead) * form.whole.problem.cost / form.problem.cost - 1
    return replace(goal, overhead=left) if left >= 0 else None


def _cut(step: Step, pieces: Pieces) -> Step | None:
    """A form of a step; None where there is none: a loss head in pieces may leave nothing of a batch to cut."""
    assert step.recut is not None
    try:
        return step.recut(pieces)
    except UsageError as error:
        _log.info("regions in pieces: %s: %s", pieces, error.message)
        return None


def _form(step: Step, form: Step, pieces: Pieces, strategy: Strategy, goal: Goal, best: _Form | None = None) -> _Form:
    """Plan a form of a step, unless a bound says that it is in vain: it needs too much, or it costs too much."""
    least, own = lower_bound(form.problem)[0], _for_form(form, strategy, goal)
    in_vain = own is None or (goal.budget is not None and least + _besides(form, goal) > goal.budget)
    if own is not None and goal.budget is not None and best is not None and best.planned is not None:
        most = (1 - _PAYS) * best.planned.plan.cost
        own, in_vain = replace(own, cheaper_than=most), in_vain or form.problem.cost >= most
    if own is None or in_vain:
        extra = 100 * (form.problem.cost / step.problem.cost - 1)
        _log.info("regions in pieces: %s: in vain, at %s and %+.1f %%", pieces, format_bytes(least), extra)
        return _Form(pieces, form, None, least)
    _log.info("planning with regions in pieces: %s", pieces)
    try:
        planned = planning.rewrite(form, strategy, own)
        return _Form(pieces, form, renamed(planned, str(goal.applied(strategy))), least)
    except InfeasibleError as error:
        return _Form(pieces, form, None, min(form.files.values(), default=least), error)


def _besides(form: Step, goal: Goal) -> int:
    """Bytes, of those that a budget is of, that are there beside the activations."""
    return 0 if goal.scope == ACTIVATIONS else fixed(form.footprint, goal) + form.footprint.returned


def _rungs(step: Step, goal: Goal) -> dict[str, list[int]]:
    """Into how many pieces the regions of each kind may go, those of little use left out.

    The batch stays whole for budgets of more than activations: no bound rules a number of blocks out there before it is
    planned.
    """
    worth = [region for region in step.regions if region.bytes >= _SMALL * step.baseline.peak_activations]
    found = {kind: max((r.rows * r.blocks for r in worth if r.kind == kind), default=0) for kind in KINDS}
    rungs = {kind: [n for n in _LADDER if rows >= _FEWEST * n] for kind, rows in found.items()}
    rungs["batch"] = [n for n in _BLOCKS if goal.scope == ACTIVATIONS and found["batch"] >= n]
    masks = sum(region.bytes for region in step.regions if region.kind == "masks")
    rungs["masks"] = [BITS] if masks >= _SMALL * step.baseline.peak_activations else []
    return {kind: numbers for kind, numbers in rungs.items() if numbers}


def _finer(form: _Form, step: Step, goal: Goal) -> Iterator[Pieces]:
    """The next finer cuts that may be better than a form."""
    budget = goal.budget is not None
    if budget and form.planned is not None and form.planned.plan.overhead <= _CHEAP:
        return
    tight = None if budget and form.planned is not None else _tight(form)
    gradients = {} if form.step.training is None else form.step.training.gradients
    for kind, numbers in _rungs(step, goal).items():
        if kind == "batch":
            if goal.budget is not None and form.planned is None:
                yield from _in_blocks(form, step, goal.budget, numbers)
            continue
        own = [region for region in form.step.regions if region.kind == kind]
        if tight is not None and not _are_there(kind, own, tight, gradients):
            continue
        finer = [number for number in numbers if number > getattr(form.pieces, kind)]
        if not finer:
            continue
        if kind != "loss":
            yield replace(form.pieces, **{kind: finer[0]})
            continue
        if form.pieces.passes == 1 and finer[0] <= _MOST_AT_ONCE:
            yield replace(form.pieces, loss=finer[0])
        if form.pieces.loss == 1 or any(region.passes == 1 for region in own):
            yield replace(form.pieces, loss=finer[0], passes=2)


def _in_blocks(form: _Form, step: Step, budget: int, numbers: Sequence[int]) -> Iterator[Pieces]:
    """The next cut of the batch, where nothing else keeps to a budget: no block needs less than its part of the bound.

    Where a plan without will do, what blocks gain is seldom worth planning graphs of so many nodes.
    """
    least = lower_bound(step.problem)[0]
    fitting = (number for number in numbers if number > form.pieces.batch and least <= number * budget)
    if number := next(fitting, 0):
        yield replace(form.pieces, batch=number)


def _tight(form: _Form) -> dict[str, int] | None:
    """What lies in memory where a form takes most, bytes by name, and the op; None where that is not known."""
    problem = form.step.problem
    if form.planned is not None:
        occupancy = form.planned.occupancy
        step = occupancy.timeline.peak_step
        held = {buffer.at(step).tensor: buffer.bytes for _, buffer in occupancy.alive(step)}
        return {**held, occupancy.timeline.steps[step].op: occupancy.timeline.peak_activations}
    if form.refusal is not None:
        return None
    bound, index = lower_bound(problem)
    op = problem.ops[index]
    return {**{problem.tensors[t].name: problem.tensors[t].bytes for t in (*op.inputs, *op.outputs)}, op.name: bound}


def _are_there(kind: str, regions: Sequence[Region], held: Mapping[str, int], gradients: Mapping[str, str]) -> bool:
    """Whether regions of a kind have a part in a peak: one of them, what it makes for a gradient, or masks together."""
    if kind == "masks":
        return sum(held.get(region.tensor, 0) for region in regions) > _PAYS * sum(held.values())
    return any(_is_there(region, held) or gradients.get(region.weight) in held for region in regions)


def _is_there(region: Region, held: Mapping[str, int]) -> bool:
    """Whether a region has a part in a peak: its op, a tensor of its own, or one as large as its largest one."""
    least = _SMALL * max(held.values(), default=0)
    own = any(name.startswith(f"{region.node}/") or name == region.node for name, n in held.items() if n >= least)
    return own or region.bytes // region.pieces in held.values()


def _measure(form: _Form, step: Step, strategy: Strategy, goal: Goal) -> tuple[float, float, float]:
    """What makes one form better than another, the lower the better; as the strategy compares its plans."""
    if form.planned is None:  # a bound is compared with bounds, and what files take with what files take
        return (3 if form.refusal is None else 2), form.least, 0
    peak, cost = form.planned.after.peak_activations, form.planned.plan.cost
    if goal.scope != ACTIVATIONS:
        return 0, cost, peak
    asked = goal.applied(strategy)
    if isinstance(asked, Auto) and goal.budget is None and asked.overhead < 0:
        room = one_more_forward(step.problem) - step.problem.cost or 1.0
        return 0, (cost - step.problem.cost) / room + peak / step.baseline.peak_activations, peak
    return strategy.merit(peak, cost, goal.budget)


def _pays(new: tuple[float, float, float], old: tuple[float, float, float]) -> bool:
    """Whether one measure is better than another by enough."""
    return new[0] < old[0] or (new[0] == old[0] and new[1] < (1 - _PAYS) * old[1])

"""From a goal to a file: plan a graph, write the plan into it, and see that onnxruntime will keep to it."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import replace

from ckplan import keys
from ckplan.errors import InfeasibleError
from ckplan.keys import BUDGET, BUDGET_OF
from ckplan.pipeline.goal import ACTIVATIONS, ANY, ARENA, TOTAL, Goal
from ckplan.pipeline.lowest import last_resorts
from ckplan.pipeline.planned import HOLDER, Planned, share_of
from ckplan.pipeline.step import Step
from ckplan.planner import Plan, lower_bound
from ckplan.planner.allocations import expected_arena, held_wherever
from ckplan.planner.cells import UNCUT, Layout
from ckplan.planner.exact.stages import proven_overhead
from ckplan.planner.strategies import Strategy
from ckplan.planner.strategies.auto import Auto
from ckplan.runtime.footprint import Footprint, Reservation, allocations_of, best_reservation, fitting_pools
from ckplan.runtime.occupancy import occupancy_of_executed
from ckplan.runtime.problem_of import problem_of
from ckplan.units import format_bytes
from ckplan.writer.control_edges import is_control
from ckplan.writer.describe import describe, describe_plan
from ckplan.writer.emit import write

_log = logging.getLogger(__name__)

_TRIES = 3
"""How often a strategy is asked for a plan, the budget of the later ones lowered by what files took beyond theirs."""

_TRIES_OF_ALL = 6
"""How often a file is written until what a process with it holds keeps to a budget of more than activations."""

_LITTLE_LESS = 0.995
"""How much less is asked for at least."""

_FITS = 4
"""How often pools are fitted to what a file with pools asks for."""

_CLOSE = 1.1
"""Ratio of what is alive up to which no second form of a file is tried for what its arena holds."""

_WORTH_RESERVING = 2**24
"""Bytes from which it is worth the time to write a file again for what a process takes less with it."""

_AT_ONCE = 1e-9
"""Seconds to search after the user has interrupted the search once: what is found first is taken."""


def rewrite(step: Step, strategy: Strategy, goal: Goal = ANY) -> Planned:
    """Plan a step as it is and write the plan into a copy of its graph; see `ckplan.pipeline.choosing` for its forms.

    A file can take a little more than its plan: control edges, dead buffers that onnxruntime hands on. Where that
    exceeds the budget, the plan is shaved by as many bytes, or the graph planned again for as many less. Where no such
    plan is found, those of the lowest peak are written, for `auto` those of other strategies, too: what is refused is
    what none of the files keeps to, and the smallest of them is the budget that the refusal names. The step without a
    plan is the answer where it keeps to a budget that no plan's file does, and where a file without a budget would take
    more than it. A step with an optimizer, whose process is what counts, gets one region for a run where that is less.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no plan keeps to the budget.
    """
    if goal.scope != ACTIVATIONS:
        return _within_footprint(step, strategy, goal)
    budget = goal.bytes(step.baseline)
    if budget is None:
        made = _written(step, goal.applied(strategy).solve(step.problem), None)
        leaner = made.drawback is None
        if keys.OPTIMIZER in step.model.metadata_props:
            if (most := made.footprint.running - _WORTH_RESERVING) >= 0:
                made = _reserving(made, most)
            leaner = leaner or made.footprint.running < step.footprint.running
        return made if leaner else without_plan(step, strategy)
    tried: list[tuple[Plan, int]] = []
    refusal: InfeasibleError | None = None
    for plan in _plans(step, strategy, goal, budget, tried):
        if isinstance(plan, InfeasibleError):
            refusal = plan
            continue
        if any(other.schedule == plan.schedule for other, _ in tried):
            continue
        if step.files.get(plan.schedule, 0) <= budget:
            made = _written(step, plan, budget)
            if made.after.peak_activations <= budget:
                return made if not tried else _proven_for(made, budget)
        tried.append((plan, step.files[plan.schedule]))
        told = (format_bytes(step.files[plan.schedule]), format_bytes(plan.predicted.peak_activations))
        _log.info("the file would take %s, its plan %s", *told)
    if step.baseline.peak_activations <= budget:
        return without_plan(step, strategy, budget)
    if not tried:
        assert refusal is not None
        raise refusal
    smallest, taken = min(tried, key=lambda entry: entry[1])
    by = "" if smallest.strategy == str(strategy) else f", by `{smallest.strategy}`"
    raise InfeasibleError(
        f"strategy `{strategy}` has no plan whose file stays within the budget of {format_bytes(budget)}: the least "
        f"that a file takes is {format_bytes(taken)}{by}; no schedule has less than "
        f"{format_bytes(smallest.lower_bound)}",
        f"the smallest budget that a file was made for is {taken} bytes; raise it",
    )


def _plans(
    step: Step, strategy: Strategy, goal: Goal, budget: int, tried: Sequence[tuple[Plan, int]]
) -> Iterator[Plan | InfeasibleError]:
    """Plans to write, one after the other until a file keeps to the budget.

    Args:
        step: what to plan.
        strategy: how to plan.
        goal: what to keep to.
        budget: bytes of activations.
        tried: the plans whose files exceed the budget, with the bytes that these take; grows meanwhile.
    """
    target, interrupted = budget, False
    for _ in range(_TRIES):
        wanted = replace(goal, seconds=_AT_ONCE) if interrupted else goal
        try:
            plan = wanted.applied(strategy).solve(step.problem, target)
        except InfeasibleError as error:
            yield error
            break
        interrupted = interrupted or plan.interrupted  # only strategies that take a time limit can be
        yield replace(plan, interrupted=interrupted)
        if not tried:
            break
        target = min(target - 1, _left_for(budget, *tried[-1]))
        # A file often takes some KiB more than its plan: to search anew for so much less takes seconds, and ends alike.
        asked = wanted.applied(strategy)
        if isinstance(asked, Auto) and (near := asked.shaved(step.problem, tried[-1][0], target)) is not None:
            yield near
            target = min(target, _left_for(budget, *tried[-1]))
        if target < plan.lower_bound:
            break
        _log.info("planning again for %s", format_bytes(target))
    if interrupted:
        return
    plans = last_resorts(step, strategy, goal, budget)
    fitting = [plan for plan in plans if plan.predicted.peak_activations <= budget]
    yield from sorted(fitting, key=lambda plan: plan.cost)
    for plan in sorted(plans, key=lambda plan: plan.predicted.peak_activations):
        if any(taken <= plan.predicted.peak_activations for _, taken in tried):
            break  # no file takes less than its plan
        yield plan


def _left_for(budget: int, plan: Plan, taken: int) -> int:
    """Bytes that a plan may have if its file takes as much more than the plan as another one's does."""
    return budget - (taken - plan.predicted.peak_activations)


def _within_footprint(step: Step, strategy: Strategy, goal: Goal) -> Planned:
    """Plan for activations that leave room for everything else, less of them where the arena still takes too much.

    What the arena takes does not follow from the peak: it grows by regions, and lays a run's tensors out in one block.
    Where it takes too much, tensors are reserved first of all, so that a run may lie in one region. What is refused is
    what the plan of the lowest peak does not keep to, either: it is the same for every budget, so the one that a
    refusal names is kept to.

    Raises:
        UsageError: the goal does not fit the strategy.
        InfeasibleError: no file keeps to the budget.
    """
    limit = goal.limit(share_of(step.footprint, goal))
    assert limit is not None  # see `Goal.of`
    fixed = _fixed(step.footprint, goal)
    target = limit - fixed - step.footprint.returned
    if target <= 0:
        named = "parameters, state, inputs, the session and outputs alone take" if fixed else "outputs alone take"
        raise InfeasibleError(
            f"{named} {format_bytes(limit - target)}, the budget of what {HOLDER[goal.scope]} holds is "
            f"{format_bytes(limit)}",
            "raise it, or choose an optimizer with less state",
        )
    lowest: Planned | None = None
    least, smallest = lower_bound(step.problem)[0], None
    for _ in range(_TRIES_OF_ALL):
        if target < least:
            break
        try:
            made = rewrite(step, strategy, replace(goal, budget=target, share=None, scope=ACTIVATIONS))
        except InfeasibleError:
            break
        made, taken = _with_reservation(made, goal, limit, smallest)
        if taken <= (room := limit - _fixed(made.footprint, goal)):
            return _told_of_all(made, goal, limit)
        smallest = taken if smallest is None else min(taken, smallest)
        _log.info("%s with the file would hold %s", HOLDER[goal.scope], format_bytes(limit - room + taken))
        lowest = lowest or _lowest(step, strategy, goal, limit)
        target = min(target - 1, _next_target(made, room, taken))
    return _told_of_all(lowest or _lowest(step, strategy, goal, limit), goal, limit)


def _lowest(step: Step, strategy: Strategy, goal: Goal, limit: int) -> Planned:
    """The cheapest of the plans of lowest peaks whose file keeps to a budget of more than activations.

    The one of the lowest peak of all need not be among them: a peak that is a little higher may pack better. They are
    the same for every budget, and so is what the best of their files takes.

    Raises:
        InfeasibleError: none does.
    """
    best: Planned | None = None
    for plan in sorted(last_resorts(step, strategy, goal, 0), key=lambda plan: plan.cost):
        bound = _fixed(step.footprint, goal) + plan.predicted.peak_activations
        if best is not None and bound >= share_of(best.footprint, goal):
            continue  # no file takes less than its plan, and a plan adds nodes to what a session holds
        made, _ = _with_reservation(_written(step, plan, None), goal, limit)
        if share_of(made.footprint, goal) <= limit:
            return made
        best = made if best is None else min(best, made, key=lambda made: share_of(made.footprint, goal))
    if best is None:
        raise InfeasibleError(
            f"strategy `{strategy}` has no plan within its overhead for which {HOLDER[goal.scope]} holds no more than "
            f"{format_bytes(limit)}",
            "allow more overhead, or raise the budget",
        )
    least, fixed = share_of(best.footprint, goal), _fixed(best.footprint, goal)
    moment = best.after.steps[best.after.peak_step]
    parts = f"for a peak of {format_bytes(moment.activations)} at '{moment.op}'"
    if fixed:
        parts = (
            f"{format_bytes(fixed)} of parameters, state, inputs and the session, and an arena of "
            f"{format_bytes(least - fixed)} {parts}"
        )
    raise InfeasibleError(
        f"strategy `{strategy}` has no plan with which {HOLDER[goal.scope]} holds no more than {format_bytes(limit)}: "
        f"the least that was found is {format_bytes(least)}, {parts}; the arena grows in large steps",
        f"raise the budget to {least} bytes, or choose a smaller batch (--dim)",
        least,
    )


def _told_of_all(made: Planned, goal: Goal, limit: int) -> Planned:
    """The same file, which says what budget of more than activations it keeps to."""
    made.model.metadata_props[BUDGET] = str(limit)
    made.model.metadata_props[BUDGET_OF] = goal.scope
    return replace(made, budget=limit, scope=goal.scope)


def _with_reservation(made: Planned, goal: Goal, limit: int, most: int | None = None) -> tuple[Planned, int]:
    """A plan's file, and what its arena takes; with tensors reserved first, or in pools, if it takes too much without.

    Args:
        made: the plan in a file.
        goal: what the budget is of.
        limit: the budget in bytes.
        most: what the arena of the best file yet takes: another one that takes more is not worth writing.
    """
    room, taken = limit - _fixed(made.footprint, goal), _taken(made, goal.scope)
    if taken > room:
        best = max(room, taken if most is None else most)
        made = in_pools(made, best, room) if goal.scope == ARENA else _reserving(made, best)
    return made, _taken(made, goal.scope)


def _reserving(made: Planned, most: int) -> Planned:
    """The same plan in a file that reserves tensors first, if a process takes less then, and no more than so much."""
    reserved, expected = best_reservation(made.executed, made.model)
    if not reserved or expected > most:
        return made
    again = _written(made.step, made.plan, made.budget, reserved)
    return again if again.footprint.running < made.footprint.running else made


def in_pools(made: Planned, most: int | None = None, enough: int | None = None) -> Planned:
    """The same plan in a file whose arena is cut into pools, if it holds less then.

    A second buffer for a tensor, where that lies within the peak, is an address of its own: it may fit in between, or
    may be in the way. So files without are tried where those with them leave large gaps.

    Args:
        made: a plan in a file.
        most: bytes; where the arena would hold more, it is not worth writing.
        enough: bytes; where it holds no more, no smaller one is looked for.
    """
    close = int(_CLOSE * expected_arena(allocations_of(made.executed, made.model)).live) if enough is None else enough
    best = made
    for sparing in (True, False):
        found = _in_pools(made, sparing, best.footprint.held if most is None else most, enough)
        best = min(best, found, key=lambda made: made.footprint.held)
        if best.footprint.held <= close:
            break
    return best


def _in_pools(made: Planned, sparing: bool, most: int, enough: int | None) -> Planned:
    """The same plan in a file with cells, and with placeholders beside these if need be.

    Addresses depend on the order of all nodes: they run in that in which they did before. That can change which buffers
    are handed on, so a file is written first whose pools are for nothing else. What is made for places can still change
    what the pools are to fit: then others are tried, and at last such as depend less on that.

    Args:
        made: a plan in a file.
        sparing: see `ckplan.writer.emit.write`.
        most: bytes; see `in_pools`.
        enough: bytes; see `in_pools`.
    """
    best, plain = made, _cut(made, made, UNCUT, sparing)
    source = plain
    for seed in range(_FITS + 1):
        pools = fitting_pools(source.executed, source.model, seed, places=seed < _FITS)
        if pools is None:
            continue
        if pools.held > min(most, best.footprint.held):
            break
        source = _cut(made, source, pools, sparing)
        if not _holds(source):
            continue
        best = min(best, source, key=lambda made: made.footprint.held)
        if source.footprint.held <= pools.held:
            break
    if enough is None or best.footprint.held > enough:
        best = _steered(made, plain, best, sparing, min(most, best.footprint.held), enough)
    return best


def _steered(made: Planned, source: Planned, best: Planned, sparing: bool, below: int, enough: int | None) -> Planned:
    """A file with placeholders beside the cells, if it holds less than some bytes; else the best one without.

    Each takes some nodes, with shapes of their own, so they are fitted again to the file that has them.
    """
    pools = None
    for seed in range(_FITS):
        pools = fitting_pools(source.executed, source.model, seed, below=below, enough=enough, start=pools)
        if pools is None:
            break
        source = _cut(made, source, pools, sparing)
        if source.footprint.held < below and _holds(source):
            best, below = source, source.footprint.held
        if source.footprint.held <= pools.held:
            break
    return best


def _holds(made: Planned) -> bool:
    """Whether the arena holds what it is said to, in whatever order its regions lie."""
    return held_wherever(allocations_of(made.executed, made.model)) <= made.footprint.held


def _cut(made: Planned, source: Planned, layout: Layout, sparing: bool) -> Planned:
    """A plan in a file whose arena is cut into cells, nodes in the order in which another file of it runs."""
    order = [str(value.name) for node in source.executed.graph for value in node.outputs]
    return _written(made.step, made.plan, made.budget, pools=layout, order=order, sparing=sparing)


def _taken(made: Planned, scope: str) -> int:
    """What the arena of a file takes, of what a budget is of."""
    return made.footprint.held if scope == ARENA else made.footprint.running


def _next_target(made: Planned, room: int, taken: int) -> int:
    """Bytes of activations to plan for after a file whose arena takes more than there is room for.

    With as many gaps in proportion as there are now.
    """
    peak, returned = made.after.peak_activations, made.footprint.returned
    return int(peak * min(_LITTLE_LESS, max(room - returned, 0) / max(taken - returned, 1)))


def renamed(made: Planned, strategy: str) -> Planned:
    """The same by a strategy as it was asked for, where it was planned with other limits."""
    return made if made.step.whole is None else by_strategy(made, strategy)


def by_strategy(made: Planned, strategy: str) -> Planned:
    """The same by a strategy of another name, in its metadata, too."""
    if made.plan.strategy == strategy:
        return made
    plan = replace(made.plan, strategy=strategy)
    describe_plan(made.model, plan)
    return replace(made, plan=plan)


def _fixed(found: Footprint, goal: Goal) -> int:
    """Those of them that are there whatever the plan is."""
    return found.resident if goal.scope == TOTAL else 0


def without_plan(step: Step, strategy: Strategy, budget: int | None = None) -> Planned:
    """The step without a plan, as `ckplan grad` writes it, as a plan of a strategy that repeats nothing."""
    return _kept(step, replace(step.kept, strategy=str(strategy)), budget)


def _kept(step: Step, plan: Plan, budget: int | None) -> Planned:
    """The step without a plan, as a plan that does the same."""
    plan = step.counted(plan)
    model = step.ordered.clone()
    if step.training is None:  # the graph as it came
        describe(model, problem_of(model, step.runtime), plan, sum(map(is_control, model.graph)), step.baseline)
    describe_plan(model, plan)
    if budget is not None:
        model.metadata_props[BUDGET] = str(budget)
    return Planned(step, plan, model, step.occupancy, step.executed, budget)


def _written(
    step: Step,
    plan: Plan,
    budget: int | None,
    reserved: Reservation = (),
    pools: Layout | None = None,
    order: Sequence[str] = (),
    sparing: bool = True,
) -> Planned:
    bare = not reserved and pools is None
    if step.training is not None and bare and plan.schedule == step.kept.schedule:
        step.files[plan.schedule] = step.baseline.peak_activations
        return _kept(step, plan, budget)
    _log.info("writing the plan into the graph, and asking onnxruntime what it makes of it")
    plan = step.counted(plan)
    written = write(
        step.fused, plan, reserved=reserved, pools=pools, order=order, sparing=sparing, runtime=step.runtime
    )
    if budget is not None:
        written.model.metadata_props[BUDGET] = str(budget)
    occupancy = occupancy_of_executed(written.executed, written.model, written.numbers)
    if pools is None:  # which are counted where they are made
        step.files[plan.schedule] = occupancy.timeline.peak_activations
    return Planned(step, plan, written.model, occupancy, written.executed, budget)


def _proven_for(made: Planned, budget: int) -> Planned:
    """The same with the bound for the budget that was asked for, where the plan was made for less."""
    plan = made.plan
    if not plan.overhead_bound:
        return made
    problem = made.step.problem
    bound = (problem.cost + proven_overhead(problem, budget)) / plan.base_cost - 1
    return replace(made, plan=replace(plan, overhead_bound=min(max(bound, 0.0), plan.overhead)))


def rewrite_as(step: Step, plan: Plan) -> Planned:
    """Write a plan that exists into a copy of the graph that it was made for."""
    return _written(step, plan, None)

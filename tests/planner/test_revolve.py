"""Optimal checkpointing of chains."""

from __future__ import annotations

import math
from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckplan.errors import InfeasibleError, UsageError
from ckplan.planner import Kind, Problem, simulate
from ckplan.planner.instances import forward_overhead, naive_bytes, parse_kusumoto
from ckplan.planner.strategies import parse_strategy
from ckplan.planner.strategies.chain import make_chain
from ckplan.planner.strategies.revolve import Revolve, stage_cuts
from tests.planner.budgets import check_budgets
from tests.planner.networks import resnet50, small_unet
from tests.planner.problems import ProblemBuilder, chain, problems

PUBLISHED = [((10, 2), 20), ((10, 3), 15), ((50, 5), 122), ((100, 10), 222)]


@settings(deadline=None, max_examples=60)
@given(problems())
def test_budgets(problem: Problem) -> None:
    check_budgets(Revolve(), problem)


def least_extra_steps(steps: int, checkpoints: int) -> int:
    """Forward steps that reversing a chain of equal steps takes at least, besides the one that each reversal records.

    Griewank & Walther's closed form ``r n - beta(s + 1, r - 1)`` with ``beta(s, r) = (s + r)! / (s! r!)`` and the
    least ``r`` with ``beta(s, r) >= n``, for n steps and s states that fit into memory, the initial one included.
    """
    repeats = 0
    while math.comb(checkpoints + repeats, repeats) < steps:
        repeats += 1
    return repeats * steps - (math.comb(checkpoints + repeats, repeats - 1) if repeats else 0)


@cache
def least_steps(steps: int, checkpoints: int) -> int:
    """By trying every place for the next checkpoint."""
    if steps == 1:
        return 0
    if checkpoints == 1:
        return steps * (steps - 1) // 2
    return min(
        split + least_steps(steps - split, checkpoints - 1) + least_steps(split, checkpoints)
        for split in range(1, steps)
    )


@pytest.mark.parametrize(("case", "steps"), PUBLISHED)
def test_published_figures(case: tuple[int, int], steps: int) -> None:
    assert least_extra_steps(*case) == steps


@given(st.integers(1, 60), st.integers(1, 12))
@settings(deadline=None)
def test_the_closed_form_is_the_minimum(steps: int, checkpoints: int) -> None:
    assert least_extra_steps(steps, checkpoints) == least_steps(steps, checkpoints)


def test_binomial_lengths_repeat_equally_often() -> None:
    # A chain of beta(s, r) steps needs r runs of each step but for those that are held.
    for checkpoints, repeats in ((2, 3), (3, 3), (5, 2)):
        length = math.comb(checkpoints + repeats, repeats)
        saved = math.comb(checkpoints + repeats, repeats - 1)
        assert least_extra_steps(length, checkpoints) == repeats * length - saved


def unit_chain(steps: int, tape: int) -> Problem:
    """A chain of equal steps on states of one byte; each step records a tape that its reversal reads.

    Without tape the reversal of a step reads the state before it. Gradients take no memory.
    """
    build = ProblemBuilder()
    states = [build.tensor(1, Kind.INPUT)]
    tapes = []
    for step in range(steps):
        outputs = [build.tensor(1)]
        if tape:
            tapes.append(build.tensor(tape))
            outputs.append(tapes[-1])
        build.op([states[-1]], outputs, name=f"step{step}")
        states.append(outputs[0])
    gradient = build.tensor(0)
    build.op([], [gradient], backward=True, name="seed", cost=0.0)
    for step in reversed(range(steps)):
        arriving, gradient = gradient, build.tensor(0)
        build.op([arriving, tapes[step] if tape else states[step]], [gradient], backward=True, cost=0.0)
    return build.build()


CASES = [case for case, _ in PUBLISHED] + [(1, 1), (7, 1), (30, 4), (200, 12)]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_the_schedule_reaches_the_optimum(case: tuple[int, int]) -> None:
    """With tapes so large that only one fits, the extra runs of steps are Revolve's.

    Besides the initial state, which is no activation, and the other s - 1 checkpoints, a step that runs
    takes its input and its output.
    """
    steps, checkpoints = case
    problem = unit_chain(steps, tape=checkpoints + 4)
    plan = Revolve(stages=200).solve(problem, budget=checkpoints + 1 + checkpoints + 4)
    assert plan.recomputed == least_extra_steps(*case)


@pytest.mark.parametrize("case", CASES[:-1], ids=str)
def test_without_tapes_reversals_run_nothing_themselves(case: tuple[int, int]) -> None:
    steps, checkpoints = case
    plan = Revolve(stages=200).solve(unit_chain(steps, tape=0), budget=checkpoints + 1)
    # The forward pass of the problem runs all steps but Revolve's only those before the last reversal.
    assert plan.recomputed == least_extra_steps(*case) - (steps - 1)


def test_less_memory_than_one_checkpoint_is_refused() -> None:
    with pytest.raises(InfeasibleError):
        Revolve().solve(unit_chain(9, tape=0), budget=1)


def test_a_small_budget_is_met_by_running_stages_many_times() -> None:
    problem = chain(40)
    plan = Revolve().solve(problem, budget=800)
    runs = [plan.schedule.count(index) for index in problem.forward]
    assert max(runs) > 2
    assert plan.predicted.peak_activations <= 800


def test_without_a_budget_the_extra_cost_is_limited() -> None:
    problem = chain(60)
    plans = [Revolve(max_extra=extra).solve(problem) for extra in (0.5, 1.0, 2.0, 0.0)]
    extras = [forward_overhead(problem, plan.schedule) for plan in plans]
    peaks = [plan.predicted.peak_activations for plan in plans]
    assert extras[0] <= 0.5
    assert extras[1] <= 1.0
    assert extras[2] <= 2.0 < extras[3]
    assert peaks[0] > peaks[1] > peaks[2] > peaks[3]


@pytest.mark.parametrize("options", ["stages=0", "slots=0", "max_extra=-1"])
def test_bad_options_are_named(options: str) -> None:
    with pytest.raises(
        UsageError,
        match=f"option `{options.partition('=')[0]}` of strategy `revolve` is ",
    ):
        parse_strategy(f"revolve:{options}")


@settings(deadline=None, max_examples=60)
@given(problems())
def test_stages_hold_all_ops_once(problem: Problem) -> None:
    made = make_chain(problem, stage_cuts(problem, 5))
    assert [index for stage in made.forward for index in stage] == list(problem.forward)
    assert sorted(index for stage in made.backward for index in stage) == list(problem.backward)
    assert len(made.forward) <= 5
    assert (made.record >= made.advance).all()
    assert (made.record_cost >= made.advance_cost).all()


def test_the_parts_of_the_whole_are_a_schedule_of_the_model() -> None:
    problem = chain(6)
    made = make_chain(problem, stage_cuts(problem, 100))
    # A cut after each op: the state is 100 bytes everywhere, and so is the gradient that arrives.
    assert len(made.forward) == len(problem.forward)
    assert made.added[0, 1:].tolist() == [100.0] * 12
    # Two gradients are alive between the parts of a layer that its two stages stand for.
    assert made.gradient.tolist()[-1] == 0.0
    assert set(made.gradient.tolist()[2:-1]) <= {100.0, 200.0}


@pytest.mark.parametrize(("network", "overhead", "peak"), [(resnet50, 0.110, 0.109), (small_unet, 0.3, 0.25)])
def test_networks(network: type, overhead: float, peak: float) -> None:
    problem = parse_kusumoto(network().text())
    naive = naive_bytes(problem)
    plan = Revolve().solve(problem, int(0.3 * naive))
    assert simulate(problem, plan.schedule).peak_activations <= 0.3 * naive
    assert forward_overhead(problem, plan.schedule) <= overhead
    assert Revolve().solve(problem).predicted.peak_activations <= peak * naive

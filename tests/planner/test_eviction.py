"""Eviction, retaining, minimum cuts, the search and the frontier that are made of them."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Set

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ckplan.planner import Problem, simulate
from ckplan.planner.eviction.evict import Pass, evict, evicting
from ckplan.planner.eviction.weights import Weights
from ckplan.planner.frontier import Effort, Kept, cheapest, frontier, knee, lowest, undominated
from ckplan.planner.minimum_cut import between_passes
from ckplan.planner.order import best_order
from ckplan.planner.overhead_bound import least_overhead
from ckplan.planner.peak import live_bytes, peak_of
from ckplan.planner.problem import Kind, Op, Tensor
from ckplan.planner.recompute import recompute_schedule
from ckplan.planner.retain import retain
from ckplan.planner.search import squeeze
from ckplan.planner.strategies import parse_strategy
from tests.planner.problems import ProblemBuilder, chain, problems


@given(problem=problems())
def test_evicted_schedules_are_valid_at_any_budget(problem: Problem) -> None:
    order = best_order(problem)
    peak = peak_of(problem, order)
    for share in (0.9, 0.6, 0.3):
        schedule = evict(problem, int(peak * share), order)
        assert schedule is not None
        assert [step.activations for step in simulate(problem, schedule).steps] == live_bytes(
            problem, schedule
        ).tolist()
        assert [index for index in schedule if problem.ops[index].backward] == [
            index for index in order if problem.ops[index].backward
        ]


@given(problem=problems())
def test_a_limit_of_the_cost_changes_no_schedule_that_keeps_to_it(problem: Problem) -> None:
    order = best_order(problem)
    peak = peak_of(problem, order)
    for share, weights in itertools.product((0.7, 0.4), (Weights(), Weights(ahead=True, size_power=0.7))):
        free = evict(problem, int(peak * share), order, weights)
        assert free is not None
        cost = problem.schedule_cost(free)
        # Since Python 3.12 `sum` makes up for rounding, which a cost that grows with the schedule does not.
        for most in (cost * (1 + 1e-9), 1.05 * problem.cost, 1.5 * problem.cost):
            limited = evict(problem, int(peak * share), order, weights, most)
            assert limited == (free if cost <= most else None)


@settings(max_examples=200)
@given(problem=problems(), share=st.floats(0.2, 0.9), seed=st.integers(0, 2**20), most=st.sampled_from((1.3, math.inf)))
def test_passes_that_are_said_to_come_to_the_same_do(problem: Problem, share: float, seed: int, most: float) -> None:
    order, rng, count = best_order(problem), random.Random(seed), len(problem.tensors)
    budget = int(share * peak_of(problem, order))

    def run(dearer: Set[int]) -> Pass:
        bias = [4.0 if tensor in dearer else 1.0 for tensor in range(count)]
        return evicting(problem, budget, order, Weights(bias=bias), most * problem.cost)

    def some(ratio: float) -> set[int]:
        return {tensor for tensor in range(count) if rng.random() < ratio}

    before = some(rng.choice((0, 0.2, 0.6, 1)))
    found = run(before)
    spared = before - found.evicted
    others = (
        before | (some(0.5) - found.evicted),
        before - found.evicted - some(0.5),
        spared,
        before | some(1),
        some(0.5),
    )
    for dearer in others:
        if found.is_same(dearer, instead_of=before):
            assert run(dearer).schedule == found.schedule
    assert found.is_same(before, instead_of=before)


@given(problem=problems())
def test_only_what_may_be_recomputed_is_evicted(problem: Problem) -> None:
    order = best_order(problem)
    peak = peak_of(problem, order)
    for share in (0.9, 0.7, 0.5, 0.3):
        schedule = evict(problem, int(peak * share), order)
        assert schedule is not None
        again = {index for index, times in Counter(schedule).items() if times > 1}
        assert all(problem.ops[index].recomputable and not problem.ops[index].backward for index in again)


def test_eviction_keeps_to_the_budget_of_a_chain() -> None:
    problem = chain(64)
    order = best_order(problem)
    peak = peak_of(problem, order)
    for share in (0.8, 0.5, 0.3):
        schedule = evict(problem, int(peak * share), order)
        assert schedule is not None
        assert peak_of(problem, schedule) <= peak * share
    assert evict(problem, int(peak * 0.3), order, most_cost=problem.cost * 1.01) is None


@given(problem=problems())
def test_retaining_saves_compute_within_the_limit(problem: Problem) -> None:
    schedule = recompute_schedule(problem, ())
    peak = peak_of(problem, schedule)
    for limit in (peak, peak * 2):
        shorter = retain(problem, schedule, limit)
        assert peak_of(problem, shorter) <= limit
        assert problem.schedule_cost(shorter) <= problem.schedule_cost(schedule)


def test_retaining_undoes_everything_where_there_is_room() -> None:
    problem = chain(12)
    schedule = recompute_schedule(problem, ())
    assert problem.schedule_cost(schedule) > problem.cost
    room = peak_of(problem, range(len(problem.ops))) * 2
    assert sorted(retain(problem, schedule, room)) == list(range(len(problem.ops)))


def test_what_will_cost_too_much_is_not_gone_on_with() -> None:
    problem = chain(12)
    schedule = recompute_schedule(problem, ())
    room = peak_of(problem, range(len(problem.ops))) * 2
    assert problem.schedule_cost(retain(problem, schedule, room, problem.cost)) == problem.cost
    assert retain(problem, schedule, room, problem.cost * 0.99) == schedule


def test_of_what_an_op_makes_again_only_what_is_read_has_to_stay() -> None:
    """As where queries, keys and values are split from one product, and values are read last."""
    build = ProblemBuilder()
    large, small, reduced, gradient = (build.tensor(size) for size in (100, 10, 10, 10))
    build.op([build.tensor(100, Kind.INPUT)], [large, small], name="split", cost=5.0)
    build.op([large], [reduced])
    build.op([reduced], [build.tensor(1, Kind.OUTPUT)], name="loss")
    build.op([large], [gradient], backward=True)
    build.op([small, gradient], [build.tensor(1, Kind.OUTPUT)], backward=True)
    problem = build.build()
    schedule = [0, 1, 2, 0, 3, 0, 4]
    assert retain(problem, schedule, peak_of(problem, schedule)) == [0, 1, 2, 3, 4]


def brute_force_cut(problem: Problem, price: float) -> float:
    """The cheapest choice of forward ops to run again, by trying all."""
    root = problem.view_root
    best = float("inf")
    for size in range(len(problem.forward) + 1):
        for again in map(set, itertools.combinations(problem.forward, size)):
            if any(not problem.ops[index].recomputable for index in again):
                continue
            read = {root[t] for index in again for t in problem.ops[index].inputs} | set(problem.stashed)
            held = [
                t
                for t in read
                if problem.producer[t] >= 0
                and problem.producer[t] not in again
                and problem.tensors[t].kind.value == "activation"
            ]
            cost = sum(problem.ops[index].cost for index in again)
            best = min(best, cost + price * sum(problem.tensors[t].bytes for t in held))
    return best


@settings(max_examples=60)
@given(problem=problems(max_forward=7))
def test_the_minimum_cut_is_the_cheapest_choice(problem: Problem) -> None:
    for price in (0.001, 0.05, 1.0):
        cost = between_passes(problem).solve(price)[1]
        assert cost == pytest.approx(brute_force_cut(problem, price), rel=1e-6, abs=1e-6 * problem.cost)


@settings(max_examples=60, deadline=None)
@given(problem=problems())
def test_the_bound_on_overhead_holds_for_every_strategy(problem: Problem) -> None:
    for name in ("memory", "evict", "chen", "mincut"):
        plan = parse_strategy(name).solve(problem)
        bound = least_overhead(problem, plan.predicted.peak_activations)
        assert bound <= plan.cost - plan.base_cost + 1e-6 * plan.base_cost


def test_the_bound_on_overhead_says_something() -> None:
    problem = chain(40)
    plan = parse_strategy("search").solve(problem, budget=1500)
    assert 0 < plan.overhead_bound <= plan.overhead
    assert plan.overhead - plan.overhead_bound < 0.05


def test_what_may_run_once_is_kept_for_a_view_that_has_to_be_made_again() -> None:
    """When `root` is made again, `view` is of a copy that is gone; its op reads `other`, which is made of `once`."""
    sizes = {"x": 4, "once": 2, "other": 4, "root": 8, "view": 0, "w": 2, "u": 2, "g": 1, "h": 1, "k": 2, "l": 2}
    tensors = [Tensor(name, size, Kind.ACTIVATION if name != "x" else Kind.INPUT) for name, size in sizes.items()]
    ops = (
        Op("once", (0,), (1,), 5.0, recomputable=False),
        Op("other", (1,), (2,), 0.1),
        Op("root", (0,), (3,)),
        Op("view", (3, 2), (4,), 5.0, views={4: 3}),
        Op("w", (2,), (5,)),
        Op("u", (5,), (6,)),
        Op("g", (6,), (7,), backward=True),
        Op("h", (7, 3), (8,), backward=True),
        Op("k", (8, 2), (9,), 5.0, backward=True),
        Op("l", (9, 4), (10,), 0.1, backward=True),
    )
    problem = Problem(ops, tuple(tensors))
    for budget in range(9, 18):
        schedule = evict(problem, budget, range(len(ops)))
        assert schedule is not None
        assert schedule.count(0) == 1
        assert simulate(problem, schedule)


def test_searches_repeat_themselves() -> None:
    problem = chain(30)
    plans = [parse_strategy("search:steps=10,seed=3").solve(problem, budget=1300).schedule for _ in range(2)]
    assert plans[0] == plans[1]


@settings(max_examples=40, deadline=None)
@given(problem=problems())
def test_a_frontier_has_no_point_that_another_beats(problem: Problem) -> None:
    points = frontier(problem, Effort(steps=2), most_cost=problem.cost * 1.4)
    costs = [problem.schedule_cost(schedule) for schedule in points]
    peaks = [peak_of(problem, schedule) for schedule in points]
    assert costs == sorted(costs)
    assert peaks == sorted(peaks, reverse=True)
    assert len(set(peaks)) == len(peaks)
    assert max(costs) <= problem.cost * 1.4 + 1e-9
    assert knee(problem, points) in points
    assert undominated(problem, points) == points


def test_an_overhead_is_kept() -> None:
    problem = chain(40)
    tight, loose = (parse_strategy(f"auto:overhead={share}").solve(problem) for share in (0.05, 0.2))
    assert tight.overhead <= 0.05 + 1e-9
    assert loose.overhead <= 0.2 + 1e-9
    assert loose.predicted.peak_activations < tight.predicted.peak_activations


def test_an_interrupted_search_keeps_the_best_so_far(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = chain(40)

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("ckplan.planner.frontier.improve", interrupt)
    plan = parse_strategy("search").solve(problem, budget=1500)
    assert plan.interrupted
    assert plan.predicted.peak_activations <= 1500


def test_the_lowest_peak_stays_within_its_cost() -> None:
    problem = chain(40)
    low = lowest(problem, problem.cost * 1.1, Effort())
    assert problem.schedule_cost(low) <= problem.cost * 1.1
    assert peak_of(problem, low) < peak_of(problem, best_order(problem))
    assert cheapest(problem, peak_of(problem, low), Effort(steps=0)) is not None


@given(problem=problems())
def test_squeezing_lowers_the_peak_within_the_cost(problem: Problem) -> None:
    order = best_order(problem)
    for most in (problem.cost * 1.1, problem.cost * 1.5):
        squeezed = squeeze(problem, order, most, order, steps=6)
        assert peak_of(problem, squeezed) <= peak_of(problem, order)
        assert problem.schedule_cost(squeezed) <= most
        assert simulate(problem, squeezed).peak_activations == peak_of(problem, squeezed)


def test_squeezing_finds_less_than_the_seeds_of_a_chain() -> None:
    problem = chain(64)
    most = problem.cost * 1.1
    assert peak_of(problem, lowest(problem, most, Effort(16))) < peak_of(problem, lowest(problem, most, Effort(0)))


def test_seeds_that_were_interrupted_are_made_anew() -> None:
    interruptions = [True, False]

    def numbers() -> Iterator[int]:
        yield 1
        if interruptions.pop(0):
            raise KeyboardInterrupt
        yield 2

    kept = Kept(numbers)
    with pytest.raises(KeyboardInterrupt):
        list(kept)
    assert list(kept) == [1, 2]
    assert list(kept) == [1, 2], "from what was kept: there is no third iterator"

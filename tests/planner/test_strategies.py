"""Every strategy is held to the same properties."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given

from ckplan.errors import InfeasibleError, ModelError, UsageError
from ckplan.planner import Problem, bottlenecks, forward_cuts, plan_from_json, simulate
from ckplan.planner.instances import parse_kusumoto
from ckplan.planner.order import best_order
from ckplan.planner.strategies import STRATEGIES, Strategy, parse_strategy
from ckplan.planner.strategies.keep_listed import KeepListed
from tests.planner.networks import small_unet
from tests.planner.problems import ProblemBuilder, chain, problems

ALL = [KeepListed(keep=(".*[02468]",)) if kind is KeepListed else kind() for kind in STRATEGIES]


@pytest.mark.parametrize("strategy", ALL, ids=str)
@given(problem=problems())
def test_plans_are_valid_and_no_worse_than_keeping_everything(strategy: Strategy, problem: Problem) -> None:
    try:
        plan = strategy.solve(problem)
    except UsageError:
        assert strategy.name == "list"  # no tensor of this graph has an even number
        return
    timeline = simulate(problem, plan.schedule)
    assert timeline == plan.predicted
    assert plan.lower_bound <= timeline.peak_activations
    assert plan.overhead >= -1e-12
    assert all(not problem.ops[index].backward for index in repeated(plan.schedule))
    assert all(problem.ops[index].recomputable for index in repeated(plan.schedule))
    if strategy.name != "list":
        assert timeline.peak_activations <= simulate(problem, best_order(problem)).peak_activations


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_a_budget_is_kept_or_refused_with_the_bound(strategy: Strategy) -> None:
    problem = chain(16)
    peak = strategy.solve(problem).predicted.peak_activations
    assert strategy.solve(problem, budget=peak).predicted.peak_activations <= peak
    with pytest.raises(InfeasibleError, match=r"no schedule needs less than 300 B, which 'gz15' holds .*'seed' 100 B"):
        strategy.solve(problem, budget=299)


@pytest.mark.parametrize("strategy", ALL, ids=str)
def test_plans_survive_json(strategy: Strategy) -> None:
    problem = chain(9)
    plan = strategy.solve(problem)
    assert plan_from_json(problem, plan.to_json()) == replace(plan, overhead_bound=0.0)  # not believed


def test_a_plan_for_another_model_is_refused() -> None:
    plan = parse_strategy("none").solve(chain(3))
    with pytest.raises(ModelError, match="matmul2"):
        plan_from_json(chain(2), plan.to_json())
    with pytest.raises(ModelError, match="schema"):
        plan_from_json(chain(3), {**plan.to_json(), "schema": 99})


def test_chains_shrink_as_the_papers_say() -> None:
    problem = chain(36)
    base = parse_strategy("none").solve(problem)
    segments = parse_strategy("sqrt").solve(problem)
    bottleneck = parse_strategy("memory").solve(problem)
    assert base.predicted.peak_activations == 3800
    # Five boundaries, the last segment's six activations and two gradients; a quarter more compute at most.
    assert segments.predicted.peak_activations == 1300
    assert bottleneck.predicted.peak_activations <= 1000
    assert max(segments.overhead, bottleneck.overhead) < 0.35


def test_speed_never_repeats_a_heavy_op() -> None:
    problem = parse_kusumoto(small_unet().text())
    again = repeated(parse_strategy("speed").solve(problem).schedule)
    assert again
    assert not any(problem.ops[index].heavy for index in again)
    assert any(op.heavy for op in problem.ops)


def test_listed_tensors_are_not_recomputed() -> None:
    problem = chain(12)
    plan = parse_strategy("list:keep=a[0-5];a11").solve(problem)
    names = {problem.ops[index].name for index in repeated(plan.schedule)}
    assert names == {f"{kind}{layer}" for kind in ("matmul", "tanh") for layer in range(6, 11)}


def test_the_models_own_collection_is_the_default_list() -> None:
    problem = chain(4)
    marked = Problem(problem.ops, problem.tensors, collection=("a1",))
    assert parse_strategy("list").solve(marked).schedule == parse_strategy("list:keep=a1").solve(problem).schedule
    with pytest.raises(UsageError, match="no collection"):
        parse_strategy("list").solve(problem)


def test_bottlenecks_of_a_chain_and_of_a_skip() -> None:
    assert len(bottlenecks(chain(5))) == 10
    build = ProblemBuilder()
    x, a, b, c, d = (build.tensor(8) for _ in range(5))
    build.op([], [x])
    build.op([x], [a])
    build.op([x], [b])
    build.op([a, b], [c])
    build.op([c], [d])
    build.op([d], [build.tensor(1)])
    problem = build.build()
    assert bottlenecks(problem) == [x, c, d]
    assert [cut.tensors for cut in forward_cuts(problem)] == [1, 2, 2, 1, 1]


def test_strategies_are_parsed_and_written_back() -> None:
    for text in ("none", "speed", "sqrt:segments=4", "memory:min_bytes=1024", "list:keep=a;b.*"):
        assert str(parse_strategy(text)) == text
    assert str(parse_strategy("memory:min_bytes=1KiB")) == "memory:min_bytes=1024"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("memroy", "did you mean `memory`"),
        ("x", "choose one of none"),
        ("sqrt:count=3", "its options: segments"),
        ("sqrt:segments", "option `segments` of strategy `sqrt` has no value; write `segments=…`"),
        ("sqrt:segments=many", "does not fit"),
        ("memory:min_bytes=big", "not a size"),
        ("auto:steps=-1", "option `steps` of strategy `auto` is -1; give a number of at least 0"),
        ("auto:overhead=inf", "option `overhead` of strategy `auto` is inf; give a number$"),
        ("search:seconds=nan", "option `seconds` of strategy `search` is nan"),
        ("exact:repeats=-1", "option `repeats`"),
        ("sqrt:segments=-2", "option `segments`"),
        ("lower_sets:max_sets=-1", "option `max_sets`"),
        ("list:keep=nothing", "no forward tensor matches"),
        ("list:keep=(", "regular expression"),
    ],
)
def test_bad_strategies_are_named(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_strategy(text).solve(chain(3))


def repeated(schedule: tuple[int, ...]) -> set[int]:
    seen: set[int] = set()
    again = set()
    for index in schedule:
        (again if index in seen else seen).add(index)
    return again
